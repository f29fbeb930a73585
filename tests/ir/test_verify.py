"""One program for each law, which breaks that law alone."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from litz.config import Config
from litz.errors import VerifyError
from litz.ir.dtypes import F32
from litz.ir.expr import apply, axis, const, integer, load, reduce, scan
from litz.ir.parse import parse_graph, parse_program
from litz.ir.program import Buffer, Loop, LoopProgram, Origin, Store
from litz.ir.verify import verify, verify_emitted, verify_schedule
from litz.target import host
from tests.toolchain import schedule

GOOD = """
    size s0 in 2..64
    input x: f32[8, 16]
    input n: i64[8]
    input z: f32[s0]
    constant c: f32[8]
    buffer m: f32[8]
    buffer t: f32[8, 16]
    buffer u: f32[10, 16]
    buffer w: f32[8]
    buffer y: f32[8]
    loop i0 < 8 reduce r0 < 16:
      m[i0] = reduce.max(x[i0, r0], r0)
    loop i0 < 8, i1 < 16:
      t[i0, i1] = where(i0 < 3, x[i0, i1] - m[i0], f32(0.0)) + c[i0]
    loop i0 < 8, i1 < 16:
      u[i0, i1] = x[check_index(n[i0], 8), i1]
    loop i0 < 2, i1 < 16:
      u[i0 + 8, i1] = guarded(i0 >= 1, x[i0 - 1, i1])
    extern w = aten.sum(t, (1,)) mutates t
    loop i0 < 8:
      x[i0, 0] = x[i0, 0] + w[i0]
      y[i0] = x[i0, 0]
    output u
    output y
