"""Every op has one spelling, compiles for every type it takes, and means what its NumPy row says.

One kernel a type holds all ops, over all pairs of the numbers on which definitions differ.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

from litz.codegen.llvm.ops import CHECKED, INLINE_MATH, OP_EMITTERS
from litz.config import Config
from litz.config.flags import Cpp
from litz.ir.checks import CHECK_OPS
from litz.ir.dtypes import (
    BF16,
    BOOL,
    DTYPES,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    DType,
)
from litz.ir.expr import Expr, apply, axis, cast, integer, load, narrow
from litz.ir.interpret import convert
from litz.ir.ops import OPS
from litz.ir.program import Buffer
from tests.codegen.native import buffer, pointwise, run, tensor
from tests.stages import as_array

FLOATS = [0.0, -0.0, 1.0, -1.0, 0.3, -0.3, 0.5, -0.5, 2.5, -2.5, 3.5, -7.1, 1e-3, 40.0, -41.0]
FLOATS += [math.inf, -math.inf, math.nan, 1e-30]
INTEGERS = [0, 1, -1, 2, -2, 3, -3, 5, 7, -8, 9, 31, 63, 100, -100, 127, -128]
SMALL = [n for n in INTEGERS if n >= 0]
NUMBERS: dict[DType, list[float]] = {
    F32: FLOATS, F64: FLOATS, U8: [*SMALL, 200, 255], BOOL: [True, False],
    **{d: [*INTEGERS, (1 << (d.bits - 1)) - 1, -(1 << (d.bits - 1))] for d in (I8, I16, I32, I64)},
}  # fmt: skip
# Functions whose definition is their own test elsewhere (test_math, test_special): NumPy has none.
SPECIAL = """
    lgamma digamma zeta erfcx erfinv ndtri i0e i1e k0e k1e j0 j1 y0 y1 airy_ai chebyshev_t
    chebyshev_u chebyshev_v chebyshev_w hermite_h hermite_he laguerre_l legendre_p
