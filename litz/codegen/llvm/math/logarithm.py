"""log, log2, log10 and log1p: x = 2^e (1 + r), a polynomial in r, plus e times a constant.

In: a builder and its operand. Out: the result, for either float type. Example: `log(b, x)`.
"""

from __future__ import annotations

import math
import struct

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.coefficients import CONSTANTS, POLYNOMIALS
from litz.codegen.llvm.math.formats import FORMATS

# The bits of sqrt(1/2), where mantissas begin: r is then in [sqrt(1/2) - 1, sqrt(2) - 1).
_START = {
    "f32": struct.unpack("<i", struct.pack("<f", math.sqrt(0.5)))[0],
    "f64": struct.unpack("<q", struct.pack("<d", math.sqrt(0.5)))[0],
}


def decompose(b: Builder, x: Value, dtype: str) -> tuple[Value, Value]:
    """A positive normal x = 2^e (1 + r). Returns the integer e + bias, and r."""
    form = FORMATS[dtype]
    shifted = b.sub(b.bits(x), _START[dtype] - (form.bias << form.mantissa))
    mantissa = b.bit_and(shifted, (1 << form.mantissa) - 1)
    return (
        b.lshr(shifted, form.mantissa),
        b.sub(b.floats(b.add(mantissa, _START[dtype])), 1.0),
    )


def exponent(b: Builder, n: Value, dtype: str, correction: Value | None = None) -> Value:
    """e as a float, from the e + bias of `decompose`, minus `correction`, a whole number.

    The bits of 2^mantissa or'ed with n are the float 2^mantissa + n: AVX2 has no instruction that
    converts 64-bit integers.
    """
    form = FORMATS[dtype]
    summed = b.floats(b.bit_or(n, (form.bias + form.mantissa) << form.mantissa))
    offset = 2.0**form.mantissa + form.bias
    return b.sub(summed, offset if correction is None else b.add(correction, offset))


def _log1p_correction(b: Builder, r: Value) -> Value:
    """log(1 + r) - r for the r of `decompose`."""
    if b.dtype == "f32":
        return b.mul(b.mul(r, r), b.horner(r, POLYNOMIALS["log", "f32"]))
    # In f64 a polynomial in r would take 20 terms. With s = r / (2 + r), log(1 + r) is
    # 2 s + s z P(z), z = s^2; and 2 s = r - s r, written so that r itself stays exact.
    half_square = b.mul(b.mul(r, r), 0.5)
    s = b.div(r, b.add(r, 2.0))
    z = b.mul(s, s)
    tail = b.mul(z, b.horner(z, POLYNOMIALS["log", "f64"]))
    return b.sub(b.mul(s, b.add(half_square, tail)), half_square)


def _log_of(b: Builder, e: Value, r: Value, base: str) -> Value:
    """log(2^e (1 + r)) to `base`; small terms are added first."""
    correction = _log1p_correction(b, r)
    if base == "e":
        high, low = CONSTANTS["ln2", b.dtype]
        return b.fma(e, high, b.add(r, b.fma(e, low, correction)))
    high, low = CONSTANTS[f"log{base}_e", b.dtype]
    fraction = b.fma(r, high, b.fma(r, low, b.mul(correction, high)))
    if base == "2":
        return b.add(e, fraction)
    high, low = CONSTANTS["log10_2", b.dtype]
    return b.fma(e, high, b.fma(e, low, fraction))


def _with_specials(b: Builder, x: Value, result: Value) -> Value:
    """The logarithms of zero, negative numbers, infinity and NaN."""
    result = b.select(b.compare("oeq", x, 0.0), -math.inf, result)
    result = b.select(b.compare("olt", x, 0.0), math.nan, result)
    return b.select(b.compare("uge", x, math.inf), x, result)


def _logarithm(b: Builder, x: Value, base: str) -> Value:
    form = FORMATS[b.dtype]
    step = form.mantissa + 1
    subnormal = b.compare("olt", x, form.least_normal)
    normal = b.select(subnormal, b.mul(x, 2.0**step), x)
    n, r = decompose(b, normal, b.dtype)
    e = exponent(b, n, b.dtype, b.select(subnormal, float(step), 0.0))
    return _with_specials(b, x, _log_of(b, e, r, base))


def log(b: Builder, x: Value) -> Value:
    return _logarithm(b, x, "e")


def log2(b: Builder, x: Value) -> Value:
    return _logarithm(b, x, "2")


def log10(b: Builder, x: Value) -> Value:
    return _logarithm(b, x, "10")


def log1p(b: Builder, x: Value) -> Value:
    """log(2^e (1 + r)) with r = (1 + x) 2^-e - 1 = s x + (s - 1): keeps what 1 + x rounds off."""
    form = FORMATS[b.dtype]
    u = b.add(x, 1.0)
    n, r = decompose(b, u, b.dtype)
    s = b.floats(b.shl(b.sub(2 * form.bias, n), form.mantissa))
    # For large x, s underflows and 1 + x loses nothing that matters.
    large = b.compare("ogt", x, 2.0**form.mantissa)
    r = b.select(large, r, b.fma(s, x, b.sub(s, 1.0)))
    e = exponent(b, n, b.dtype)
    # The sign of the result is the sign of x, -0 included.
    return b.copysign(_with_specials(b, u, _log_of(b, e, r, "e")), x)
