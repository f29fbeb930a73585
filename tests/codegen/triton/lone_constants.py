"""Constants that stand beside no tensor, in kernels that are built by hand.

In: the interpreter. Out: the kernels, or an error if one of them is refused or gives anything but
what NumPy says. A constant in the text of a kernel is a number of Python, which has neither a type
nor the methods of a tensor. Folding leaves few of them alone: an op over constants that has no
value at compile time, a rounding that a later stage asks for, and what a kernel has written and
reads again. `CASES` are part of the cases beside this file. Example: `lgamma(f32(2.5))`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from litz.codegen.triton.module import emit_kernel
from litz.ir.dtypes import BOOL, DTYPES, F32, F64, FP8_DTYPES, I32, I64, DType
from litz.ir.expr import Expr, apply, axis, bitcast, cast, const, load
from litz.ir.interpret import convert
from litz.ir.ops import OPS
from litz.ir.program import Buffer, Kernel, Phase, Store
from litz.target import NOT_ON_CUDA
from tests.codegen.native import buffer, pointwise, tensor
from tests.codegen.test_op_tables import NUMBERS, expression, takes, usable
from tests.stages import as_array

N = 5  # points of each kernel
POINT = axis("i0", N)
# Both are indices, divisors and exponents, and no two ops give the same of them.
PAIR = (2.5, 0.5)
WHOLE_PAIR = (7, 2)


def ran(
    there: Any, kernel: Kernel, given: dict[Buffer, Any], targets: dict[str, Buffer]
) -> tuple[dict[str, Any], Any]:
    """What the kernel stores, by name, and the kernel as it goes to the builder."""
    results, scheduled = there.run_kernel(kernel, {**given, **dict.fromkeys(targets.values())})
    found = {name: as_array(results[b.name]) for name, b in targets.items()}
    return found, emit_kernel(scheduled, "litz_0_lone")


def check_ops(dtype: DType, there: Any) -> list[Any]:
    """Every op over constants, and over one on either side; a cast behind it shows that it gives a
    tensor."""
    pair = PAIR if dtype.is_float else (True, False) if dtype is BOOL else WHOLE_PAIR
    numbers = [const(value, dtype) for value in pair]
    given = {buffer(f"x{k}", dtype, N): tensor([value] * N, dtype) for k, value in enumerate(pair)}
    loads = [load(b, (POINT,)) for b in given]
    made = []
    for operands in (numbers, [numbers[0], loads[1]], [loads[0], numbers[1]]):
        made.append(
            _check_ops(dtype, there, operands, given, [as_array(t) for t in given.values()])
        )
    return made


def _check_ops(
    dtype: DType, there: Any, operands: list[Expr], given: dict[Buffer, Any], columns: list[Any]
) -> Any:
    wide = F32 if dtype is F64 else F64
    values: dict[str, Expr] = {}
    for op in OPS:
        if takes(op, dtype) and op not in NOT_ON_CUDA and usable(op, dtype, columns).all():
            values[op] = cast(expression(op, dtype, operands), wide)
    targets = {op: buffer(f"y_{op}", wide, N) for op in values}
    kernel = pointwise((POINT,), {targets[op]: value for op, value in values.items()})
    found, made = ran(there, kernel, given, targets)
    exact = 64 * np.finfo(np.float32).eps if dtype.is_float else 0
    for op, result in found.items():
        expected = convert(_meaning(op, columns), wide)
        np.testing.assert_allclose(result, expected, rtol=exact, err_msg=f"{op} of {operands}")
    return made


def _meaning(op: str, columns: list[np.ndarray]) -> np.ndarray:
    """What `expression` of an op means."""
    if op == "where":
        return np.where(columns[0] < columns[1], *columns)
    if op in ("check", "check_index"):
        return columns[1] if op == "check" else columns[0]
    with np.errstate(all="ignore"):
        return np.asarray(OPS[op].numpy(*columns[: OPS[op].arity]))


def check_casts(there: Any) -> list[Any]:
    """A constant of every type as every other one, and its bits."""
    values: dict[str, Expr] = {}
    for source in DTYPES.values():
        for to in DTYPES.values():
            if source is not to:
                values[f"{source}_{to}"] = cast(const(1, source), to)
    values["bits_of_f32"] = bitcast(const(1.0, F32), I32)
    values["bits_of_f64"] = bitcast(const(1.0, F64), I64)
    targets = {name: buffer(name, value.dtype, N) for name, value in values.items()}
    found, made = ran(
        there, pointwise((POINT,), {targets[k]: v for k, v in values.items()}), {}, targets
    )
    bits = {"bits_of_f32": 0x3F800000, "bits_of_f64": 0x3FF0000000000000}
    for name, result in found.items():
        np.testing.assert_array_equal(result, np.full(N, bits.get(name, 1)), err_msg=name)
    return [made]


def check_kept(there: Any) -> list[Any]:
    """A constant that a kernel keeps, in memory and in registers, and reads again as a tensor:
    by a method, by an operator beside another constant, and where nothing else says its type."""
    kernels = []
    for dtype in (d for d in DTYPES.values() if d not in FP8_DTYPES):
        one, number = const(1, dtype), const(2**20 + 1, I64)
        kept, scratch, place = (
            buffer("kept", dtype, N),
            buffer("scratch", dtype, N),
            buffer("p", I64, N),
        )
        wide = I32 if dtype.is_float else F64
        values = {}
        for name, b in {"kept": kept, "held": scratch}.items():
            again = load(b, (POINT,))
            values[f"cast_{name}"] = cast(again, wide)
            values[f"same_{name}"] = apply("eq", again, one)
            values[f"either_{name}"] = apply("where", apply("eq", again, again), again, again)
        # The place itself is kept: it is arithmetic in 32 bits, and an i64 to who reads it.
        far = apply("mul", apply("mul", load(place, (POINT,)), number), number)
        values["far"] = far
        targets = {name: buffer(f"y_{name}", v.dtype, N) for name, v in values.items()}
        first = (
            Store(kept, (POINT,), one),
            Store(scratch, (POINT,), one),
            Store(place, (POINT,), POINT),
        )
        second = tuple(Store(targets[name], (POINT,), value) for name, value in values.items())
        kernel = Kernel(
            "k0_kept", (POINT,), (Phase((), False, first), Phase((), False, second)), (scratch,)
        )
        found, made = ran(there, kernel, {}, {**targets, "kept": kept, "place": place})
        far_away = np.arange(N) * (2**20 + 1) ** 2
        for name, result in found.items():
            expected = {"far": far_away, "place": np.arange(N)}.get(name, np.ones(N))
            np.testing.assert_array_equal(result, expected, err_msg=f"{name} of {dtype}")
        kernels.append(made)
    return kernels


CASES: dict[str, Callable[[Any], Any]] = {
    **{f"every op over constants of {d}": partial(check_ops, d) for d in NUMBERS},
    "every cast of a constant": check_casts,
    "constants that are kept": check_kept,
}
