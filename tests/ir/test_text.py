"""Printed programs rebuild themselves, stay linear in size, and bad text is told by its line."""

from __future__ import annotations

import time
from textwrap import dedent, indent

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from litz.errors import ParseError
from litz.ir.checks import CHECK_OPS, Site
from litz.ir.dtypes import BF16, BOOL, DTYPES, F32, F64, I64
from litz.ir.expr import Expr, apply, axis, cast, const, integer, load, narrow, reduce, scan, size
from litz.ir.ops import OPS
from litz.ir.parse import Scope, parse_expr, parse_graph, parse_kernel, parse_program
from litz.ir.program import (
    Buffer,
    Extern,
    Loop,
    LoopProgram,
    Origin,
    Output,
    Store,
    ViewArg,
)
from litz.ir.text import expr_text, graph_text, kernel_text, loop_text, program_text

PROGRAMS = {
    "softmax": """
        input x: f32[8, 128]
        buffer t0: f32[8, 1]
        buffer t1: f32[8, 128]
        buffer t2: f32[8, 1]
        buffer t3: f32[8, 128]
        loop i0 < 8 reduce r0 < 128:
          t0[i0, 0] = reduce.max(x[i0, r0], r0)
        loop i0 < 8, i1 < 128:
          t1[i0, i1] = exp(x[i0, i1] - t0[i0, 0])
        loop i0 < 8 reduce r0 < 128:
          t2[i0, 0] = reduce.sum(t1[i0, r0], r0)
        loop i0 < 8, i1 < 128:
          t3[i0, i1] = t1[i0, i1] / t2[i0, 0]
        output t3""",
    "guarded pad": """
        input x: f32[4, 5]
        buffer t0: f32[8, 5]
        loop i0 < 8, i1 < 5:
          let v0 = (i0 >= 2) & (i0 < 6)
          t0[i0, i1] = where(v0, guarded(v0, x[i0 - 2, i1]), f32(-inf))
        output t0""",
    "gather": """
        input table: f32[100, 16]
        input ids: i32[7]
        buffer t0: f32[7, 16]
        loop i0 < 7, i1 < 16:
          let v0 = cast.i64(ids[i0])
          t0[i0, i1] = table[check_index(where(v0 < 0, v0 + 100, v0), 100), i1]
        output t0""",
    "extern": """
        size s0 in 2..4096
        input x: f32[8, 128]
        input s0
        constant 'layers.0.weight': f32[16, 128]
        buffer t0: f32[8, 16] on cuda:0
        buffer t1: f32[128]
        extern t0 = aten.addmm.default(x, view('layers.0.weight', (128, 16), (1, 128), 0), alpha=2)
        extern (t1, None) = 'my::op'([1, size(s0 * 2)], (None,), 'it # is', **{'from': -inf})
        extern () = aten.fill_(x, 1.5, True, dtype=torch.float32) mutates x, t1
        output view(t0, (8,), (16,), 3)
        output None
        output size(s0 + 1)
        output 3""",
    "told": """
        size u0 in 0..8
        number zuf0 in -4611686018427387904..
        input x: f32[8]
        buffer t0: i64[u0, 1] strides (1, u0)
        buffer t1: f32[u0]
        extern t0 = aten.nonzero.default(x) binds (u0, 1, 'shape', 0)
        extern None = aten._local_scalar_dense.default(view(x, (), (), 3)) binds (zuf0, 1)
        extern () = aten._assert_scalar.default(size(u0 <= 8), ') binds (')
        loop i0 < u0:
          t1[i0] = cast.f32(t0[i0, 0]) + cast.f32(zuf0)
        output t1""",
    "bf16": """
        input x: bf16[64] strides (2,)
        buffer t0: bf16[64]
        loop i0 < 64:
          t0[i0] = narrow.bf16(cast.f32(cast.bf16(cast.f32(x[i0]) * f32(0.1))) + f32(1e-05))
        output t0""",
    "symbolic sizes": """
        size s0 in 2..4096
        size s1 in 0..
        input x: f32[s0, s1 * 2] strides (1, s0)
        buffer t0: i64[s0]
        buffer t1: f32[s0, s1 * 2]
        loop i0 < s0 reduce r0 < s1 * 2:
          t0[i0] = reduce.argmax(x[i0, r0], r0)
        loop i0 < s0, i1 < s1 * 2:
          t1[i0, i1] = scan.sum(x[i0, i1], i1)
        output t0""",
    "zero dimensions": """
        input x: f32[]
        buffer t0: i64[]
        loop:
          t0[()] = -3 - -5 - (x[()] < f32(0.0)) * neg(5)
        output t0""",
}


