"""Kernels built by hand: lanes and tails, guards, gathers, rows in lanes and lanes of rows, tasks.

The oracle is the interpreter, over the kernel as it was written and as it was scheduled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from litz.config import Config
from litz.config.flags import Cpp
from litz.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from litz.ir.expr import Expr, apply, axis, cast, const, integer, load, narrow, reduce, scan
from litz.ir.interpret import run_kernels
from litz.ir.program import Buffer, Kernel, KernelGraph, Phase, Store
from litz.ir.scheduled import ScheduledKernel
from tests import draws
from tests.codegen.native import buffer, pointwise, run, tensor
from tests.stages import as_array

Given = dict[Buffer, torch.Tensor | None]


def arrays(given: Given) -> list[np.ndarray[Any, Any]]:
    made = []
    for b, value in given.items():
        shape = [n.number for n in b.shape]
        made.append(np.ones(shape, b.dtype.numpy) if value is None else as_array(value))
    return made


def oracle(kernel: Kernel, given: Given) -> dict[str, np.ndarray[Any, Any]]:
    """What the interpreter leaves in each buffer."""
    left = arrays(given)
    run_kernels(KernelGraph(tuple(given), (), (kernel,), ()), left)
    return {b.name: a for b, a in zip(given, left, strict=True)}


def flat_oracle(made: ScheduledKernel, given: Given) -> dict[str, np.ndarray[Any, Any]]:
    """The same for the scheduled kernel, over flat buffers."""
    values = dict(zip((b.name for b in given), arrays(given), strict=True))
    flat = {b.name: b for b in (*made.kernel.writes, *made.kernel.reads)}
    inputs = [flat[f"b{k}"] for k in range(len(made.arguments))]
    left = [values[b.name].ravel().copy() for b in made.arguments]
    run_kernels(KernelGraph(tuple(inputs), (), (made.kernel,), ()), left)
    pairs = zip(made.arguments, left, strict=True)
    return {b.name: a.reshape([n.number for n in b.shape]) for b, a in pairs}


def check(kernel: Kernel, given: Given, **cpp: Any) -> ScheduledKernel:
    """Machine code, the schedule and the kernel leave the same numbers."""
    results, made = run(kernel, given, Config(cpp=Cpp(**cpp)))
    expected, scheduled = oracle(kernel, given), flat_oracle(made, given)
    for b in given:
        wide = b.dtype.is_float and not b.dtype.is_half
        rtol, atol = (1e-5, 1e-6) if wide else (1e-2 * b.dtype.is_half, 0)
        found = as_array(results[b.name]).astype(np.float64)
        for source in (expected, scheduled):
            wanted = source[b.name].astype(np.float64)
            np.testing.assert_allclose(found, wanted, rtol, atol, err_msg=b.name)
    return made


def random(b: Buffer, seed: int = 0) -> torch.Tensor:
    made = draws.generator(seed)
    values = 4 * torch.randn([n.number for n in b.shape], generator=made)
    return tensor(values.abs() if b.dtype is U8 else values, b.dtype)


LENGTHS = [1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 97]
WIDTHS = [512, 256, 128, 32]


@pytest.mark.parametrize("simdlen", WIDTHS)
def test_every_length_has_its_tail(simdlen: int) -> None:
    """One kernel a length; the margins around each buffer are watched."""
    for n in LENGTHS:
        i, x, y = axis("i0", n), buffer("x", F32, n), buffer("y", F32, n)
        made = check(pointwise((i,), {y: apply("mul", load(x, (i,)), const(2, F32))}),
                     {x: random(x), y: None}, simdlen=simdlen)  # fmt: skip
        assert made.choice.lanes <= max(simdlen // 32, 1)


NARROWED = [(I64, I8), (I64, I32), (I32, I8), (I32, I16), (F32, BF16), (F64, F16), (I64, BOOL)]


@pytest.mark.parametrize("source, target", NARROWED, ids=str)
def test_a_tail_of_one_narrowed_element_is_stored_alone(source: DType, target: DType) -> None:
    """LLVM 22 joins a truncation with a masked store of one lane and stores the wide element."""
    for n, simdlen in ((1, 512), (17, 512), (33, 512), (17, 256), (5, 128)):
        i, x, y = axis("i0", n), buffer("x", source, n), buffer("y", target, n)
        value = load(x, (i,))
        narrowed = narrow(value, target) if target.is_half else cast(value, target)
        check(pointwise((i,), {y: narrowed}), {x: random(x), y: None}, simdlen=simdlen)


@pytest.mark.parametrize("dtype", [F32, F64, BF16, F16, I64, I32, I16, I8, U8, BOOL], ids=str)
def test_every_type_moves(dtype: DType) -> None:
    """Side by side, across (a gather), by one for all, and scattered."""
    rows, columns = 5, 19
    i, j = axis("i0", rows), axis("i1", columns)
    x, t = buffer("x", dtype, rows, columns), buffer("t", dtype, columns, rows)
    r = buffer("r", dtype, rows)
    y, z = (buffer(name, dtype, rows, columns) for name in "yz")
    chosen = apply("where", apply("lt", i, integer(2)), load(t, (j, i)), load(r, (i,)))
    kernel = pointwise((i, j), {y: load(x, (i, j)), z: chosen})
    check(kernel, {x: random(x), t: random(t, 1), r: random(r, 2), y: None, z: None})
    transposed = Kernel("k0", (i, j), (Phase((), False, (Store(t, (j, i), load(x, (i, j))),)),), ())
    check(transposed, {x: random(x), t: None})


@pytest.mark.parametrize("simdlen", [512, 32])
def test_a_guard_is_not_read_through(simdlen: int) -> None:
    """Where it is false the address may be anything, and the value is zero."""
    n = 37
    i, x, y, z = axis("i0", n), *(buffer(name, F32, n) for name in "xyz")
    far = apply("add", apply("mul", i, integer(1 << 40)), integer(-5))
    inside = apply("and", apply("ge", i, integer(5)), apply("lt", i, integer(30)))
    near = apply("where", inside, apply("sub", i, integer(5)), far)
    kernel = pointwise((i,), {
        y: load(x, (apply("sub", i, integer(5)),), inside),
        z: load(x, (near,), inside),
    })  # fmt: skip
    given: Given = {x: random(x), y: None, z: None}
    results, _ = run(kernel, given, Config(cpp=Cpp(simdlen=simdlen)))
    expected = torch.zeros(n)
    expected[5:30] = given[x][:25]  # type: ignore[index]
    assert torch.equal(results["y"], expected)
    assert torch.equal(results["z"], expected)


def reduction(kind: str, dtype: DType, rows: int, columns: int, *, across: bool) -> (
    tuple[Kernel, Given]
):  # fmt: skip
    """One reduction of a matrix along its rows, or down its columns."""
    o, j = axis("o0", rows), axis("j0", columns)
    x = buffer("x", dtype, *((columns, rows) if across else (rows, columns)))
    value = load(x, (j, o) if across else (o, j))
    wide = cast(value, dtype.compute)
    total = reduce(kind, (j,), wide)
    y = buffer("y", total.dtype, rows)
    kernel = Kernel("k0", (o,), (Phase((j,), True, (Store(y, (o,), total),)),), ())
    return kernel, {x: random(x), y: None}


FOLDED = ("sum", "max", "min", "prod", "argmax", "argmin")
KINDS = [(kind, dtype) for kind in FOLDED for dtype in (F32, BF16, I64, U8)]
KINDS += [("any", BOOL), ("all", BOOL), ("sum", F64), ("max", I8)]


@pytest.mark.parametrize("across", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("kind, dtype", KINDS, ids=str)
def test_reductions(kind: str, dtype: DType, across: bool) -> None:
    for rows, columns in ((3, 1), (2, 7), (3, 67), (40, 9)):
        check(*reduction(kind, dtype, rows, columns, across=across))


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_equal_lanes_give_the_first_position(kind: str) -> None:
    """Each row is flat but for a step at another place."""
    for n in (5, 16, 70, 130):
        kernel, given = reduction(kind, F32, n, n, across=False)
        (x, _) = given
        step = torch.ones(n, n).triu()
        given[x] = step if kind == "argmax" else -step
        assert torch.equal(run(kernel, given)[0]["y"], torch.arange(n))


def softmax(rows: int, columns: int) -> tuple[Kernel, Given]:
    """Three phases with two scratch rows, as `fuse` would make it."""
    o, j = axis("o0", rows), axis("j0", columns)
    x, y = buffer("x", F32, rows, columns), buffer("y", F32, rows, columns)
    top, row, total = buffer("top", F32), buffer("row", F32, columns), buffer("total", F32)
    value = load(x, (o, j))
    raised = apply("exp", apply("sub", value, load(top, ())))
    summed = reduce("sum", (j,), raised)
    kernel = Kernel("k0_softmax", (o,), (
        Phase((j,), True, (Store(top, (), reduce("max", (j,), value)),)),
        Phase((j,), True, (Store(row, (j,), raised), Store(total, (), summed))),
        Phase((j,), False, (Store(y, (o, j), apply("div", load(row, (j,)), load(total, ()))),)),
    ), (top, row, total))  # fmt: skip
    return kernel, {x: random(x), y: None}


@pytest.mark.parametrize("simdlen", WIDTHS)
def test_phases_share_a_row_in_scratch(simdlen: int) -> None:
    for rows, columns in ((1, 1), (3, 5), (2, 16), (4, 33), (70, 3)):
        check(*softmax(rows, columns), simdlen=simdlen)


def test_a_row_in_each_lane_has_its_own_scratch() -> None:
    """Down the columns of a matrix the lanes are rows, and scratch has one copy for each."""
    rows, columns = 64, 5
    o, j = axis("o0", rows), axis("j0", columns)
    x, y = buffer("x", F32, columns, rows), buffer("y", F32, columns, rows)
    row, total = buffer("row", F32, columns), buffer("total", F32)
    value = apply("exp", load(x, (j, o)))
    kernel = Kernel("k0", (o,), (
        Phase((j,), True, (Store(row, (j,), value), Store(total, (), reduce("sum", (j,), value)))),
        Phase((j,), False, (Store(y, (j, o), apply("div", load(row, (j,)), load(total, ()))),)),
    ), (row, total))  # fmt: skip
    made = check(kernel, {x: random(x), y: None})
    assert made.choice.vector is not None


@pytest.mark.parametrize("across", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min"])
def test_scans(kind: str, across: bool) -> None:
    for rows, columns in ((1, 1), (3, 20), (33, 4)):
        o, j = axis("o0", rows), axis("j0", columns)
        x = buffer("x", F32, *((columns, rows) if across else (rows, columns)))
        y = buffer("y", F32, *((columns, rows) if across else (rows, columns)))
        place = (j, o) if across else (o, j)
        value = scan(kind, j, load(x, place))
        kernel = Kernel("k0", (o,), (Phase((j,), False, (Store(y, place, value),)),), ())
        check(kernel, {x: random(x) / 4, y: None})


def test_an_indirect_index_is_checked_in_every_lane() -> None:
    n = 37
    i, x, y = axis("i0", n), buffer("x", F32, 9), buffer("y", F32, n)
    index = buffer("index", I64, n)
    kernel = pointwise((i,), {y: load(x, (apply("check_index", load(index, (i,)), integer(9)),))})
    good = torch.arange(n) % 9
    check(kernel, {x: random(x), index: good, y: None})
    for place in (0, 16, 36):
        for bad in (9, -1):
            wrong = good.clone()
            wrong[place] = bad
            with pytest.raises(IndexError):
                run(kernel, {x: random(x), index: wrong, y: None})


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_tasks_are_shared_among_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        cpp = {"threads": threads, "min_chunk_size": 1}
        check(*softmax(23, 17), **cpp)
        i, x, y = axis("i0", 1003), buffer("x", F32, 1003), buffer("y", F32, 1003)
        check(pointwise((i,), {y: apply("exp", load(x, (i,)))}), {x: random(x), y: None}, **cpp)
        check(*reduction("sum", F32, 130, 31, across=True), **cpp)
    finally:
        torch.set_num_threads(before)


def test_index_arithmetic_of_any_form_reads_the_right_place() -> None:
    """Divisions that no schedule can split: 7 does not divide 36."""
    n = 36
    i, x, y = axis("i0", n), buffer("x", F32, 6, 7), buffer("y", F32, n)
    place: tuple[Expr, ...] = (apply("floordiv", i, integer(7)), apply("mod", i, integer(7)))
    check(pointwise((i,), {y: load(x, place)}), {x: random(x), y: None})
