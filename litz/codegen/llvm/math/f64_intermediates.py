"""f64 helpers of f32 functions whose intermediate values need more than 24 bits.

In: f64 values made by `widen`. Out: f64 values right to 2^-29 or so, for `narrow` to round.
Example: `narrow(b, log1p_wide(b, widen(b, x)))`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.coefficients import CONSTANTS, POLYNOMIALS
from litz.codegen.llvm.math.formats import FORMATS
from litz.codegen.llvm.math.logarithm import decompose, exponent

_F64 = FORMATS["f64"]


def widen(b: Builder, x: Value) -> Value:
    return b.convert("fpext", x, "double")


def narrow(b: Builder, x: Value) -> Value:
    return b.convert("fptrunc", x, "float")


def through_f64(body: Callable[..., Value]) -> Callable[..., Value]:
    """An f64 algorithm as one of f32: its error is far below the last bit of an f32."""

    def rounded(b: Builder, *operands: Value) -> Value:
        with b.typed("f64"):
            result = body(b, *(widen(b, x) for x in operands))
        return narrow(b, result)

    return rounded


def log_parts(b: Builder, x: Value) -> tuple[Value, Value]:
    """x = 2^e (1 + r) for positive normal x: e as float, and r."""
    n, r = decompose(b, x, "f64")
    return exponent(b, n, "f64"), r


def log_of_rest(b: Builder, r: Value) -> Value:
    """log(1 + r) for the r of `log_parts`."""
    return b.fma(b.mul(r, r), b.horner(r, POLYNOMIALS["log_wide", "f64"]), r)


def log1p_wide(b: Builder, t: Value) -> Value:
    """log(1 + t) for t >= 0, accurate for tiny t as well; NaN for negative t and for NaN."""
    u = b.add(t, 1.0)
    n, r = decompose(b, u, "f64")
    s = b.floats(b.shl(b.sub(2 * _F64.bias, n), _F64.mantissa))
    r = b.fma(s, t, b.sub(s, 1.0))
    e = exponent(b, n, "f64")
    result = b.fma(e, CONSTANTS["ln2", "f64"][0], log_of_rest(b, r))
    valid = b.compare("oge", t, 0.0)
    result = b.select(valid, result, math.nan)
    return b.select(b.compare("oeq", t, math.inf), math.inf, result)


def exp2_wide(b: Builder, p: Value) -> Value:
    """2^p; p is clamped to +-1000, which makes no difference in f32."""
    p = b.at_most(b.at_least(p, -1000.0), 1000.0)
    magic = _F64.magic + _F64.bias
    shifted = b.add(p, magic)
    r = b.sub(p, b.sub(shifted, magic))
    fraction = b.horner(r, (1.0, *POLYNOMIALS["exp2_wide", "f64"]))
    return b.mul(fraction, b.floats(b.shl(b.bits(shifted), _F64.mantissa)))