"""

BAD_LINES = [
    # order
    ("t[i0, i1] = where", "t[i0, i1] = u[i0, i1] + where", "u is read before it is written"),
    ("aten.sum(t,", "aten.sum(y,", "y is read before it is written"),
    ("mutates t", "mutates y", "y is read before it is written"),
    ("output u", "output y\n buffer v: f32[2]\n output v", "v is read before it is written"),
    ("y[i0] = x[i0, 0]", "y[i0] = x[7 - i0, 0]", "x is read at another place than it is stored"),
    # whole
    ("loop i0 < 2, i1 < 16", "loop i0 < 1, i1 < 16", "144 of 160 elements of u are written"),
    ("u[i0 + 8, i1]", "u[i0 + 8, 3]", "130 of 160 elements of u are written"),
    ("loop i0 < 8 reduce", "loop i0 < 4 reduce", "4 of 8 elements of m are written"),
    # once
    ("output u", "loop i0 < 8:\n m[i0] = f32(0.0)\n output u", "m is written twice"),
    ("u[i0 + 8, i1] = g", "u[i0 + 8, i1] = f32(1.0)\n u[i0 + 8, i1] = g", "u is written twice"),
    ("extern w", "extern m", "m is written twice"),
    # scope
    ("m[i0] = reduce", "m[r0 // 2] = reduce", "r0 is reduced, but used in a store's index"),
    ("m[i0] = red", "m[i0] = x[i0, r0] + red", "r0 is reduced, but used in a value outside"),
    ("y[i0] = x[i0, 0]", "y[i0] = reduce.sum(x[i0, 0], i0)", "i0 is not a reduced axis here"),
    ("loop i0 < 2, i1 < 16", "loop i0 < 2, i1 < 16, i0 < 16", "two axes of a nest have one name"),
    # types
    ("x[i0, i1] - m[i0]", "x[i0, i1] - n[i0]", "sub of f32 and i64"),
    ("where(i0 < 3,", "where(i0,", "where chooses by i64, not by bool"),
    ("where(i0 < 3,", "where(i0 < c[i0],", "lt of i64 and f32"),
    ("m[i0], f32(0.0))", "m[i0], f64(0.0))", "where of f32 and f64"),
    ("i0 < 3,", "(i0 < 3) & (exp(i0) < i0),", "exp takes floats, not i64"),
    ("+ c[i0]", "+ (c[i0] ^ c[i0])", "xor takes integers, not f32"),
    ("= guarded(", "= f64(0.5) #", "u holds f32, but f64 is stored"),
    ("guarded(i0 >= 1,", "guarded(i0,", "a guard is bool, not i64"),
    ("m[i0], f32", "m[c[i0]], f32", "an index is i64, not f32"),
    ("m[i0], f32", "m[i0, i1], f32", "m has 1 dimensions, but 2 indices"),
    ("y[i0] = x", "y[i0, 0] = x", "y has 1 dimensions, but 2 indices"),
    # range
    ("m[i0], f32", "m[i0 + 1], f32", "i0 + 1 leaves 0..8 of m"),
    ("m[i0], f32", "m[i0 * 2 - 1], f32", "i0 * 2 - 1 leaves 0..8 of m"),
    ("m[i0], f32", "m[i1], f32", "i1 leaves 0..8 of m"),
    ("m[i0], f32", "m[8], f32", "8 leaves 0..8 of m"),
    ("loop i0 < 2, ", "loop i0 < 3, ", "i0 + 8 leaves 0..10 of u"),
    ("output u", "loop i0 < s0 + 1:\n z[i0] = f32(0.0)\n output u", "i0 leaves 0..s0 of z"),
]  # fmt: skip


def failure(program: object) -> str:
    with pytest.raises(VerifyError) as caught:
        verify(program)
    return str(caught.value)


def test_a_lawful_program_passes() -> None:
    verify(parse_program(GOOD))


@pytest.mark.parametrize(("old", "new", "law"), BAD_LINES, ids=[law for *_, law in BAD_LINES])
def test_laws_of_programs(old: str, new: str, law: str) -> None:
    assert GOOD.count(old) == 1
    assert law in failure(parse_program(GOOD.replace(old, new)))


def test_a_size_is_known_behind_the_call_that_tells_it() -> None:
    head = """program:
        size u0 in 0..8
        input x: f32[8]
        buffer t: i64[u0, 1]
        buffer y: f32[u0]
    """
    tells = "extern t = aten.nonzero.default(x) binds (u0, 1, 'shape', 0)\n"
    uses = "loop i0 < u0:\n y[i0] = x[i0]\n"
    verify(parse_program(f"{head}{tells}{uses}output y"))
    told = failure(parse_program(f"{head}{uses}{tells}output y"))
    assert "the size u0 is used before the call that tells it" in told


# -- what the text cannot say ----------------------------------------------------------------

I0, I1 = axis("i0", 8), axis("i1", 16)
X = Buffer("x", F32, (integer(8),), (integer(1),))
Y = Buffer("y", F32, (integer(8),), (integer(1),))


def test_a_stray_axis_is_shown_with_its_surroundings() -> None:
    value = apply("exp", load(X, (I1,), apply("lt", I1, integer(8))))
    loop = Loop((I0,), (), (Store(Y, (I0,), value),), (Origin("exp_1", "aten.exp", "model.py:12"),))
    assert failure(LoopProgram((X,), (), (loop,), ())).splitlines()[:-1] == [
        "i1 is not an axis here",
        "  at     i1: i64",
        "  of     16: i64",
        "  inside i1 < 8: bool",
        "  inside guarded(i1 < 8, x[i1]): f32",
        "  stored y[i0] = exp(guarded(i1 < 8, x[i1]))",
        "  in     loop i0 < 8:  # aten.exp (model.py:12)",
    ]


def test_an_axis_of_another_extent_is_another_axis() -> None:
    loop = Loop((I0,), (), (Store(Y, (I0,), load(X, (axis("i0", 4),))),))
    assert "i0 is not an axis here" in failure(LoopProgram((X,), (), (loop,), ()))


def test_one_name_is_one_buffer() -> None:
    other = Buffer("x", F32, (integer(9),), (integer(1),))
    loop = Loop((I0,), (), (Store(Y, (I0,), load(other, (I0,))),))
    assert "two different buffers are called x" in failure(LoopProgram((X,), (), (loop,), ()))


def test_a_reduction_binds_axes_and_a_scan_follows_one() -> None:
    nothing = reduce("sum", (), load(X, (I0,)))
    loop = Loop((I0,), (), (Store(Y, (I0,), nothing),))
    assert "binds at least one axis" in failure(LoopProgram((X,), (), (loop,), ()))
    along_two = scan("sum", apply("add", I0, integer(1)), load(X, (I0,)))
    loop = Loop((I0,), (), (Store(Y, (I0,), along_two),))
    assert "a scan runs along an axis" in failure(LoopProgram((X,), (), (loop,), ()))


# -- kernels ---------------------------------------------------------------------------------

KERNEL = """
    input x: f32[8, 16]
    buffer y: f32[8, 16]
    kernel normalise:
      outer i0 < 8
      scratch m: f32[]
      scratch e: f32[16]
      scratch n: f32[]
      phase reduce r0 < 16:
        m[()] = reduce.sum(x[i0, r0], r0)
      phase reduce r0 < 16:
        e[r0] = x[i0, r0] / m[()]
        n[()] = reduce.sum(x[i0, r0] / m[()], r0)
      phase i1 < 16:
        y[i0, i1] = e[15 - i1]
      phase i1 < 16:
        x[i0, i1] = y[i0, 15 - i1]
    output y
