"""Loop nests are recognised by their form, once; tags are read back, moved with axes, and held
against what is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from textwrap import dedent
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.errors import ParseError, VerifyError
from litz.ir.expr import axis
from litz.ir.gemm import gemm_of
from litz.ir.parse import parse_graph, parse_kernel, parse_program
from litz.ir.patterns import Attention, Depthwise, Gemm, Pattern
from litz.ir.program import Kernel, Loop
from litz.ir.recognise import patterns_in, recognised
from litz.ir.text import graph_text, kernel_text, program_text
from litz.ir.verify import verify
from tests import draws
from tests.stages import Stages, stages
from tests.test_stages import FUNCTIONS


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=draws.generator(len(shape)))


def _by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.125 + 1, -1) @ v


HEADS = tuple(drawn(2, 3, 64, 32) for _ in range(3))
# What is computed, and the pattern of the one kernel that has one.
KNOWN: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], type[Pattern]]] = {
    "mm": (lambda a, b: (a @ b).relu(), (drawn(64, 64), drawn(64, 128)), Gemm),
    "bmm": (torch.bmm, (drawn(3, 64, 64), drawn(3, 64, 64)), Gemm),
    "one row": (torch.mm, (drawn(1, 512), drawn(512, 64)), Gemm),
    "sum by hand": (
        lambda a, b: (a[:, :, None] * b).sum(1), (drawn(64, 64), drawn(64, 128)), Gemm
    ),
    "mean by hand": (
        lambda a, b: (b * a[:, :, None]).mean(1) + 1, (drawn(64, 64), drawn(64, 128)), Gemm
    ),
    "weighed columns": (lambda x, w: (x * w).sum(-2), (drawn(64, 9, 64), drawn(9, 64)), Depthwise),
    "attention": (F.scaled_dot_product_attention, HEADS, Attention),
    "attention by hand": (_by_hand, HEADS, Attention),
    "one query": (_by_hand, (HEADS[0][:, :, :1], *HEADS[1:]), Attention),
    "shared keys": (
        F.scaled_dot_product_attention,
        (HEADS[0], *(t[:, :1].expand(2, 3, 64, 32) for t in HEADS[1:])), Attention,
    ),
}  # fmt: skip


def tags(made: Stages) -> list[Pattern]:
    phases = [p for k in made.kernels.kernels for p in k.phases]
    return [p.pattern for p in phases if p.pattern is not None]


@pytest.mark.parametrize("name", KNOWN)
def test_patterns_are_recognised_by_their_form(name: str) -> None:
    function, inputs, kind = KNOWN[name]
    made = stages(function, *inputs)
    found = [tag for tag in tags(made) if isinstance(tag, kind)]
    assert len(found) == 1, graph_text(made.kernels)
    verify(made.program)
    verify(made.kernels)


@pytest.mark.parametrize("name", [*KNOWN, *FUNCTIONS])
def test_stages_leave_the_tags_that_the_recogniser_gives(name: str) -> None:
    """No stage loses one, and none keeps one that is no longer true."""
    function, inputs = KNOWN[name][:2] if name in KNOWN else FUNCTIONS[name]
    made = stages(function, *inputs)
    for step in (*made.program.body, *made.kernels.body, *made.plan.graph.body):
        assert recognised(step) is step
    for scheduled in made.scheduled:
        kernel = scheduled.kernel
        if any((scheduled.choice.gemm, scheduled.choice.attention, scheduled.choice.depthwise)):
            assert recognised(kernel) is kernel, kernel_text(kernel)


@pytest.mark.parametrize("name", KNOWN)
def test_the_text_of_a_tag_rebuilds_it(name: str) -> None:
    function, inputs, _ = KNOWN[name]
    made = stages(function, *inputs)
    program, graph = (
        parse_program(program_text(made.program)), parse_graph(graph_text(made.kernels)),
    )  # fmt: skip
    bare = [replace(s, origins=()) for s in made.program.body]
    assert list(program.body) == bare
    assert [k.phases for k in graph.kernels] == [k.phases for k in made.kernels.kernels]
    for scheduled in made.scheduled:
        assert parse_kernel(kernel_text(scheduled.kernel)).phases == scheduled.kernel.phases


PRODUCT = """
    input x: f32[8, 32]
    input w: f32[32, 64]
    buffer y: f32[8, 64]
    loop i0 < 8, i1 < 64 reduce r0 < 32 as gemm(rows=[i0], columns=[i1], depth=[r0]):
      y[i0, i1] = reduce.sum(x[i0, r0] * w[r0, i1], r0)
    output y
