"""The op table: every scalar operation of the loop IR, one row each.

In: nothing. Out: `OPS[name] -> OpSpec`, `REDUCTIONS[name] -> ReductionSpec` and
`SCANS[name] -> ScanSpec`. A row gives the number of operands, the result type, the cost (in float
additions, for fusion) and the meaning, as a NumPy function over arrays. Each target has a table of
its own with the code of each op; `tests/codegen/test_op_tables.py` asserts that all are complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from litz.ir.dtypes import DType
from litz.ir.philox import random_bits
from litz.ir.special import POLYNOMIALS, SPECIAL

Numpy = Callable[..., Any]


@dataclass(frozen=True)
class OpSpec:
    """`result` is "same" (type of the last operand), "bool", or "index" (the first operand's)."""

    name: str
    arity: int
    result: str
    cost: int
    numpy: Numpy
    floats_only: bool = False
    commutative: bool = False


@dataclass(frozen=True)
class ScanSpec:
    """`combine` is the op that joins the next element. `cost` is its latency in float additions,
    for which the element after it has to wait; `numpy(values, axis)` is the meaning."""

    name: str
    combine: str
    cost: int
    numpy: Numpy
    gives_index: bool = False


@dataclass(frozen=True)
class ReductionSpec:
    """`combine` is the op that joins two elements; `numpy(values, axes)` is the meaning. A kind
    that `widens` gives an f64."""

    name: str
    combine: str
    numpy: Numpy
    gives_index: bool = False
    widens: bool = False


def _elementwise(function: Callable[[float], float]) -> Numpy:
    return np.vectorize(function, otypes=[np.float64])


def _keep_type(function: Numpy) -> Numpy:
    """Give the result its operand's type: math libraries return float64."""

    def meaning(x: Any, *rest: Any) -> Any:
        return np.asarray(function(x, *rest)).astype(np.asarray(x).dtype)

    return meaning


def _nan_max(x: Any, y: Any) -> Any:
    return np.maximum(x, y)


def _floor_divide(x: Any, y: Any) -> Any:
    return np.floor_divide(x, np.where(y == 0, 1, y).astype(np.asarray(y).dtype))


def _truncate_divide(x: Any, y: Any) -> Any:
    safe = np.where(y == 0, 1, y).astype(np.asarray(y).dtype)
    quotient = np.floor_divide(x, safe)
    inexact = quotient * safe != x
    return np.where(inexact & ((x < 0) != (safe < 0)), quotient + 1, quotient).astype(
        np.asarray(x).dtype
    )


def _modulo(x: Any, y: Any) -> Any:
    safe = np.where(y == 0, 1, y).astype(np.asarray(y).dtype)
    return np.mod(x, safe)


def _float_remainder(x: Any, y: Any) -> Any:
    """The sign follows the divisor; a zero divisor gives NaN, as in eager."""
    remainder = np.fmod(x, y)
    return np.where((remainder != 0) & ((remainder < 0) != (y < 0)), remainder + y, remainder)


def _power(x: Any, y: Any) -> Any:
    if np.issubdtype(np.asarray(x).dtype, np.integer):
        # An integer power wraps; with a negative exponent all bases but 1 and -1 give 0.
        positive = np.power(x, np.maximum(y, 0))
        odd = np.where(y % 2 == 0, 1, x)
        tiny = np.where(x == 1, 1, np.where(x == -1, odd, 0))
        return np.where(y < 0, tiny, positive).astype(np.asarray(x).dtype)
    return np.power(x, y)


def _sigmoid(x: Any) -> Any:
    one = np.asarray(1, dtype=np.asarray(x).dtype)
    return one / (one + np.exp(-x))


def _shift_left(x: Any, y: Any) -> Any:
    width = np.asarray(x).dtype.itemsize * 8
    return np.where((y < 0) | (y >= width), 0, np.left_shift(x, np.clip(y, 0, width - 1))).astype(
        np.asarray(x).dtype
    )


def _shift_right(x: Any, y: Any) -> Any:
    """Past the width only the sign is left."""
    dtype = np.asarray(x).dtype
    outside = (y < 0) | (y >= 8 * dtype.itemsize)
    shifted = np.right_shift(x, np.where(outside, 8 * dtype.itemsize - 1, y))
    return np.where(outside & (dtype.kind == "u"), 0, shifted).astype(dtype)


def _sign(x: Any) -> Any:
    # Eager's sign of NaN is 0; NumPy's is NaN.
    return np.where(np.isnan(x), 0, np.sign(x)).astype(np.asarray(x).dtype)


def _unary(name: str, cost: int, numpy: Numpy, *, floats: bool = True) -> OpSpec:
    return OpSpec(name, 1, "same", cost, numpy, floats_only=floats)


def _binary(name: str, cost: int, numpy: Numpy, *, floats: bool = False) -> OpSpec:
    commutes = name in ("add", "mul", "min", "max", "and", "or", "xor")
    return OpSpec(name, 2, "same", cost, numpy, floats_only=floats, commutative=commutes)


def _compare(name: str, numpy: Numpy) -> OpSpec:
    return OpSpec(name, 2, "bool", 1, numpy, commutative=name in ("eq", "ne"))


_erf = _keep_type(_elementwise(math.erf))
_erfc = _keep_type(_elementwise(math.erfc))

_ROWS = [
    # arithmetic
    _binary("add", 1, np.add),
    _binary("sub", 1, np.subtract),
    _binary("mul", 1, np.multiply),
    _binary("div", 4, np.divide, floats=True),
    _binary("floordiv", 6, _floor_divide),
    _binary("truncdiv", 6, _truncate_divide),
    _binary("mod", 6, _modulo),
    _binary("remainder", 12, _float_remainder, floats=True),
    _binary("fmod", 10, np.fmod, floats=True),
    _binary("pow", 30, _power),
    _binary("min", 1, np.minimum),
    _binary("max", 1, _nan_max),
    _binary("atan2", 24, np.arctan2, floats=True),
    _binary("hypot", 8, np.hypot, floats=True),
    _binary("zeta", 400, SPECIAL["zeta"], floats=True),
    _binary("gcd", 100, np.gcd),
    _binary("copysign", 1, np.copysign, floats=True),
    _binary("and", 1, np.bitwise_and),
    _binary("or", 1, np.bitwise_or),
    _binary("xor", 1, np.bitwise_xor),
    _binary("shl", 1, _shift_left),
    _binary("shr", 1, _shift_right),
    _unary("neg", 1, np.negative, floats=False),
    _unary("abs", 1, np.abs, floats=False),
    _unary("not", 1, np.invert, floats=False),
    _unary("sign", 2, _sign),
    # rounding
    _unary("floor", 1, np.floor),
    _unary("ceil", 1, np.ceil),
    _unary("trunc", 1, np.trunc),
    _unary("round", 1, np.rint),
    # powers, exponentials, trigonometry
    _unary("sqrt", 4, np.sqrt),
    _unary("rsqrt", 6, lambda x: (1 / np.sqrt(x)).astype(np.asarray(x).dtype)),
    _unary("exp", 12, np.exp),
    _unary("exp2", 12, np.exp2),
    _unary("expm1", 16, np.expm1),
    _unary("log", 14, np.log),
    _unary("log2", 14, np.log2),
    _unary("log10", 14, np.log10),
    _unary("log1p", 16, np.log1p),
    _unary("sin", 20, np.sin),
    _unary("cos", 20, np.cos),
    _unary("tan", 24, np.tan),
    _unary("asin", 20, np.arcsin),
    _unary("acos", 20, np.arccos),
    _unary("atan", 20, np.arctan),
    _unary("sinh", 20, np.sinh),
    _unary("cosh", 20, np.cosh),
    _unary("tanh", 18, np.tanh),
    _unary("asinh", 20, np.arcsinh),
    _unary("acosh", 20, np.arccosh),
    _unary("atanh", 20, np.arctanh),
    _unary("erf", 20, _erf),
    _unary("erfc", 24, _erfc),
    _unary("sigmoid", 16, _sigmoid),
    # special functions
    _unary("lgamma", 80, SPECIAL["lgamma"]),
    _unary("digamma", 60, SPECIAL["digamma"]),
    _unary("erfcx", 60, SPECIAL["erfcx"]),
    _unary("erfinv", 80, SPECIAL["erfinv"]),
    _unary("ndtri", 80, SPECIAL["ndtri"]),
    *(_unary(name, 60, SPECIAL[name]) for name in ("i0e", "i1e", "k0e", "k1e")),
    *(_unary(name, 80, SPECIAL[name]) for name in ("j0", "j1", "y0", "y1", "airy_ai")),
    *(_binary(name, 100, meaning, floats=True) for name, meaning in POLYNOMIALS.items()),
    # comparison and choice
    _compare("eq", np.equal),
    _compare("ne", np.not_equal),
    _compare("lt", np.less),
    _compare("le", np.less_equal),
    _compare("gt", np.greater),
    _compare("ge", np.greater_equal),
    OpSpec("isnan", 1, "bool", 1, np.isnan, floats_only=True),
    OpSpec("where", 3, "same", 1, np.where),
    # 64 random bits, a function of seed and counter alone.
    OpSpec("random_bits", 2, "same", 80, random_bits),
    # Checks of data: an index outside a size, a divisor of zero, a condition that does not hold.
    # The kernel reports a failure (`ir/checks.py`).
    OpSpec("check_index", 2, "index", 2, lambda index, size: index),
    OpSpec("check_divisor", 1, "same", 2, lambda divisor: divisor),
    OpSpec("check", 4, "same", 2, lambda condition, first, second, value: value),
]

OPS: dict[str, OpSpec] = {row.name: row for row in _ROWS}


def _arg(function: Numpy, worst: float) -> Numpy:
    """Position of the extreme over the flattened `axes`; NaN wins, then the first position."""

    def meaning(values: Any, axes: tuple[int, ...]) -> Any:
        kept = [a for a in range(values.ndim) if a not in axes]
        moved = np.transpose(values, kept + list(axes))
        flat = moved.reshape([values.shape[a] for a in kept] + [-1])
        found = function(flat, axis=-1)
        return found.astype(np.int64).reshape(
            [1 if a in axes else values.shape[a] for a in range(values.ndim)]
        )

    return meaning


def _over_axes(function: Numpy) -> Numpy:
    def meaning(values: Any, axes: tuple[int, ...]) -> Any:
        with np.errstate(all="ignore"):
            return function(values, axis=axes, keepdims=True).astype(values.dtype)

    return meaning


def _wide_sum(values: Any, axes: tuple[int, ...]) -> Any:
    with np.errstate(all="ignore"):
        return np.sum(values, axis=axes, keepdims=True, dtype=np.float64)


def neutral(name: str, dtype: DType) -> float | int:
    """The neutral element of an op: combining it with a value leaves the value unchanged."""
    if name in ("add", "or"):
        return 0
    if name == "mul":
        return 1
    if name == "and":
        return -1
    largest = name == "min"
    if dtype.is_float:
        return math.inf if largest else -math.inf
    if dtype.kind in "ub":
        return (1 << dtype.bits) - 1 if largest else 0
    return (1 << (dtype.bits - 1)) - 1 if largest else -(1 << (dtype.bits - 1))


REDUCTIONS: dict[str, ReductionSpec] = {
    row.name: row
    for row in (
        ReductionSpec("sum", "add", _over_axes(np.sum)),
        # A sum of floats as an f64, for variances. A target may add short runs in the type of the
        # elements, so that precision is lost only inside those.
        ReductionSpec("wide_sum", "add", _wide_sum, widens=True),
        ReductionSpec("prod", "mul", _over_axes(np.prod)),
        ReductionSpec("max", "max", _over_axes(np.max)),
        ReductionSpec("min", "min", _over_axes(np.min)),
        ReductionSpec("any", "or", _over_axes(np.any)),
        ReductionSpec("all", "and", _over_axes(np.all)),
        ReductionSpec("argmax", "max", _arg(np.argmax, -math.inf), gives_index=True),
        ReductionSpec("argmin", "min", _arg(np.argmin, math.inf), gives_index=True),
    )
}


def _last_place(extreme: Any) -> Numpy:
    """The position of the extreme so far: the last of equals, and the last NaN if there is one."""

    def meaning(values: Any, axis: int) -> Any:
        shape = [1] * values.ndim
        shape[axis] = -1
        here = np.arange(values.shape[axis]).reshape(shape)
        reached = (values == extreme.accumulate(values, axis=axis)) | (values != values)
        return np.maximum.accumulate(np.where(reached, here, 0), axis=axis)

    return meaning


def _accumulated(function: Any) -> Numpy:
    return lambda values, axis: function.accumulate(values, axis=axis)


SCANS: dict[str, ScanSpec] = {
    row.name: row
    for row in (
        ScanSpec("sum", "add", 1, _accumulated(np.add)),
        ScanSpec("prod", "mul", 1, _accumulated(np.multiply)),
        ScanSpec("max", "max", 1, _accumulated(np.maximum)),
        ScanSpec("min", "min", 1, _accumulated(np.minimum)),
        ScanSpec("logsumexp", "max", 30, _accumulated(np.logaddexp)),
        ScanSpec("argmax", "max", 1, _last_place(np.maximum), gives_index=True),
        ScanSpec("argmin", "min", 1, _last_place(np.minimum), gives_index=True),
    )
}