"""
MEASURED_ELSEWHERE = frozenset(SPECIAL.split())
DIVIDING = {"floordiv", "truncdiv", "mod", "gcd", "check_divisor"}
BITWISE = {"and", "or", "xor", "not", "shl", "shr", "random_bits"}
ARITHMETIC = {"add", "sub", "mul", "neg", "abs", "pow", "shl", "shr", "random_bits"}


def test_every_op_has_exactly_one_spelling() -> None:
    tables = [set(OP_EMITTERS), set(INLINE_MATH), set(CHECKED)]
    assert set().union(*tables) == set(OPS)
    assert sum(map(len, tables)) == len(OPS)


def takes(op: str, dtype: DType) -> bool:
    if dtype.is_float:
        return op not in BITWISE | DIVIDING | {"check_index", "check_divisor"}
    if OPS[op].floats_only or (dtype is BOOL and op in ARITHMETIC | DIVIDING):
        return False
    return op not in ("check_index", "random_bits") or dtype is I64


def operands(dtype: DType, arity: int) -> list[np.ndarray]:
    """All pairs, in columns."""
    values = as_array(tensor(NUMBERS[dtype], dtype))
    grids = np.meshgrid(*[values] * min(arity, 2))
    return [g.ravel() for g in grids] + [grids[0].ravel()[::-1].copy()] * (arity - 2)


def expression(op: str, dtype: DType, loads: list[Expr]) -> Expr:
    """The op over loads; choosing and indexing take a condition and a size besides."""
    if op == "where":
        return apply(op, apply("lt", loads[0], loads[1]), *loads[:2])
    if op == "check_index":
        return apply(op, loads[0], integer(1 << 62))
    if op == "check":
        return apply(op, apply("ge", loads[0], loads[0]), integer(0), integer(0), loads[1])
    return apply(op, *loads[: OPS[op].arity])


def usable(op: str, dtype: DType, columns: list[np.ndarray]) -> np.ndarray:
    """Where the op has a meaning: not by zero, not of the least integer, no index below zero."""
    x, y = columns[0], columns[-1]
    if op == "check":  # of NaN the condition does not hold
        return x == x
    if op == "check_divisor":
        return x != 0
    if op in DIVIDING:
        least = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else -1
        return (y != 0) & (x != least) & (y != least)
    if op == "check_index":
        return (x >= 0) & (x < 1 << 62)
    return np.ones(len(x), bool)


@cache
def spelled(dtype: DType, lanes: int) -> dict[str, tuple[list[np.ndarray], np.ndarray]]:
    """Operands and result of every op over all pairs, all ops in one kernel."""
    found = {}
    groups: dict[int, list[str]] = {}
    for op in OPS:
        if takes(op, dtype) and op not in MEASURED_ELSEWHERE:
            groups.setdefault(int(op in DIVIDING | {*CHECK_OPS}), []).append(op)
    for names in groups.values():
        columns = operands(dtype, 2)
        keep = np.logical_and.reduce([usable(op, dtype, columns) for op in names])
        columns = [c[keep] for c in columns]
        n = len(columns[0])
        i = axis("i0", n)
        sources = [buffer(f"x{k}", dtype, n) for k in range(2)]
        loads = [load(b, (i,)) for b in sources]
        values = {op: expression(op, dtype, loads) for op in names}
        targets = {op: buffer(f"y_{op}", value.dtype, n) for op, value in values.items()}
        given: dict[Buffer, torch.Tensor | None] = {
            b: tensor(c, dtype) for b, c in zip(sources, columns, strict=True)
        }
        given |= dict.fromkeys(targets.values())
        config = Config(cpp=Cpp(simdlen=lanes))
        results, _ = run(pointwise((i,), {targets[op]: values[op] for op in names}), given, config)
        found |= {op: (columns, as_array(results[f"y_{op}"])) for op in names}
    return found


@pytest.mark.parametrize("lanes", [512, 32], ids=["vectors", "scalars"])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_every_op_means_what_numpy_says(dtype: DType, lanes: int) -> None:
    results = spelled(dtype, lanes)
    assert len(results) >= 10
    for op, (columns, found) in results.items():
        with np.errstate(all="ignore"):
            if op == "where":
                expected = np.where(columns[0] < columns[1], *columns)
            elif op == "check_index":
                expected = columns[0]
            elif op == "check":
                expected = columns[1]
            else:
                expected = OPS[op].numpy(*columns[: OPS[op].arity])
        if dtype.is_float and OPS[op].result == "same":
            exact = 64 * np.finfo(dtype.numpy).eps
            np.testing.assert_allclose(found, expected, rtol=exact, atol=exact * 1e-3, err_msg=op)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=op)


@pytest.mark.parametrize("source", DTYPES.values(), ids=str)
@pytest.mark.parametrize("lanes", [512, 32], ids=["vectors", "scalars"])
def test_every_cast(source: DType, lanes: int) -> None:
    values = [0.0, -0.0, 1.0, 0.3, 2.5, 100.0, 1.0 + 2**-9, 3e-8] if source.is_float else SMALL
    x = tensor([*values, *values, 1], source)
    n = len(x)
    i, b = axis("i0", n), buffer("x", source, n)
    targets = {to: buffer(f"y_{to}", to, n) for to in DTYPES.values() if to is not source}
    kernel = pointwise((i,), {t: cast(load(b, (i,)), to) for to, t in targets.items()})
    given: dict[Buffer, torch.Tensor | None] = {b: x, **dict.fromkeys(targets.values())}
    results, _ = run(kernel, given, Config(cpp=Cpp(simdlen=lanes)))
    for to, target in targets.items():
        expected = convert(as_array(x), to)
        np.testing.assert_array_equal(as_array(results[target.name]), expected, err_msg=str(to))


@pytest.mark.parametrize("half", [F16, BF16], ids=str)
def test_every_half_survives_widening_and_rounding(half: DType) -> None:
    """All 65,536 of them, and every float between two neighbours goes to the nearest."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16)
    x = bits.view(torch.bfloat16 if half is BF16 else torch.float16)
    n = len(x)
    i, b, wide, back = axis("i0", n), *(
        buffer(name, d, n) for name, d in (("x", half), ("w", F32), ("y", half))
    )  # fmt: skip
    value = cast(load(b, (i,)), F32)
    results, _ = run(pointwise((i,), {wide: value, back: narrow(value, half)}),
                     {b: x, wide: None, back: None})  # fmt: skip
    number = ~x.isnan()
    assert torch.equal(results["w"][number], x.float()[number])
    assert torch.equal(results["y"].view(torch.int16)[number], bits[number])
    assert results["y"][~number].isnan().all()