"""
LIES = [
    ("rows=[i0], columns=[i1]", "rows=[i1], columns=[i0]"),
    ("columns=[i1]", "columns=[i1], batch=[i0]"),
    ("depth=[r0])", "depth=[r0], flipped=True)"),
    ("gemm(rows=[i0], columns=[i1], depth=[r0])", "depthwise(channel=[i1], along=[i0], taps=[r0])"),
    ("x[i0, r0] * w[r0, i1]", "x[i0, r0] + w[r0, i1]"),
    ("reduce.sum(x", "reduce.max(x"),
    ("x[i0, r0] * w", "x[i0, (r0 + i1) % 32] * w"),
]


@pytest.mark.parametrize(("said", "lie"), LIES)
def test_a_tag_that_lies_is_found(said: str, lie: str) -> None:
    verify(parse_program(PRODUCT))
    assert said in PRODUCT
    with pytest.raises(VerifyError, match="is not what is computed: that is") as error:
        verify(parse_program(PRODUCT.replace(said, lie)))
    assert "loop i0 < 8, i1 < 64 reduce r0 < 32 as" in str(error.value)


def test_a_kernel_that_lies_is_found() -> None:
    """What follows a product must work on its elements one by one."""
    text = dedent("""
        kernel k:
          buffer x: f32[8, 32]
          buffer w: f32[32, 64]
          buffer y: f32[8, 64]
          outer i0 < 8, i1 < 64
          phase reduce r0 < 32 as gemm(rows=[i0], columns=[i1], depth=[r0]):
            y[i0, i1] = exp(reduce.sum(x[i0, r0] * w[r0, i1], r0))
    """)
    verify(parse_kernel(text))
    with pytest.raises(VerifyError, match="is not what is computed: that is None"):
        verify(parse_kernel(text.replace("y[i0, i1] =", "y[i0, i1] add=")))


@pytest.mark.parametrize(
    ("said", "wrong", "message"),
    [
        ("gemm(", "gem(", "there is no pattern 'gem'"),
        ("rows=", "lines=", "gemm has no role or axis lines"),
        ("[i0]", "[i7]", "gemm has no role or axis i7"),
        ("[i0]", "i0", "pattern\\(role="),
    ],
)
def test_a_tag_that_cannot_be_read(said: str, wrong: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse_program(PRODUCT.replace(said, wrong))


def test_operands_are_read_by_the_tag() -> None:
    text = PRODUCT.replace("x[i0, r0] * w[r0, i1]", "w[r0, i1] * x[i0, r0]")
    (loop,) = parse_program(text.replace(" as gemm(rows=[i0], columns=[i1], depth=[r0])", "")).body
    assert isinstance(loop, Loop) and gemm_of(loop) is None
    gemm = gemm_of(recognised(loop))
    assert gemm is not None
    assert (gemm.left.buffer.name, gemm.right.buffer.name) == ("x", "w")


def said_of(text: str) -> str:
    (loop,) = parse_program(text).body
    assert isinstance(loop, Loop)
    return str(patterns_in(loop).get(0))


def test_a_convolution_is_a_product_with_taps() -> None:
    text = """
        input x: f32[10, 16]
        input w: f32[3, 16, 32]
        buffer y: f32[8, 32]
        loop i0 < 8, i1 < 32 reduce r0 < 3, r1 < 16:
          y[i0, i1] = reduce.sum(x[i0 + r0, r1] * w[r0, r1, i1], r0, r1)
        output y
    """
    assert said_of(text) == "gemm(rows=[i0], columns=[i1], taps=[r0], depth=[r1])"


def test_windows_over_single_channels_are_depthwise() -> None:
    text = """
        input x: f32[8, 32]
        input w: f32[3, 32]
        buffer y: f32[8, 32]
        loop i0 < 8, i1 < 32 reduce r0 < 3:
          let v0 = i0 + r0 - 1
          y[i0, i1] = reduce.sum(w[r0, i1] * guarded((v0 >= 0) & (v0 < 8), x[v0, i1]), r0)
        output y
    """
    assert said_of(text) == "depthwise(channel=[i1], along=[i0], taps=[r0], flipped=True)"
    # A test that is no sum of both axes is not one of windows.
    assert said_of(text.replace("(v0 < 8)", "(v0 * v0 < 8)")) == "None"


def test_tags_move_with_their_axes() -> None:
    i, j, r, s = (axis(n, 8) for n in "ijrs")
    high, low, whole = axis("h", 2), axis("l", 4), axis("rs", 64)
    tag = Gemm(rows=(i,), columns=(j,), taps=(r,), depth=(s,))
    assert tag.moved({i: (high, low)}) == replace(tag, rows=(high, low))
    assert tag.moved({r: (whole,), s: ()}) == Gemm(rows=(i,), columns=(j,), depth=(whole,))


def test_expanded_operands_are_seen_as_they_lie_in_memory() -> None:
    """A right operand that is the same for the whole batch has none: all are rows of one."""
    text = PRODUCT.replace("x: f32[8, 32]", "x: f32[4, 8, 32]").replace(
        "w: f32[32, 64]", "w: f32[4, 32, 64] strides (0, 64, 1)"
    )
    text = text.replace("y: f32[8, 64]", "y: f32[4, 8, 64]").replace(
        "loop i0 < 8, i1 < 64", "loop i < 4, i0 < 8, i1 < 64"
    )
    text = text.replace("x[i0", "x[i, i0").replace("w[r0", "w[i, r0").replace("y[i0", "y[i, i0")
    (loop,) = parse_program(text).body
    assert isinstance(loop, Loop)
    (found,) = patterns_in(loop).values()
    assert isinstance(found, Gemm)
    assert [a.attr for a in found.rows] == ["i", "i0"] and not found.batch


def test_a_kernel_has_one_tag() -> None:
    made = stages(lambda a, b: torch.softmax(a @ b, -1), drawn(512, 64), drawn(64, 256))
    (kernel,) = [k for k in made.kernels.kernels if any(p.summed for p in k.phases)]
    assert isinstance(kernel, Kernel) and len(kernel.phases) > 1
    assert [type(p.pattern) for p in kernel.phases if p.pattern is not None] == [Gemm]
