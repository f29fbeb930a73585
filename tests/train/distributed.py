"""One of two processes that train together: `python -m tests.train.distributed 0 store`.

In: the rank and the file over which the processes meet. Out: a line with the losses of twenty steps
as eager and compiled, for each way of wrapping, which the test holds against each other.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from litz.backend import litz
from litz.report import Explanation
from tests import draws
from tests.train.following import RAISE, batches

PROCESSES = 2
KINDS = ("ddp", "fsdp2")


class Net(nn.Module):
    """A class of its own: Dynamo skips frames of torch's own modules below a wrapper's."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(nn.functional.gelu(self.up(x))))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Net(), Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def wrapped(kind: str, model: nn.Module) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def losses(kind: str, rank: int, notes: Explanation | None = None) -> list[float]:
    """The loss of this process, which sees its own half of each batch."""
    draws.seed(0)
    whole = wrapped(kind, Pair())
    backend = partial(litz, options=RAISE, explanation=notes)
    call: Any = whole if notes is None else torch.compile(whole, backend=backend)
    optimizer = torch.optim.SGD(whole.parameters(), 0.1, momentum=0.9)
    found = []
    for batch in batches(8, 16):
        x = batch.chunk(PROCESSES)[rank]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(call(x), torch.sin(x) * 2)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def main(rank: str, store: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=PROCESSES
    )
    told = {}
    for kind in KINDS:
        notes = Explanation()
        eager, compiled = losses(kind, int(rank)), losses(kind, int(rank), notes)
        graphs = sorted(graph.kind for graph in notes.graphs)
        told[kind] = {"eager": eager, "compiled": compiled, "graphs": graphs}
    print(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
