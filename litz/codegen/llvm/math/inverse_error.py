"""erfinv and ndtri (the inverse of the normal distribution), in f64.

In: a builder that computes in f64, and the operand. Out: the result; infinite at the ends of the
domain and NaN outside it. Example: `ndtri(b, p)` of 0.975 is 1.96.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.error_coefficients import ERROR
from litz.codegen.llvm.math.logarithm import log

_MIDDLE = 0.5  # the largest x^2 for which erfinv(x) is x P(x^2)
_CENTRE = 4.0  # r at the middle of the tail's polynomial


def _middle(b: Builder, x: Value, square: Value) -> Value:
    return b.mul(x, b.horner(square, ERROR["erfinv"]))


def _tail(b: Builder, p: Value) -> Value:
    """-ndtri(p) for small p: r T((r - 4) / (r + 4)), r = sqrt(-2 log p)."""
    r = b.sqrt(b.mul(log(b, p), -2.0))
    t = b.div(b.sub(r, _CENTRE), b.add(r, _CENTRE))
    result = b.mul(r, b.horner(t, ERROR["normal_tail"]))
    return b.select(b.compare("oeq", p, 0.0), math.inf, result)


def erfinv(b: Builder, x: Value) -> Value:
    """In the tail 1 - |x| is exact; half of it is the p of the normal distribution."""
    square = b.mul(x, x)
    p = b.mul(b.sub(1.0, b.abs(x)), 0.5)
    tail = b.mul(_tail(b, p), math.sqrt(0.5))
    tail = b.select(b.compare("olt", x, 0.0), b.neg(tail), tail)
    return b.select(b.compare("ole", square, _MIDDLE), _middle(b, x, square), tail)


def ndtri(b: Builder, p: Value) -> Value:
    """sqrt(2) erfinv(2 p - 1) in the middle."""
    x = b.fma(p, 2.0, -1.0)
    square = b.mul(x, x)
    middle = b.mul(_middle(b, x, square), math.sqrt(2))
    upper = b.compare("ogt", x, 0.0)
    tail = _tail(b, b.select(upper, b.sub(1.0, p), p))
    tail = b.select(upper, tail, b.neg(tail))
    return b.select(b.compare("ole", square, _MIDDLE), middle, tail)