def program_of(lines: str) -> str:
    return "program:\n" + indent(dedent(lines).strip("\n"), "  ")


@pytest.mark.parametrize("lines", PROGRAMS.values(), ids=PROGRAMS)
def test_programs_print_as_they_read(lines: str) -> None:
    text = program_of(lines)
    program = parse_program(text)
    assert program_text(program) == text
    assert parse_program(program_text(program)) == program


KERNEL = """\
kernel softmax:
  buffer x: f32[8, 128]
  buffer y: f32[8, 128]
  outer i0 < 8
  scratch m: f32[]
  scratch e: f32[128]
  scratch s: f32[]
  phase reduce r0 < 128:
    m[()] = reduce.max(x[i0, r0], r0)
  phase i1 < 128:
    e[i1] = exp(x[i0, i1] - m[()])
  phase reduce r0 < 128:
    s[()] = reduce.sum(e[r0], r0)
  phase i1 < 128:
    y[i0, i1] = e[i1] / s[()]"""


def test_kernels_print_as_they_read() -> None:
    kernel = parse_kernel(KERNEL)
    assert kernel_text(kernel) == KERNEL
    assert [p.is_reduction for p in kernel.phases] == [True, False, True, False]
    assert [b.name for b in kernel.scratch] == ["m", "e", "s"]


def test_graphs_print_as_they_read() -> None:
    inner = "\n".join(line for line in KERNEL.splitlines() if "  buffer " not in line)
    text = "graph:\n" + indent(
        f"input x: f32[8, 128]\nbuffer y: f32[8, 128]\n{inner}\noutput y", "  "
    )
    graph = parse_graph(text)
    assert graph_text(graph) == text
    assert graph.kernels[0] == parse_kernel(KERNEL)


# -- against the constructors ----------------------------------------------------------------

ROW, COLUMN, LAST = axis("i0", 8), axis("i1", 128), axis("r0", 128)
X = Buffer("x", F32, (integer(8), integer(128)), (integer(128), integer(1)))
H = Buffer("h", BF16, (integer(8),), (integer(1),))
N = Buffer("n", I64, (integer(8),), (integer(1),))
SCOPE = Scope({"i0": ROW, "i1": COLUMN, "r0": LAST}, {b.name: b for b in (X, H, N)})
AT = load(X, (ROW, COLUMN))


def test_parsing_builds_what_the_constructors_build() -> None:
    total = Buffer("t0", F32, (integer(8),), (integer(1),))
    value = reduce("sum", (LAST,), load(X, (ROW, LAST)))
    origin = Origin("sum_1", "aten.sum", "model.py:12")
    loop = Loop((ROW,), (LAST,), (Store(total, (ROW,), value),), (origin,))
    whole = Output(ViewArg(total, total.shape, total.strides, integer(0)))
    program = LoopProgram((X,), (), (loop,), (whole,))
    text = program_text(program)
    assert "loop i0 < 8 reduce r0 < 128:  # aten.sum (model.py:12)" in text
    bare = Loop(loop.axes, loop.reduced, loop.stores)
    assert parse_program(text) == LoopProgram((X,), (), (bare,), (whole,))
    assert loop_text(bare).splitlines() == [
        "loop i0 < 8 reduce r0 < 128:",
        "  t0[i0] = reduce.sum(x[i0, r0], r0)",
    ]


