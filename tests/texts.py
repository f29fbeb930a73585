"""The texts of what some programs are compiled to: `python -m tests.texts FILE NAME ...`.

In: names of programs, in the order in which one process compiles them. Out: a JSON file with the
text of each program behind each stage, from the kernels to the call. Two processes that compile the
same programs write the same texts (`tests/test_texts.py`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from litz.ir.source import Source
from litz.ir.text import graph_text, scheduled_text
from litz.report import Report
from tests import draws
from tests.stages import compiles_noted
from tests.test_stages import FUNCTIONS


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.down(F.gelu(self.up(x)))


def _once(function: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    torch.compile(function, backend="litz")(*inputs)


def _train(model: nn.Module, x: torch.Tensor) -> None:
    torch.compile(model, backend="litz")(x).square().mean().backward()


def _at_two_sizes(function: Any, *shapes: tuple[int, ...]) -> None:
    run = torch.compile(function, backend="litz", dynamic=True)
    with torch.no_grad():
        for shape in shapes:
            run(torch.randn(shape))


def _images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def _optimizer_step() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    torch.compile(optimizer.step, backend="litz")()


SMALL = "transposed layer_norm attention argmax cumsum cat_many pad scatter bf16 update reshape"
PROGRAMS: dict[str, Callable[[], Any]] = {
    **{name: partial(_once, *FUNCTIONS[name]) for name in SMALL.split()},
    "block": lambda: _at_two_sizes(Block().eval(), (2, 8, 32), (2, 12, 32)),
    "trained block": lambda: _train(Block(), torch.randn(2, 8, 32)),
    "trained images": lambda: _train(_images(), torch.randn(2, 3, 12, 12)),
    "images": lambda: _at_two_sizes(_images().eval(), (2, 3, 12, 12), (3, 3, 20, 20)),
    "views of changing size": lambda: _at_two_sizes(
        lambda x: (x.reshape(-1, x.shape[1] * 2).cumsum(0), F.pad(x, (1, 2)).roll(1, 1).t() * 2),
        (4, 6), (8, 10),
    ),
    "optimizer": _optimizer_step,
}  # fmt: skip


def texts_of(names: list[str]) -> dict[str, list[str]]:
    """Compile the programs in this order, and give what became of each of their graphs."""
    found: dict[str, list[str]] = {}
    for name in names:
        torch._dynamo.reset()
        draws.seed(0)
        with compiles_noted() as made:
            PROGRAMS[name]()
        found[name] = [text for graph, report in made for text in (*_texts(report), graph.text)]
    return found


def _texts(report: Report) -> list[str]:
    kernels = [scheduled_text(k) for k in report.scheduled]
    assert isinstance(report.source, Source)
    return [graph_text(report.plan.graph), "\n".join(kernels), report.source.text]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(texts_of(sys.argv[2:])))
