"""What the first random programs found, and finds that a program alone does not show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import bfloat16, float16, float64, int64, uint8

from litz.config import Config
from litz.errors import IndexOutOfRange
from litz.fuzz import assert_same, data
from litz.ir.dtypes import F32
from litz.ir.expr import apply, axis, integer, load
from litz.ir.program import KernelGraph, Output, ViewArg
from litz.plan import plan
from tests.codegen.native import buffer, pointwise
from tests.stages import compiled

Tensors = list[Any]


def test_a_constant_of_bf16_is_a_float() -> None:
    """It was written as its integer."""
    assert_same(lambda x: [x.fill_(2) + 1], [data(1, (7, 5), bfloat16)])


def test_isnan_of_bf16_looks_at_the_number() -> None:
    """Bits were compared as floats."""
    assert_same(lambda x: [torch.isnan(x)], [data(1, (7, 5), bfloat16, True)])


def test_loops_over_nothing() -> None:
    """They divided by their length."""

    def program(x: Any, y: Any) -> Tensors:
        square = x.mul_(2) * x
        sums = square.sum(2)
        return [square, y.log_softmax(0), sums @ sums.mT, (square + 1).mT @ square]

    assert_same(program, [data(1, (3, 7, 0), float64), data(2, (3, 7, 0), float16)])


def test_a_buffer_read_at_stride_zero_alone() -> None:
    """It was looked for among the arguments."""
    repeated = data(1, (1, 2, 3), uint8).expand(16, 2, 3)
    assert_same(lambda x, i: [x[i % 2, i % 2]], [repeated, data(2, (2,), int64)])


def test_a_guarded_load_of_a_value_of_its_own_phase() -> None:
    """It stayed a load."""

    def program(x: Any) -> Tensors:
        sums = x.sum(-2)
        part, least = sums[1:], sums.min()
        part.mul_(2)
        return [part, least, sums.sin().sum()]

    assert_same(program, [data(1, (1, 17), float64).expand(5, 17)])


def test_one_lane_of_a_truncated_vector() -> None:
    """It was stored as the wide element."""
    x = data(1, (8, 1, 7, 5), float64)[:1].expand(8, 1, 7, 5)
    assert_same(lambda x: [torch.signbit(x), x.to(bfloat16)], [x], {"cpp.simdlen": 128})


def test_a_shift_of_unsigned_numbers_past_their_width() -> None:
    """It left a bit."""
    assert_same(lambda x: [(x + 200) >> 9], [data(1, (40,), uint8)])


def test_an_odd_base_keeps_the_high_bits_of_its_exponent() -> None:
    assert_same(lambda x: [(2 * x + 1) ** 70, 3 ** (x + 70)], [data(1, (40,), int64)])


def test_equal_buffers_of_two_compiles_are_one() -> None:
    """Nodes are shared between compiles, so one may hold another compile's equal buffer. Compared
    by identity, that load was overlooked, and its operand overwritten before it was read."""
    n, i = 8, axis("i0", 8)
    x, t, y, z = (buffer(name, F32, n) for name in "xtyz")
    held = load(buffer("t", F32, n), (integer(0),))
    assert load(t, (integer(0),)).buffer is held.buffer is not t
    steps = (
        pointwise((i,), {t: load(x, (i,))}),
        pointwise((i,), {y: apply("add", load(t, (i,)), load(t, (integer(0),)))}),
        pointwise((i,), {z: load(y, (i,))}),
    )
    shown = Output(ViewArg(z, z.shape, z.strides, integer(0)))
    slots = plan(KernelGraph((x,), (), steps, (shown,)), Config()).slots
    assert slots["t"].offset != slots["y"].offset


def test_the_check_of_an_index_does_not_vanish_with_the_index() -> None:
    """What is read does not depend on where: a constant, a row that is the same everywhere."""
    bad = torch.tensor([0, 9, 1])
    for function in (
        lambda x, i: torch.zeros(4)[i] + x[0, 0],
        lambda x, i: x[:1].expand(4, 5)[i],
        lambda x, i: (x[:1].expand(4, 5) * 2 + 1)[i],
    ):
        with pytest.raises(IndexOutOfRange):
            compiled(function)(torch.randn(4, 5), bad)


def test_many_small_siblings_fuse_in_linear_time() -> None:
    """A hundred loops that read one input took ten seconds to align."""

    def siblings(x: torch.Tensor, *rest: torch.Tensor) -> list[torch.Tensor]:
        return [f(x, y) for y in rest for f in (torch.add, torch.lt, torch.mul, torch.maximum)]

    x, rest = torch.randn(3, 5), [torch.randn(5) for _ in range(25)]
    run = compiled(siblings)
    torch.testing.assert_close(run(x, *rest), siblings(x, *rest))
    assert run.reports[0].seconds["fuse"] < 2
