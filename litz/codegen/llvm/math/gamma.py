"""lgamma, digamma and the zeta function of Hurwitz, in f64.

In: a builder that computes in f64, and operands. Out: the result, with eager's values at poles,
infinities and zeros. Example: `lgamma(b, x)`.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.math.exponential import exp
from litz.codegen.llvm.math.gamma_coefficients import GAMMA
from litz.codegen.llvm.math.logarithm import log

_STIRLING = 3.5  # from here on lgamma is its asymptotic series, with fitted coefficients
_DIGAMMA_FAR = 4
_ALL_INTEGERS = 2.0**52  # from here on every float is an integer
# Terms of zeta that are summed one by one; then the terms of Euler-Maclaurin, B(2j) / (2j)!
_ZETA_TERMS = 10
_BERNOULLI = (
    1 / 12,
    -1 / 720,
    1 / 30240,
    -1 / 1209600,
    1 / 47900160,
    -691 / 1307674368000,
    1 / 74724249600,
    -3617 / 10670622842880000,
    43867 / 5109094217170944000,
    -174611 / 802857662698291200000,
)


def _fraction(b: Builder, x: Value) -> Value:
    """x minus the nearest integer: at most a half, and exact."""
    return b.sub(x, b.intrinsic("rint", x))


def lgamma(b: Builder, x: Value) -> Value:
    """For x < -1/2 the reflection log(pi / |x sin(pi x)|) - lgamma(|x|)."""
    reflected = b.compare("olt", x, -0.5)
    positive = _lgamma_right(b, b.select(reflected, b.neg(x), x))
    r = _fraction(b, x)
    sine = b.mul(r, b.horner(b.mul(r, r), GAMMA["sin_pi"]))
    size = log(b, b.div(math.pi, b.abs(b.mul(x, sine))))
    result = b.select(reflected, b.sub(size, positive), positive)
    pole = b.bit_and(reflected, b.compare("oeq", r, 0.0))
    pole = b.bit_or(pole, b.compare("ole", x, -_ALL_INTEGERS))
    return b.select(pole, math.inf, result)


def _lgamma_right(b: Builder, x: Value) -> Value:
    """Near the integers n = 0..3 from lgamma(2 + t) = t P(t), t = x - n; Stirling beyond them.

    lgamma(x) = lgamma(x + 2) - log(x (x + 1)) = lgamma(x + 1) - log(x) = lgamma(x - 1) +
    log(x - 1): one logarithm, of |x| (x + 1), x, 1 or x - 1, which is added from n = 2 on.
    """
    far = b.compare("oge", x, _STIRLING)
    n = b.intrinsic("rint", x)
    t = b.sub(x, n)
    near = b.mul(t, b.horner(t, GAMMA["lgamma"]))
    of = b.select(b.compare("olt", n, 2.0), x, b.constant(1.0))
    of = b.select(b.compare("olt", n, 1.0), b.mul(b.abs(x), b.add(x, 1.0)), of)
    of = b.select(b.compare("ogt", n, 2.0), b.sub(x, 1.0), of)
    of = b.select(far, x, of)
    logarithm = log(b, of)
    near = b.add(near, b.select(b.compare("olt", n, 2.0), b.neg(logarithm), logarithm))
    inverse = b.div(1.0, x)
    rest = b.mul(inverse, b.horner(b.mul(inverse, inverse), GAMMA["lgamma_far"]))
    rest = b.add(rest, (math.log(2 * math.pi) - 1) / 2)
    stirling = b.fma(b.sub(x, 0.5), b.sub(logarithm, 1.0), rest)
    return b.select(far, stirling, near)


def digamma(b: Builder, x: Value) -> Value:
    """For x < 0 the reflection digamma(1 - x) - pi / tan(pi x); NaN at its poles, as in eager."""
    reflected = b.compare("olt", x, 0.0)
    positive = _digamma_right(b, b.select(reflected, b.sub(1.0, x), x))
    r = _fraction(b, x)
    cotangent = b.fma(b.neg(r), b.horner(b.mul(r, r), GAMMA["cot_pi"]), b.div(1.0, r))
    result = b.select(reflected, b.sub(positive, cotangent), positive)
    pole = b.bit_and(reflected, b.compare("oeq", r, 0.0))
    return b.select(pole, math.nan, result)


def _digamma_right(b: Builder, x: Value) -> Value:
    """log(x) - 1 / (2 x) - D(1 / x^2) / x^2 for large x; a small x steps up, minus 1 / x each time.

    The sum of those inverses is carried as one fraction, so that there is one division.
    """
    top, bottom = b.constant(0.0), b.constant(1.0)
    for _ in range(_DIGAMMA_FAR):
        small = b.compare("olt", x, float(_DIGAMMA_FAR))
        top = b.select(small, b.fma(top, x, bottom), top)
        bottom = b.select(small, b.mul(bottom, x), bottom)
        x = b.select(small, b.add(x, 1.0), x)
    inverse = b.div(1.0, x)
    z = b.mul(inverse, inverse)
    rest = b.fma(z, b.horner(z, GAMMA["digamma_far"]), b.mul(inverse, 0.5))
    return b.sub(b.sub(log(b, x), rest), b.div(top, bottom))


def zeta(b: Builder, s: Value, q: Value) -> Value:
    """The sum of (q + k)^-s over k >= 0.

    For negative q it has terms of negative numbers, which are defined for integer s only. With
    f = q - floor q they are (-1)^s times the terms of zeta(s, 1 - f) that zeta(s, 1 - q) lacks.
    """
    floor = b.intrinsic("floor", q)
    f = b.sub(q, floor)
    negative = b.compare("olt", q, 0.0)
    right = _zeta_right(b, s, b.select(negative, f, q))
    entry, below, done = b.block, b.fresh("below"), b.fresh("done")
    b.branch_if(b.any_lane(negative), below, done)
    b.label(below)
    above = b.sub(b.add(floor, 1.0), q)  # 1 - f, exactly
    left = b.sub(_zeta_right(b, s, above), _zeta_right(b, s, b.sub(1.0, q)))
    half = b.mul(s, 0.5)
    is_odd = b.compare("one", b.trunc(half), half)
    both = b.add(right, b.select(is_odd, b.neg(left), left))
    undefined = b.compare("one", b.trunc(s), s)
    both = b.select(undefined, math.nan, both)
    both = b.select(negative, both, right)
    last = b.block
    b.branch(done)
    b.label(done)
    result = b.phi([(right, entry), (both, last)])
    pole = b.bit_and(b.compare("ole", q, 0.0), b.compare("oeq", floor, q))
    result = b.select(pole, math.inf, result)
    result = b.select(b.compare("olt", s, 1.0), math.nan, result)
    return b.select(b.compare("oeq", s, 1.0), math.inf, result)


def _zeta_right(b: Builder, s: Value, q: Value) -> Value:
    """For q > 0: some terms, then Euler-Maclaurin's w^-s (w / (s - 1) + 1/2 + ...)."""
    total, w = _zeta_terms(b, s, q)
    power = exp(b, b.mul(b.neg(s), log(b, w)))
    inverse = b.div(1.0, w)
    square = b.mul(inverse, inverse)
    factor = b.mul(s, inverse)  # s (s + 1) ... (s + 2 j) / w^(2 j + 1)
    rest = b.fma(factor, _BERNOULLI[0], 0.5)
    for j, coefficient in enumerate(_BERNOULLI[1:], 1):
        steps = b.mul(b.add(s, 2.0 * j - 1), b.add(s, 2.0 * j))
        factor = b.mul(factor, b.mul(steps, square))
        rest = b.fma(factor, coefficient, rest)
    rest = b.add(rest, b.div(w, b.sub(s, 1.0)))
    # If the power is zero, the other factor may have overflowed.
    tail = b.select(b.compare("oeq", power, 0.0), 0.0, b.mul(power, rest))
    return b.add(total, tail)


def _zeta_terms(b: Builder, s: Value, q: Value) -> tuple[Value, Value]:
    """The sum of the first terms, and the q of the next."""
    counter = Type("i32", 1)
    entry, loop, done = b.block, b.fresh("terms"), b.fresh("summed")
    count, total, following = (
        Value(f"%{b.fresh('next')}", kind) for kind in (counter, q.type, q.type)
    )
    b.branch(loop)

    b.label(loop)
    k = b.phi([(b.constant(0, counter), entry), (count, loop)])
    before = b.phi([(b.constant(0.0, q.type), entry), (total, loop)])
    a = b.phi([(q, entry), (following, loop)])
    term = exp(b, b.mul(b.neg(s), log(b, a)))
    b.assign(total, b.add(before, term))
    b.assign(following, b.add(a, 1.0))
    b.assign(count, b.add(k, 1))
    b.branch_if(b.compare("slt", count, _ZETA_TERMS), loop, done)

    b.label(done)
    return total, following
