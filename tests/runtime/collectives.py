"""One of two processes that talk inside compiled graphs: `python -m tests.runtime.collectives 0 s`.

In: the rank and the file over which the processes meet. Out: a line for each program: the errors of
Litz and of eager against float64, relative to the largest number. The sizes of what each process
has for itself differ, so that a plan that went by memory alone would order steps differently in
each; what they talk about is of one size. A process that waits for the other longer than `PATIENCE`
fails.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

from tests import draws

PROCESSES = 2
PATIENCE = timedelta(seconds=60)
LONG = 1 << 20  # takes a while to send
SIZES = ((4, 4000), (4000, 4))  # of both inputs, by rank


def two_sums(a: torch.Tensor, b: torch.Tensor) -> Any:
    """Two collectives of one shape: in another order, each would get the other's numbers."""
    one = a.sort(0).values.exp()
    total = collectives.all_reduce(one.sum(0), "sum", dist.group.WORLD)
    two = b.sort(0).values.exp()
    most = collectives.all_reduce(two.sum(0), "max", dist.group.WORLD)
    return (one * total).sort(0).values, (two * most).sort(0).values


def gathered_late(a: torch.Tensor, b: torch.Tensor) -> Any:
    """An operand is still being sent while later kernels run."""
    wide = a.mean() + torch.arange(LONG).to(a.dtype) / LONG
    sent = torch.ops._c10d_functional.all_gather_into_tensor(wide.exp(), PROCESSES, "0")
    busy = (wide.sin().sort().values * b.mean()).cos().sort().values
    whole = torch.ops._c10d_functional.wait_tensor(sent)
    return whole.view(PROCESSES, -1)[:, ::64] + 1, busy[::64]


def scattered(a: torch.Tensor, b: torch.Tensor) -> Any:
    """Three kinds, of which one reads the result of another."""
    both = torch.cat([a.mean(0), b.mean(0)]).view(4, 4).exp()
    part = collectives.reduce_scatter_tensor(both, "sum", 0, dist.group.WORLD)
    whole = collectives.all_gather_tensor(part.sin() * 2, 0, dist.group.WORLD)
    mean = collectives.all_reduce(part.cos(), "avg", dist.group.WORLD)
    return whole + 1, mean * whole[:2], b * part.sum()


def trained(a: torch.Tensor, b: torch.Tensor) -> Any:
    """Collectives of the forward, and those that their gradients bring."""
    whole = collectives.all_gather_tensor_autograd(a.mean(0).sin(), 0, dist.group.WORLD)
    part = collectives.reduce_scatter_tensor_autograd(
        (b.exp().mean(0) + whole[:8]).repeat(2), "sum", 0, dist.group.WORLD
    )
    return (a * a * part).mean() + (whole * whole).sum()


PROGRAMS: dict[str, tuple[Callable[..., Any], bool | None]] = {  # with what `dynamic` is
    "two sums": (two_sums, False),
    "two sums of any length": (two_sums, True),
    "gathered late": (gathered_late, False),
    "scattered": (scattered, False),
    "trained": (trained, False),
}


def run(call: Callable[..., Any], inputs: list[torch.Tensor], grad: bool) -> list[torch.Tensor]:
    """Results, and gradients if they are asked for."""
    inputs = [x.clone().requires_grad_(grad) for x in inputs]
    result = call(*inputs)
    if grad:
        result.backward()
        return [result.detach(), *(x.grad for x in inputs if x.grad is not None)]
    return list(result)


def main(rank: str, store: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=PROCESSES,
        timeout=PATIENCE,
    )  # fmt: skip
    seeded = draws.generator(int(rank))
    inputs = [torch.randn(n, 8, generator=seeded) / 8 for n in SIZES[int(rank)]]
    for name, (function, dynamic) in PROGRAMS.items():
        options = {"on_error": "raise"}
        fast = torch.compile(
            function, backend="litz", fullgraph=True, dynamic=dynamic, options=options
        )
        errors = [0.0, 0.0]
        for k in range(3):
            given = [x + k / 8 for x in inputs]
            grad = function is trained
            wanted = run(function, [x.double() for x in given], grad)
            for which, call in enumerate((fast, function)):
                for found, true in zip(run(call, given, grad), wanted, strict=True):
                    off = (found - true).abs().max() / true.abs().max()
                    errors[which] = max(errors[which], float(off))
        print(json.dumps([name, errors]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
