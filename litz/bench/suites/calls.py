"""Suite `calls`: the cost of a call with almost nothing to compute.

In: nothing. Out: cases on a few numbers, beside `floor`, torch's own part of a call, and `nothing`,
that part and the graph op by op. The facts are Litz's time above each. Example: `x + 1`.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from litz.bench.calls import measure_calls
from litz.bench.case import Case, Program, Suite
from litz.bench.results import OURS, Row

FLOORS = ("floor", "nothing")
APART = 20


def add_one(x: Tensor) -> Tensor:
    return x + 1


def add_many(*tensors: Tensor) -> Tensor:
    """One kernel with many arguments."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def kernels_apart(x: Tensor, w: Tensor) -> Tensor:
    """Kernels that cannot fuse: a GEMM stands between each and the next."""
    for _ in range(APART):
        x = torch.tanh(x @ w)
    return x


@dataclass(frozen=True)
class Small:
    """A function, and the number and shape of the tensors it takes."""

    function: object
    count: int
    shape: tuple[int, ...]

    def build(self) -> Program:
        torch.manual_seed(0)
        tensors = tuple(torch.randn(self.shape) for _ in range(self.count))
        return Program(self.function, tensors)  # type: ignore[arg-type]


CASES = {
    "x + 1": Small(add_one, 1, (8,)),
    "sum of 20 inputs": Small(add_many, 20, (8,)),
    "20 kernels apart": Small(kernels_apart, 2, (8, 8)),
}


def cases(quick: bool) -> list[Case]:
    measure = partial(measure_calls, metric="short call")
    return [
        Case("calls", name, "", small.build, measure, beside=FLOORS)
        for name, small in CASES.items()
    ]


def finish(rows: list[Row]) -> list[Row]:
    """Add Litz's cost above the floors."""
    return [row.with_facts(_above_floors(row)) for row in rows]


def _above_floors(row: Row) -> dict[str, float]:
    """In microseconds: the median over rounds of the difference."""
    ours = row.samples.get(OURS, ())
    return {
        f"us above {name}": 1e6 * statistics.median(a - b for a, b in zip(ours, floor, strict=True))
        for name in FLOORS
        if ours and (floor := row.samples.get(name))
    }


SUITE = Suite("Calls that compute next to nothing: what a call itself costs.", cases, finish)
