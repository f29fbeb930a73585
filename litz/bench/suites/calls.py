"""Suite `calls`: what a call costs when there is next to nothing to compute.

In: nothing. Out: cases on eight numbers, beside `nothing`: torch's own part of a call. Example:
`x + 1`. The fact `us above nothing` is what a backend adds to that part.
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

FLOOR = "nothing"
APART = 20


def add_one(x: Tensor) -> Tensor:
    return x + 1


def add_many(*tensors: Tensor) -> Tensor:
    """One kernel of many arguments."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def kernels_apart(x: Tensor, w: Tensor) -> Tensor:
    """Kernels that cannot join: a matrix product stands between each and the next."""
    for _ in range(APART):
        x = torch.tanh(x @ w)
    return x


@dataclass(frozen=True)
class Small:
    """A function, and how many tensors of which shape it takes."""

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
        Case("calls", name, "", small.build, measure, beside=(FLOOR,))
        for name, small in CASES.items()
    ]


def finish(rows: list[Row]) -> list[Row]:
    """Add what Litz costs above the floor, sample by sample."""
    return [_above_floor(row) for row in rows]


def _above_floor(row: Row) -> Row:
    ours, floor = row.samples.get(OURS), row.samples.get(FLOOR)
    if not ours or not floor:
        return row
    above = statistics.median(a - b for a, b in zip(ours, floor, strict=True))
    return row.with_facts({"us above nothing": 1e6 * above})


SUITE = Suite("Calls that compute next to nothing: what a call itself costs.", cases, finish)
