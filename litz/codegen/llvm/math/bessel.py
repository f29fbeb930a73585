"""Bessel functions of order 0 and 1, in f64: J and Y, which are waves, I and K, which are not.

In: a builder that computes in f64, and the operand. Out: the result. I is scaled by exp(-|x|) and K
by exp(x), so that neither overflows or underflows. Example: `i0e(b, x)`.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.bessel_coefficients import BESSEL
from litz.codegen.llvm.math.exponential import exp
from litz.codegen.llvm.math.logarithm import log
from litz.codegen.llvm.math.trigonometric import cos, sin

_FAR = 8.0  # where the expansions in 1 / x begin
_K_FAR = 2.0


def _odd(b: Builder, result: Value, x: Value) -> Value:
    """The result for x, from that for |x|: the function is odd."""
    return b.select(b.compare("olt", x, 0.0), b.neg(result), result)


# -- I and K ---------------------------------------------------------------------------------


def _scaled_i(b: Builder, x: Value, order: int) -> Value:
    """exp(-|x|) P(x^2) (times x for order 1), then Q(16 / |x| - 1) / sqrt(|x|)."""
    a = b.abs(x)
    near = b.mul(exp(b, b.neg(a)), b.horner(b.mul(a, a), BESSEL[f"i{order}"]))
    near = near if order == 0 else b.mul(near, a)
    u = b.sub(b.div(2 * _FAR, a), 1.0)
    far = b.div(b.horner(u, BESSEL[f"i{order}_far"]), b.sqrt(a))
    result = b.select(b.compare("ogt", a, _FAR), far, near)
    return result if order == 0 else _odd(b, result, x)


def i0e(b: Builder, x: Value) -> Value:
    return _scaled_i(b, x, 0)


def i1e(b: Builder, x: Value) -> Value:
    return _scaled_i(b, x, 1)


def _scaled_k(b: Builder, x: Value, near: Value, order: int) -> Value:
    """exp(x) times the formula near zero; Q((x - 1) / (x + 1)) / sqrt(x) for larger x."""
    t = b.div(b.sub(x, 1.0), b.add(x, 1.0))
    far = b.div(b.horner(t, BESSEL[f"k{order}_far"]), b.sqrt(x))
    far = b.select(b.compare("oeq", x, math.inf), 0.0, far)
    result = b.select(b.compare("ogt", x, _K_FAR), far, b.mul(near, exp(b, x)))
    result = b.select(b.compare("oeq", x, 0.0), math.inf, result)
    return b.select(b.compare("olt", x, 0.0), math.nan, result)


def k0e(b: Builder, x: Value) -> Value:
    """K0 = P(x^2) - log(x / 2) I0."""
    z = b.mul(x, x)
    i0 = b.horner(z, BESSEL["i0"])
    near = b.fma(b.neg(log(b, b.mul(x, 0.5))), i0, b.horner(z, BESSEL["k0"]))
    return _scaled_k(b, x, near, 0)


def k1e(b: Builder, x: Value) -> Value:
    """K1 = 1 / x + x P(x^2) + log(x / 2) I1."""
    z = b.mul(x, x)
    i1 = b.horner(z, BESSEL["i1"])  # I1(x) / x
    rest = b.fma(log(b, b.mul(x, 0.5)), i1, b.horner(z, BESSEL["k1"]))
    return _scaled_k(b, x, b.fma(x, rest, b.div(1.0, x)), 1)


# -- J and Y ---------------------------------------------------------------------------------


def _centred(b: Builder, x: Value, name: str) -> Value:
    return b.horner(b.fma(b.mul(x, x), 1 / 32, -1.0), BESSEL[name])


def _waves(b: Builder, x: Value, order: int) -> tuple[Value, Value]:
    """J and Y beyond x = 8: P and Q, rotated by the angle x - pi / 4 - order pi / 2.

    The cosine of that angle is (cos x + sin x) / sqrt(2), its sine (sin x - cos x) / sqrt(2); for
    order 1 a quadrant later. Sums of sin x and cos x, with x as it is, stay exact for large x.
    """
    inverse = b.div(1.0, x)
    z = b.mul(inverse, inverse)
    p = b.horner(z, BESSEL[f"wave{order}_p"])
    q = b.mul(inverse, b.horner(z, BESSEL[f"wave{order}_q"]))
    cosine, sine = cos(b, x), sin(b, x)
    rise, fall = b.add(sine, cosine), b.sub(sine, cosine)
    if order == 1:
        rise, fall = fall, b.neg(rise)
    size = b.div(math.sqrt(1 / math.pi), b.sqrt(x))
    return (
        b.mul(size, b.sub(b.mul(p, rise), b.mul(q, fall))),
        b.mul(size, b.fma(p, fall, b.mul(q, rise))),
    )


def j0(b: Builder, x: Value) -> Value:
    a = b.abs(x)
    far, _ = _waves(b, a, 0)
    return b.select(b.compare("ole", a, _FAR), _centred(b, a, "j0"), far)


def j1(b: Builder, x: Value) -> Value:
    a = b.abs(x)
    far, _ = _waves(b, a, 1)
    near = b.mul(a, _centred(b, a, "j1"))
    return _odd(b, b.select(b.compare("ole", a, _FAR), near, far), x)


def _of_positive(b: Builder, x: Value, near: Value, far: Value) -> Value:
    result = b.select(b.compare("ole", x, _FAR), near, far)
    result = b.select(b.compare("oeq", x, 0.0), -math.inf, result)
    return b.select(b.compare("olt", x, 0.0), math.nan, result)


def y0(b: Builder, x: Value) -> Value:
    """2 / pi log(x) J0 + R."""
    _, far = _waves(b, x, 0)
    scaled = b.mul(log(b, x), 2 / math.pi)
    near = b.fma(scaled, _centred(b, x, "j0"), _centred(b, x, "y0"))
    return _of_positive(b, x, near, far)


def y1(b: Builder, x: Value) -> Value:
    """2 / pi (log(x) J1 - 1 / x) + x R."""
    _, far = _waves(b, x, 1)
    scaled = b.mul(log(b, x), 2 / math.pi)
    rest = b.fma(scaled, _centred(b, x, "j1"), _centred(b, x, "y1"))
    near = b.fma(x, rest, b.div(-2 / math.pi, x))
    return _of_positive(b, x, near, far)


# -- the Airy function -----------------------------------------------------------------------

_AIRY_WAVE, _AIRY_DECAY = -3.5, 1.0


def airy_ai(b: Builder, x: Value) -> Value:
    """A wave on the left, a polynomial in the middle, exp(-zeta) on the right.

    zeta = 2/3 |x|^(3/2) is the angle of the wave, and the exponent.
    """
    a = b.abs(x)
    root = b.sqrt(a)
    zeta = b.mul(b.mul(a, root), 2 / 3)
    inverse = b.div(1.0, zeta)
    fourth = b.sqrt(root)
    ratio = b.div(b.sub(zeta, 1.0), b.add(zeta, 1.0))
    decay = b.mul(exp(b, b.neg(zeta)), b.horner(ratio, BESSEL["airy_decay"]))
    decay = b.mul(b.div(decay, fourth), 0.5 / math.sqrt(math.pi))
    z = b.mul(inverse, inverse)
    p = b.horner(z, BESSEL["airy_wave_p"])
    q = b.mul(inverse, b.horner(z, BESSEL["airy_wave_q"]))
    cosine, sine = cos(b, zeta), sin(b, zeta)
    wave = b.fma(p, b.add(sine, cosine), b.mul(q, b.sub(sine, cosine)))
    wave = b.mul(b.div(wave, fourth), math.sqrt(0.5 / math.pi))
    middle = b.horner(b.fma(x, 1 / 2.25, 1.25 / 2.25), BESSEL["airy"])
    result = b.select(b.compare("ogt", x, _AIRY_DECAY), decay, middle)
    return b.select(b.compare("olt", x, _AIRY_WAVE), wave, result)
