"""Orthogonal polynomials P_n(x): Chebyshev's four kinds, Hermite's two, Laguerre's, Legendre's.

In: a builder, x and the degree n, a float that is truncated. Out: the value; zero for negative n.
All are one recurrence, P_{k+1} from P_k and P_{k-1}, which runs until every lane has its degree.
Inside (-1, 1), Chebyshev polynomials of a high degree are waves of acos(x), as in eager. Example:
`polynomial("legendre_p", b, x, n)`.
"""

from __future__ import annotations

from collections.abc import Callable

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.inverse_trigonometric import acos
from litz.codegen.llvm.math.trigonometric import cos, sin

# P_1 of x, and P_{k+1} of k, x, P_{k-1}, P_k.
_First = Callable[[Builder, Value], Value]
_Next = Callable[[Builder, Value, Value, Value, Value], Value]


def _twice(b: Builder, x: Value) -> Value:
    return b.add(x, x)


def _chebyshev(b: Builder, k: Value, x: Value, p: Value, q: Value) -> Value:
    return b.sub(b.mul(b.add(x, x), q), p)


def _physicists(b: Builder, k: Value, x: Value, p: Value, q: Value) -> Value:
    return b.sub(b.mul(b.add(x, x), q), b.mul(b.add(k, k), p))


def _statisticians(b: Builder, k: Value, x: Value, p: Value, q: Value) -> Value:
    return b.sub(b.mul(x, q), b.mul(k, p))


def _laguerre(b: Builder, k: Value, x: Value, p: Value, q: Value) -> Value:
    left = b.mul(b.add(b.add(k, k), b.sub(1.0, x)), q)
    return b.div(b.sub(left, b.mul(k, p)), b.add(k, 1.0))


def _legendre(b: Builder, k: Value, x: Value, p: Value, q: Value) -> Value:
    left = b.mul(b.mul(b.add(b.add(k, k), 1.0), x), q)
    return b.div(b.sub(left, b.mul(k, p)), b.add(k, 1.0))


FAMILIES: dict[str, tuple[_First, _Next]] = {
    "chebyshev_t": (lambda b, x: x, _chebyshev),
    "chebyshev_u": (_twice, _chebyshev),
    "chebyshev_v": (lambda b, x: b.sub(b.add(x, x), 1.0), _chebyshev),
    "chebyshev_w": (lambda b, x: b.add(b.add(x, x), 1.0), _chebyshev),
    "hermite_h": (_twice, _physicists),
    "hermite_he": (lambda b, x: x, _statisticians),
    "laguerre_l": (lambda b, x: b.sub(1.0, x), _laguerre),
    "legendre_p": (lambda b, x: x, _legendre),
}
# The degree from which on a Chebyshev polynomial is computed as a wave.
_WAVE = {"chebyshev_t": 6.0, "chebyshev_u": 8.0, "chebyshev_v": 8.0, "chebyshev_w": 8.0}


def polynomial(name: str, b: Builder, x: Value, n: Value) -> Value:
    """P_n(x) of one family."""
    # Eager's degree is an i64: numbers that do not fit become the least one, NaN and infinity too.
    degree = b.select(b.compare("olt", n, 2.0**63), b.trunc(n), -1.0)
    wave = None
    if name in _WAVE:
        inside = b.compare("olt", b.abs(x), 1.0)
        wave = b.bit_and(inside, b.compare("ogt", degree, _WAVE[name]))
    reached = b.select(wave, 0.0, degree) if wave is not None else degree
    result = _recur(b, x, reached, *FAMILIES[name])
    if wave is not None:
        result = b.select(wave, _of_angle(name, b, _acos(b, x), degree), result)
    result = b.select(b.compare("oeq", degree, 0.0), 1.0, result)
    return b.select(b.compare("olt", degree, 0.0), 0.0, result)


def _acos(b: Builder, x: Value) -> Value:
    return acos(b, x) if b.dtype == "f32" else b.each_lane("acos", x)


def _of_angle(name: str, b: Builder, angle: Value, n: Value) -> Value:
    """cos(n t); for the other kinds, their function of the angle t at n over the same at n = 0."""
    if name == "chebyshev_t":
        return cos(b, b.mul(n, angle))
    if name == "chebyshev_u":
        return b.div(sin(b, b.mul(b.add(n, 1.0), angle)), sin(b, angle))
    turn, half = b.mul(b.add(n, 0.5), angle), b.mul(angle, 0.5)
    if name == "chebyshev_v":
        return b.div(cos(b, turn), cos(b, half))
    return b.div(sin(b, turn), sin(b, half))


def _recur(b: Builder, x: Value, n: Value, first: _First, following: _Next) -> Value:
    """P_n for n >= 1. A lane that is NaN ends its loop, however high the degree."""
    one = b.constant(1.0, x.type)
    start = first(b, x)
    entry, loop, done = b.block, b.fresh("loop"), b.fresh("done")
    next_k, next_p, next_q = (Value(f"%{b.fresh('next')}", x.type) for _ in range(3))
    b.branch(loop)

    b.label(loop)
    k = b.phi([(one, entry), (next_k, loop)])
    p = b.phi([(one, entry), (next_p, loop)])
    q = b.phi([(start, entry), (next_q, loop)])
    goes = b.bit_and(b.compare("olt", k, n), b.compare("ord", q, q))
    b.assign(next_p, b.select(goes, q, p))
    b.assign(next_q, b.select(goes, following(b, k, x, p, q), q))
    b.assign(next_k, b.add(k, 1.0))
    b.branch_if(b.any_lane(goes), loop, done)

    b.label(done)
    return next_q
