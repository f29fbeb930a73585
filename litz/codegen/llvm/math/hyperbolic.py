"""tanh, sinh, cosh for either float type; asinh, acosh, atanh of f32 through f64.

In: a builder and its operand. Out: the result. Example: `tanh(b, x)`.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.coefficients import POLYNOMIALS
from litz.codegen.llvm.math.exponential import exp_of, power_of_two, reduce
from litz.codegen.llvm.math.f64_intermediates import log1p_wide, narrow, widen
from litz.codegen.llvm.math.formats import FORMATS

_TANH_IS_ONE = {"f32": 10.0, "f64": 20.0}
# Just above the largest argument with a finite result.
_SINH_LIMIT = {"f32": 89.5, "f64": 710.5}


def tanh(b: Builder, x: Value) -> Value:
    """x + x z P(z) near zero, 1 - 2 / (exp(2 |x|) + 1) elsewhere."""
    a = b.at_most(b.abs(x), _TANH_IS_ONE[b.dtype])
    z = b.mul(a, a)
    near = b.fma(b.mul(a, z), b.horner(z, POLYNOMIALS["tanh", b.dtype]), a)
    e = exp_of(b, b.add(a, a))
    far = b.sub(1.0, b.div(2.0, b.add(e, 1.0)))
    return b.copysign(b.select(b.compare("olt", a, 0.625), near, far), x)


def _halves(b: Builder, x: Value) -> tuple[Value, Value]:
    """sinh(|x|) / 2 and cosh(|x|) / 2: halved, since 2^n may overflow where they do not.

    |x| = n ln 2 + r: sinh x = sinh(n ln 2) cosh r + cosh(n ln 2) sinh r, and cosh x alike, where
    the factors of n are sums of two powers of two: no cancellation and no division.
    """
    form = FORMATS[b.dtype]
    a = b.at_most(b.abs(x), _SINH_LIMIT[b.dtype])
    n, r, field = reduce(b, a, form.bias - 2)
    up = power_of_two(b, field)
    inverse = b.floats(b.sub((2 * form.bias - 4) << form.mantissa, b.bits(up)))
    down = b.select(b.compare("olt", n, 64.0), inverse, 0.0)
    cosh_n, sinh_n = b.add(up, down), b.sub(up, down)
    z = b.mul(r, r)
    sinh_r = b.fma(b.mul(r, z), b.horner(z, POLYNOMIALS["sinh", b.dtype]), r)
    cosh_r = b.mul(z, b.horner(z, POLYNOMIALS["cosh", b.dtype]))  # cosh r - 1
    return (
        b.add(sinh_n, b.fma(sinh_n, cosh_r, b.mul(cosh_n, sinh_r))),
        b.add(cosh_n, b.fma(cosh_n, cosh_r, b.mul(sinh_n, sinh_r))),
    )


def sinh(b: Builder, x: Value) -> Value:
    half, _ = _halves(b, x)
    result = b.copysign(b.add(half, half), x)
    # Keeps -0, and keeps subnormals, which cannot be halved.
    small = b.compare("olt", b.abs(x), FORMATS[b.dtype].negligible)
    return b.select(small, x, result)


def cosh(b: Builder, x: Value) -> Value:
    _, half = _halves(b, x)
    return b.add(half, half)


def asinh(b: Builder, x: Value) -> Value:
    """log1p(a + a^2 / (1 + sqrt(a^2 + 1))), a = |x|."""
    a = b.abs(widen(b, x))
    square = b.mul(a, a)
    t = b.add(a, b.div(square, b.add(b.sqrt(b.add(square, 1.0)), 1.0)))
    t = b.select(b.compare("oeq", a, math.inf), math.inf, t)
    return b.copysign(narrow(b, log1p_wide(b, t)), x)


def acosh(b: Builder, x: Value) -> Value:
    """log1p(d + sqrt(d (d + 2))), d = x - 1."""
    d = b.sub(widen(b, x), 1.0)
    t = b.add(d, b.sqrt(b.mul(d, b.add(d, 2.0))))
    t = b.select(b.compare("olt", d, 0.0), math.nan, t)
    return narrow(b, log1p_wide(b, t))


def atanh(b: Builder, x: Value) -> Value:
    """log1p(2 a / (1 - a)) / 2, a = |x|."""
    a = b.abs(widen(b, x))
    t = b.div(b.add(a, a), b.sub(1.0, a))
    return b.copysign(narrow(b, b.mul(log1p_wide(b, t), 0.5)), x)