def test_torch_values_of_extern_calls_come_back() -> None:
    values = (torch.float32, torch.device("cpu", 1), torch.channels_last, torch.strided)
    step = Extern("aten.to.dtype", values, (), (None,), True)
    program = LoopProgram((), (), (step,), ())
    assert parse_program(program_text(program)) == program


SPELLINGS = [
    (apply("sub", AT, apply("sub", AT, AT)), "x[i0, i1] - (x[i0, i1] - x[i0, i1])"),
    (apply("mul", apply("add", ROW, integer(1)), COLUMN), "(i0 + 1) * i1"),
    (apply("neg", apply("mul", ROW, COLUMN)), "-(i0 * i1)"),
    (apply("mul", apply("neg", ROW), COLUMN), "-i0 * i1"),
    (apply("neg", integer(5)), "neg(5)"),
    (apply("mul", integer(-5), ROW), "-5 * i0"),
    (apply("eq", apply("lt", ROW, COLUMN), apply("lt", COLUMN, ROW)), "(i0 < i1) == (i1 < i0)"),
    (apply("not", apply("and", apply("lt", ROW, COLUMN), const(True, BOOL))),
     "~((i0 < i1) & bool(True))"),
    (apply("max", AT, const(-0.0, F32)), "max(x[i0, i1], f32(-0.0))"),
    (const(0.1, F32), "f32(0.1)"),
    (const(0.1, F64), "f64(0.1)"),
    (const(float("nan"), F32), "f32(nan)"),
    (cast(load(H, (ROW,)), F32), "cast.f32(h[i0])"),
    (narrow(AT, BF16), "narrow.bf16(x[i0, i1])"),
    (scan("sum", COLUMN, AT), "scan.sum(x[i0, i1], i1)"),
    (load(X, (ROW, load(N, (ROW,)))), "x[i0, n[i0]]"),
]  # fmt: skip


@pytest.mark.parametrize(("node", "text"), SPELLINGS, ids=[text for _, text in SPELLINGS])
def test_spelling(node: Expr, text: str) -> None:
    assert expr_text(node) == text
    assert parse_expr(text, SCOPE) is node


@pytest.mark.parametrize("op", OPS)
def test_every_op_reads_back(op: str) -> None:
    node = apply(op, *[ROW, COLUMN, integer(-3), ROW][: OPS[op].arity])
    assert parse_expr(expr_text(node), SCOPE) is node
    nested = apply(op, *[node, apply("neg", node), integer(7), node][: OPS[op].arity])
    assert parse_expr(expr_text(nested), SCOPE) is nested


SITES = [
    Site("bounds"),
    Site("index", "aten.index.Tensor", 'a "b".py:3', 0, True),
    Site("value", text="x"),
]


@pytest.mark.parametrize("op", CHECK_OPS)
@pytest.mark.parametrize("site", SITES, ids=str)
def test_a_check_reads_back_with_who_asked_for_it(op: str, site: Site) -> None:
    node = apply(op, *[ROW, COLUMN, integer(-3), ROW][: OPS[op].arity], site=site)
    assert node is not apply(op, *node.args)
    assert parse_expr(expr_text(node), SCOPE) is node


@given(st.floats(width=64), st.sampled_from(["f64", "f32", "f16", "bf16"]))
def test_floats_read_back_bit_for_bit(value: float, dtype: str) -> None:
    node = const(value, DTYPES[dtype])
    again = parse_expr(expr_text(node), Scope())
    # Which of the many NaNs it is does not survive; its sign does.
    assert again is node or (value != value and expr_text(again) == expr_text(node))


@given(st.integers(-(2**70), 2**70), st.sampled_from(["i64", "i32", "i16", "i8", "u8", "bool"]))
def test_integers_read_back(value: int, dtype: str) -> None:
    node = const(value, DTYPES[dtype])
    assert parse_expr(expr_text(node), Scope()) is node


