"""pow, fmod and hypot of f32, through f64.

In: a builder and two operands. Out: the result, with the special cases of C. Example:
`power(b, x, y)`.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.coefficients import CONSTANTS
from litz.codegen.llvm.math.f64_intermediates import (
    exp2_wide,
    log_of_rest,
    log_parts,
    narrow,
    widen,
)

# Finite stand-ins for infinity, so that zero times them is zero, not NaN: pow(0, 0) =
# pow(-1, inf) = 1, fmod(x, inf) = x.
_INFINITE_LOG = 1e300
_INFINITE_EXPONENT = 1e30
_INFINITE_DIVISOR = 1e300


def _log2(b: Builder, a: Value) -> Value:
    """log2 of |x| as f64, in which every subnormal f32 is normal."""
    e, r = log_parts(b, a)
    result = b.fma(log_of_rest(b, r), CONSTANTS["log2_e", "f64"][0], e)
    result = b.select(b.compare("oeq", a, 0.0), -_INFINITE_LOG, result)
    result = b.select(b.compare("oeq", a, math.inf), _INFINITE_LOG, result)
    return b.select(b.compare("uno", a, a), a, result)


def power(b: Builder, x: Value, y: Value) -> Value:
    """2^(y log2 |x|), then the cases of a negative x."""
    exponent = b.at_most(b.at_least(y, -_INFINITE_EXPONENT), _INFINITE_EXPONENT)
    log = _log2(b, b.abs(widen(b, x)))
    size = narrow(b, exp2_wide(b, b.mul(log, widen(b, exponent))))

    half = b.mul(exponent, 0.5)
    is_integer = b.compare("oeq", b.trunc(exponent), exponent)
    is_odd = b.bit_and(is_integer, b.compare("one", b.trunc(half), half))
    result = b.select(is_odd, b.copysign(size, x), size)

    negative = b.bit_and(b.compare("olt", x, 0.0), b.compare("ogt", x, -math.inf))
    undefined = b.bit_and(negative, b.bit_xor(is_integer, 1))
    result = b.select(undefined, math.nan, result)
    is_one = b.bit_or(b.compare("oeq", x, 1.0), b.compare("oeq", y, 0.0))
    return b.select(is_one, 1.0, result)


def fmod(b: Builder, x: Value, y: Value) -> Value:
    """x - trunc(x / y) y, exactly: each turn takes 52 bits off the quotient, usually all it has.

    A rounded quotient may be one too large: the rest then changes its sign, which the end corrects.
    """
    dividend = b.abs(widen(b, x))
    divisor = b.at_most(b.abs(widen(b, y)), _INFINITE_DIVISOR)
    entry, loop, done = b.block, b.fresh("loop"), b.fresh("done")
    following = Value(f"%{b.fresh('rest')}", dividend.type)
    b.branch(loop)

    b.label(loop)
    rest = b.phi([(dividend, entry), (following, loop)])
    quotient = b.trunc(b.div(rest, divisor))
    b.assign(following, b.fma(b.neg(quotient), divisor, rest))
    again = b.any_lane(b.compare("oge", b.abs(following), divisor))
    b.branch_if(again, loop, done, rarely=True)

    b.label(done)
    mended = b.add(following, divisor)
    result = b.select(b.compare("olt", following, 0.0), mended, following)
    return b.copysign(narrow(b, result), x)


def hypot(b: Builder, x: Value, y: Value) -> Value:
    """Squares of f32 are exact in f64; an infinity wins against NaN."""
    left, right = widen(b, x), widen(b, y)
    result = narrow(b, b.sqrt(b.fma(left, left, b.mul(right, right))))
    infinite = b.bit_or(*(b.compare("oeq", b.abs(a), math.inf) for a in (x, y)))
    return b.select(infinite, math.inf, result)
