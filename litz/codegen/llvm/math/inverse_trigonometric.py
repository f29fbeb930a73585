"""asin, acos, atan and atan2 of f32.

In: a builder and its operands. Out: the result. Example: `atan2(b, y, x)`.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.builder import Builder, Operand, Value
from litz.codegen.llvm.math.coefficients import HALF_PI_FACTORS, POLYNOMIALS


def _minus(b: Builder, quarter_turns: float, x: Value) -> Value:
    """quarter_turns * pi/2 - x, rounded once."""
    left, right = HALF_PI_FACTORS
    return b.fma(b.constant(left), quarter_turns * right, b.neg(x))


def _arcsine(b: Builder, a: Value) -> tuple[Value, Value]:
    """Whether a > 1/2; and asin(a), or if so asin(sqrt((1 - a) / 2)), which is acos(a) / 2."""
    far = b.compare("ogt", a, 0.5)
    z = b.select(far, b.fma(a, -0.5, 0.5), b.mul(a, a))
    s = b.select(far, b.sqrt(z), a)
    return far, b.fma(b.mul(s, z), b.horner(z, POLYNOMIALS["asin", "f32"]), s)


def asin(b: Builder, x: Value) -> Value:
    far, angle = _arcsine(b, b.abs(x))
    result = b.select(far, _minus(b, 1, b.add(angle, angle)), angle)
    return b.copysign(result, x)


def acos(b: Builder, x: Value) -> Value:
    far, angle = _arcsine(b, b.abs(x))
    twice = b.add(angle, angle)
    at_end = b.select(b.compare("olt", x, 0.0), _minus(b, 2, twice), twice)
    return b.select(far, at_end, _minus(b, 1, b.copysign(angle, x)))


def _angle(b: Builder, y: Operand, x: Operand) -> Value:
    """The angle in [0, pi/2] of the point (x, y), both >= 0, from the smaller over the larger."""
    steep = b.compare("ogt", y, x)
    t = b.div(b.select(steep, x, y), b.select(steep, y, x))
    z = b.mul(t, t)
    angle = b.fma(b.mul(t, z), b.horner(z, POLYNOMIALS["atan", "f32"]), t)
    return b.select(steep, _minus(b, 1, angle), angle)


def atan(b: Builder, x: Value) -> Value:
    return b.copysign(_angle(b, b.abs(x), 1.0), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    """The sign bits decide the quadrant, so that zeros of either sign are right."""
    height, width = b.abs(y), b.abs(x)
    # On the diagonal, which 0 / 0 and inf / inf are on too; for equal zeros the angle is 0.
    same = b.compare("oeq", height, width)
    angle = b.select(same, math.pi / 4, _angle(b, height, width))
    angle = b.select(b.compare("oeq", height, 0.0), 0.0, angle)
    backward = b.compare("slt", b.bits(x), 0)
    angle = b.select(backward, _minus(b, 2, angle), angle)
    # The selects on `height` hide a NaN in x; adding the operands where unordered restores it.
    angle = b.select(b.compare("uno", y, x), b.add(y, x), angle)
    return b.copysign(angle, y)