LEAVES = st.sampled_from([ROW, COLUMN, integer(2), integer(-1), size("s0", 1)])
TREES = st.recursive(
    LEAVES,
    lambda e: st.one_of(
        st.builds(apply, st.sampled_from([op for op in OPS if OPS[op].arity == 1]), e),
        st.builds(apply, st.sampled_from([op for op in OPS if OPS[op].arity == 2]), e, e),
    ),
    max_leaves=40,
)


@given(TREES)
def test_any_tree_reads_back(tree: Expr) -> None:
    target = Buffer("t0", tree.dtype, (), ())
    loop = Loop((ROW, COLUMN), (), (Store(target, (), tree),))
    program = LoopProgram((), (), (loop,), ())
    assert parse_program(program_text(program)) == program


# -- size ------------------------------------------------------------------------------------


def shared_chain(length: int) -> LoopProgram:
    """Each value is used three times by the next: 3^length loads, were it written as a tree."""
    value = AT
    for _ in range(length):
        value = apply("add", apply("mul", value, value), apply("exp", value))
    y = Buffer("y", F32, X.shape, X.strides)
    return LoopProgram((X,), (), (Loop((ROW, COLUMN), (), (Store(y, (ROW, COLUMN), value),)),), ())


def test_long_chains_cost_linear_time_and_text() -> None:
    program = shared_chain(4000)
    start = time.process_time()
    text = program_text(program)
    assert parse_program(text) == program
    assert time.process_time() - start < 5  # takes about 0.4 s
    assert len(text) < 4000 * 60
    assert max(map(len, text.splitlines())) < 200


def test_repr_of_a_large_value_is_short() -> None:
    value = shared_chain(4000).body[0].stores[0].value
    assert "..." in repr(value)
    assert len(repr(value)) < 2000
    assert "..." not in repr(shared_chain(2).body[0].stores[0].value)


# -- mistakes --------------------------------------------------------------------------------

MISTAKES = [
    ("input x: f32[8]\nloop i0 < 8:\n  x[i0] = y[i0]", 3, "there is no buffer 'y'"),
    ("input x: f32[8]\nloop i0 < 8:\n  x[i0] = i1", 3, "there is no axis, size or value 'i1'"),
    ("input x: f32[8]\nloop i0 < 8:\n  x[i0] = f32(1.0) +", 3, "not a Python expression"),
    ("input x: f32[8]\nloop i0 < 8:\n  x[i0] = sinn(x[i0])", 3, "there is no op 'sinn'"),
    ("input x: f32[8]\nloop i0 < 8:\n  x[i0] = sin(x[i0], x[i0])", 3, "sin takes 1 operands"),
    ("input x: f32[8]\nloop i0 < 8:\n  x[i0] = 0 < i0 < 3", 3, "not an expression of the IR"),
    ("input x: f32[8]\nloop i0 < 8:\n  x[i0] = reduce.mean(x[i0], i0)", 3, "no reduction 'mean'"),
    ("input x: q7[8]", 1, "there is no type 'q7'"),
    ("size s0 in 2", 1, "expected `name in low..high`"),
    ("input x: f32[8]\nx[0] = f32(1.0)", 2, "a store inside a loop"),
    ("input x: f32[8]\nloop i0 < 8:\n  x[i0] = 'q", 3, "a quote is not closed"),
    ("let v0 = 3", 1, "a let stands inside a loop"),
    ("loop i0 = 8:", 1, "not a Python expression"),
    ("loop i0 < 8", 1, "expected a colon"),
    ("phase i0 < 8:", 1, "inside a kernel"),
    ("kernel k:\n  phase:", 1, "expected loop or extern"),
]


@pytest.mark.parametrize(("text", "line", "why"), MISTAKES, ids=[why for *_, why in MISTAKES])
def test_mistakes_name_their_line(text: str, line: int, why: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert caught.value.line == line
    assert why in str(caught.value)