"""

BAD_KERNELS = [
    ("e[r0] = x[i0, r0]", "e[r0] = e[r0]", "e is read before it is written"),
    ("n[()] = reduce.sum(x[i0, r0]", "n[()] = reduce.sum(e[r0]", "e is read while the same phase"),
    ("reduce.sum(x[i0, r0], r0)", "reduce.sum(e[r0], r0)", "e is read before it is written"),
    ("= e[15 - i1]", "= reduce.sum(e[15 - i1], i1)", "i1 is not a reduced axis here"),
    ("m[()] = reduce.sum(x[i0, r0], r0)", "m[r0] = f32(1.0)", "m has 0 dimensions, but 1 indices"),
    ("m[()] = red", "m[()] = x[i0, r0] + red", "r0 is reduced, but used in a value outside"),
    ("y[i0, 15 - i1]", "y[7 - i0, 15 - i1]", "y is written by another outer iteration"),
    ("y[i0, 15 - i1]", "y[0, i1]", "y is written by another outer iteration"),
    ("= e[15 - i1]", "= x[i0, i1] + x[7 - i0, i1]", "x is written by another outer iteration"),
    ("output y", "output e", "e is read before it is written"),
    (
        "phase i1 < 16:\n        y[i0, i1]",
        "phase i1 < 8:\n        y[i0, i1]",
        "64 of 128 elements of y",
    ),
    ("e[r0] = x[i0, r0]", "e[0] = x[i0, 3]", "1 of 16 elements of e are written"),
]


def test_a_lawful_kernel_passes() -> None:
    graph = parse_graph(KERNEL)
    verify(graph)
    verify(graph.kernels[0])


@pytest.mark.parametrize(("old", "new", "law"), BAD_KERNELS, ids=[n for _, n, _ in BAD_KERNELS])
def test_laws_of_kernels(old: str, new: str, law: str) -> None:
    assert KERNEL.count(old) == 1
    graph = parse_graph(KERNEL.replace(old, new))
    assert law in failure(graph)
    alone = not old.startswith(("output", "phase i1"))  # what its graph may have written, is there
    if alone:
        assert law in failure(graph.kernels[0])


UPDATE = """
    input x: f32[8, 16]
    buffer y: f32[8, 32]
    kernel update:
      outer i0 < 8, i1 < 16
      phase:
        y[i0, i1] = x[i0, i1]
      phase:
        y[i0, i1 + 16] = x[i0, i1]
        x[i0, i1] = x[i0, i1] + f32(1.0)
    output y
"""


def test_no_phase_reads_an_input_that_an_earlier_one_has_updated() -> None:
    verify(parse_graph(UPDATE))
    line = "        x[i0, i1] = x[i0, i1] + f32(1.0)\n"
    first = "        y[i0, i1] = x[i0, i1]\n"
    early = parse_graph(UPDATE.replace(line, "").replace(first, first + line))
    assert "x is read behind its update in place" in failure(early)


# -- a kernel and what becomes of it ---------------------------------------------------------


def test_a_schedule_stores_as_many_elements_as_its_kernel() -> None:
    (kernel,) = parse_graph(UPDATE).kernels
    made = schedule(kernel, host(), Config())
    verify_schedule(kernel, made)
    short = replace(made, kernel=replace(made.kernel, phases=made.kernel.phases[:1]))
    with pytest.raises(VerifyError, match="128 elements of y are stored, and not 256"):
        verify_schedule(kernel, short)


def test_every_store_has_code() -> None:
    (kernel,) = parse_graph(UPDATE).kernels
    flat = schedule(kernel, host(), Config()).kernel
    places = [(s.buffer, s.index[0]) for s in flat.stores]
    verify_emitted(flat, set(places))
    verify_emitted(flat, {(b, None) for b, _ in places})
    with pytest.raises(VerifyError, match=r"no code was written that stores b0\["):
        verify_emitted(flat, set(places[1:]))


def test_verifying_costs_linear_time() -> None:
    value = load(X, (I0,))
    for _ in range(4000):
        value = apply("add", apply("mul", value, value), const(1, F32))
    start = time.process_time()
    verify(LoopProgram((X,), (), (Loop((I0,), (), (Store(Y, (I0,), value),)),), ()))
    assert time.process_time() - start < 2  # takes about 0.03 s
