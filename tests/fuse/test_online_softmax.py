"""The maximum and the sum of exponentials of a long row come from one pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.config import Config
from litz.fuse import fuse
from litz.ir.expr import walk
from litz.ir.program import Decision, Kernel
from litz.target import host
from tests.stages import compiled, stages

LONG = 3 * 8192  # rows of this length are split over threads, as long as they are few
MANY = torch.randn(40, LONG, dtype=torch.float64)
FEW = torch.randn(3, LONG, dtype=torch.float64)


def _exps(kernel: Kernel) -> int:
    return sum(n.op == "exp" for n in walk(*(s.value for s in kernel.stores)))


def _streamed(decisions: Iterable[Decision]) -> list[str]:
    """The reasons of what was taken in one pass."""
    return [d.reason for d in decisions if "online_softmax" in d.reason]


def test_a_row_that_does_not_fit_is_read_once_for_both() -> None:
    """Softmax reads its operand twice and stores nothing on the way."""
    program = stages(lambda x: x.softmax(-1), MANY).program
    small = replace(host(), l2_bytes=LONG)
    blocks, rows, quotient = fuse(program, small, Config()).kernels
    operand = blocks.reads[0]
    assert [len(k.phases) for k in (blocks, rows, quotient)] == [2, 2, 1]
    assert [a.extent.number for a in blocks.outer] == [12, 40]
    assert set(rows.reads) == {*blocks.writes, rows.writes[0]}
    assert operand in quotient.reads and len(quotient.writes) == 1
    assert [_exps(k) for k in (blocks, rows, quotient)] == [1, 1, 1]


def test_a_row_that_fits_stays_whole() -> None:
    made = stages(lambda x: x.softmax(-1), torch.randn(64, 4096)).kernels
    assert len(made.kernels) == 1
    assert not _streamed(made.decisions)


def test_the_flag_acts_and_the_decision_names_it() -> None:
    made = stages(lambda x: x.softmax(-1), FEW).kernels
    assert len(made.kernels) == 3
    (reason,) = _streamed(made.decisions)
    assert "3 rows of 24576 points" in reason and "12 blocks" in reason
    plain = stages(lambda x: x.softmax(-1), FEW, online_softmax=False).kernels
    assert len(plain.kernels) == 6


def test_exponentials_that_someone_needs_are_still_stored() -> None:
    def function(x: torch.Tensor) -> Any:
        exps = (x - x.amax(-1, keepdim=True)).exp()
        return exps, exps / exps.sum(-1, keepdim=True)

    made = stages(function, FEW).kernels
    assert _streamed(made.decisions)
    torch.testing.assert_close(compiled(function)(FEW), function(FEW))


def test_another_value_than_the_maximum_s_is_left_alone() -> None:
    made = stages(lambda x, y: (y - x.amax(-1, keepdim=True)).exp().sum(-1), FEW, FEW + 1).kernels
    assert not _streamed(made.decisions)


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "scaled": lambda x: (x * 0.125).softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "columns": lambda x: x.t().contiguous().softmax(0),
    "column logsumexp": lambda x: x.t().contiguous().logsumexp(0),
    "all": lambda x: x.logsumexp((0, 1)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x))),
    "updated": lambda x: (x.clone().copy_(x.softmax(-1)), x.add_(1))[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("length", [LONG, 24593], ids=["even", "prime"])
def test_results(name: str, length: int) -> None:
    """Blocks that fill the row, and a last one that is cut short."""
    x = torch.randn(3, length, dtype=torch.float64) * 5
    run = compiled(FUNCTIONS[name], debug_index_asserts=True)
    found = run(x.clone())
    assert _streamed(run.reports[0].decisions)
    torch.testing.assert_close(found, FUNCTIONS[name](x.clone()))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_what_is_not_finite_is_as_in_eager(name: str) -> None:
    run = compiled(FUNCTIONS[name])
    for value in (-math.inf, math.inf, math.nan):
        for where in (slice(5, 6), slice(2048, 6144), slice(None)):  # one, whole blocks, the row
            x = torch.randn(3, LONG) - 300  # so that a sum below a wrong maximum overflows
            x[1, where] = value
            torch.testing.assert_close(run(x), FUNCTIONS[name](x), equal_nan=True)


def test_halves_are_rounded_once() -> None:
    x = (torch.randn(3, LONG) * 4).bfloat16()
    run = compiled(lambda x: x.softmax(-1))
    torch.testing.assert_close(run(x).float(), x.float().softmax(-1), rtol=2**-8, atol=1e-9)
    assert _streamed(run.reports[0].decisions)
