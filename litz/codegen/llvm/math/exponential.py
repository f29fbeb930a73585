"""exp, exp2, expm1 and sigmoid: x = n ln 2 + r, a polynomial in r, times 2^n.

In: a builder and its operand. Out: the result, for either float type. Example: `exp(b, x)`.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.coefficients import CONSTANTS, POLYNOMIALS
from litz.codegen.llvm.math.formats import FORMATS

# Beyond these, the result is 0 or infinite (exp, exp2), or -1 (expm1).
_EXP_RANGE = {"f32": (-104.0, 89.0), "f64": (-746.0, 710.0)}
_EXP2_RANGE = {"f32": (-151.0, 129.0), "f64": (-1076.0, 1025.0)}
_EXPM1_RANGE = {"f32": (-20.0, 89.0), "f64": (-40.0, 710.0)}


def reduce(b: Builder, x: Value, offset: int) -> tuple[Value, Value, Value]:
    """x = n ln 2 + r. Returns n (a float), r, and a word whose low bits are n + `offset`."""
    magic = FORMATS[b.dtype].magic + offset
    shifted = b.fma(x, CONSTANTS["log2_e", b.dtype][0], magic)
    n = b.sub(shifted, magic)
    high, low = CONSTANTS["ln2", b.dtype]
    return n, b.fma(n, -low, b.fma(n, -high, x)), b.bits(shifted)


def power_of_two(b: Builder, field: Value) -> Value:
    """2^n, where n + bias is in the low bits of `field`; higher bits are shifted out."""
    return b.floats(b.shl(field, FORMATS[b.dtype].mantissa))


def exp_of(b: Builder, x: Value) -> Value:
    """exp where neither the argument nor the result is near the edge of the format."""
    _, r, field = reduce(b, x, FORMATS[b.dtype].bias)
    return b.mul(_exp_of_rest(b, r), power_of_two(b, field))


def _exp_of_rest(b: Builder, r: Value) -> Value:
    return b.horner(r, (1.0, 1.0, *POLYNOMIALS["exp", b.dtype]))


def _scale(b: Builder, p: Value, field: Value) -> Value:
    """p 2^n for any n, given n + 2 bias: by two factors, as 2^n itself may be out of range.

    The first product is exact, so a subnormal result is rounded once.
    """
    half = b.lshr(field, 1)
    rest = b.sub(field, half)
    return b.mul(b.mul(p, power_of_two(b, half)), power_of_two(b, rest))


def exp(b: Builder, x: Value) -> Value:
    low, high = _EXP_RANGE[b.dtype]
    x = b.at_most(b.at_least(x, low), high)
    _, r, field = reduce(b, x, 2 * FORMATS[b.dtype].bias)
    return _scale(b, _exp_of_rest(b, r), field)


def exp2(b: Builder, x: Value) -> Value:
    low, high = _EXP2_RANGE[b.dtype]
    x = b.at_most(b.at_least(x, low), high)
    magic = FORMATS[b.dtype].magic + 2 * FORMATS[b.dtype].bias
    shifted = b.add(x, magic)
    r = b.sub(x, b.sub(shifted, magic))
    p = b.horner(r, (1.0, *POLYNOMIALS["exp2", b.dtype]))
    return _scale(b, p, b.bits(shifted))


def expm1_of_rest(b: Builder, r: Value) -> Value:
    """exp(r) - 1 for |r| <= ln(2) / 2."""
    return b.fma(b.mul(r, r), b.horner(r, POLYNOMIALS["expm1", b.dtype]), r)


def expm1(b: Builder, x: Value) -> Value:
    """2^n (1 + p) - 1 = 2 (s p + (s - 1/2)), s = 2^(n-1): s is finite where 2^n is not."""
    low, high = _EXPM1_RANGE[b.dtype]
    _, r, field = reduce(b, b.at_most(b.at_least(x, low), high), FORMATS[b.dtype].bias - 1)
    s = power_of_two(b, field)
    result = b.mul(b.fma(s, expm1_of_rest(b, r), b.sub(s, 0.5)), 2.0)
    # Keeps -0, and keeps subnormals, of which s p would lose a bit.
    small = b.compare("olt", b.abs(x), FORMATS[b.dtype].negligible)
    return b.select(small, x, result)


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e) or e / (1 + e), e = exp(-|x|) <= 1: right down to subnormal results."""
    low, _ = _EXP_RANGE[b.dtype]
    _, r, field = reduce(b, b.at_least(b.neg(b.abs(x)), low), 2 * FORMATS[b.dtype].bias)
    e = _scale(b, _exp_of_rest(b, r), field)
    numerator = b.select(b.compare("olt", x, 0.0), e, 1.0)
    return b.div(numerator, b.add(e, 1.0))
