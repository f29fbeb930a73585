"""What random programs found, each as the smallest program that showed it."""

from __future__ import annotations

import pytest
import torch

from litz.config import Config
from litz.errors import IndexOutOfRange
from litz.ir.dtypes import F32
from litz.ir.expr import apply, axis, integer, load
from litz.ir.program import KernelGraph, Output, ViewArg
from litz.plan import plan
from tests.codegen.native import buffer, pointwise
from tests.fuzz.compare import check
from tests.fuzz.programs import Line, Program
from tests.stages import compiled


def program(inputs: str, *steps: str, give: str, **options: object) -> Program:
    """Inputs one a line, steps as they are drawn; only the types matter for noise."""
    lines = tuple(Line(text.strip()) for text in inputs.strip().splitlines())
    return Program(lines, tuple(Line(s) for s in steps), tuple(give.split()), options)


FINDS: dict[str, Program] = {
    "a constant of bf16 was written as its integer": program(
        "x0 = data(1, (7, 5), bfloat16)", "x0.fill_(2)", "v0 = x0 + 1", give="v0"
    ),
    "isnan of bf16 compared bits as floats": program(
        "x0 = data(1, (7, 5), bfloat16, True)", "v0 = torch.isnan(x0)", give="v0"
    ),
    "loops over nothing divided by their length": program(
        "x0 = data(1, (3, 7, 0), float64)\nx1 = data(2, (3, 7, 0), float16)",
        "x0.mul_(2)", "v0 = x0 * x0", "v1 = x1.log_softmax(0)", "v2 = v0.sum(2) @ v0.sum(2).mT",
        "v3 = (v0 + 1).mT @ v0", give="v0 v1 v2 v3",
    ),
    "a buffer read at stride zero alone was looked for among the arguments": program(
        "x0 = data(1, (1, 2, 3), uint8).expand(16, 2, 3)\nx1 = data(2, (2,), int64)",
        "v0 = x0[x1 % 2, x1 % 2]", give="v0",
    ),
    "a guarded load of a value of its own phase stayed a load": program(
        "x0 = data(1, (1, 17), float64).expand(5, 17)",
        "v0 = x0.sum(-2)", "v1 = v0[1:]", "v2 = v0.min()", "v1.mul_(2)", "v3 = v0.sin().sum()",
        give="v1 v2 v3",
    ),
    "one lane of a truncated vector was stored as the wide element": program(
        "x0 = data(1, (8, 1, 7, 5), float64)[:1].expand(8, 1, 7, 5)",
        "v0 = torch.signbit(x0)", "v1 = x0.to(bfloat16)", give="v0 v1", cpp__simdlen=128,
    ),
    "a shift of unsigned numbers past their width left a bit": program(
        "x0 = data(1, (40,), uint8)", "v0 = (x0 + 200) >> 9", give="v0"
    ),
    "an odd base lost the high bits of its exponent": program(
        "x0 = data(1, (40,), int64)", "v0 = (2 * x0 + 1) ** 70", "v1 = 3 ** (x0 + 70)", give="v0 v1"
    ),
}  # fmt: skip


@pytest.mark.parametrize("find", FINDS)
def test_find(find: str) -> None:
    check(FINDS[find])


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
