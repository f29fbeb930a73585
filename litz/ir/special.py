"""The meaning of the special functions: mpmath, element by element.

In: NumPy arrays. Out: `SPECIAL[name]`, the meaning of a row of the op table, with eager's values at
poles and infinities. Slow and obvious, as the interpreter is. Example: `SPECIAL["digamma"]` of 1 is
-0.5772, of 0 it is -inf, of -1 it is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath as mp  # type: ignore[import-untyped]
import numpy as np

Numpy = Callable[..., Any]
_BITS = 90  # more than a float64 has, so that the rounding to it is the only one


def _elementwise(function: Callable[..., Any]) -> Numpy:
    """A function of Python floats as one of arrays, in the type of the first; NaN stays NaN."""

    def one(*operands: float) -> float:
        if any(math.isnan(x) for x in operands):
            return math.nan
        with mp.workprec(_BITS):
            return float(function(*map(float, operands)))

    each = np.vectorize(one, otypes=[np.float64])

    def meaning(x: Any, *rest: Any) -> Any:
        return each(x, *rest).astype(np.asarray(x).dtype)

    return meaning


def _is_pole(x: float) -> bool:
    return x <= 0 and (math.isinf(x) or x == math.floor(x))


def _lgamma(x: float) -> Any:
    return math.inf if _is_pole(x) or math.isinf(x) else mp.loggamma(mp.mpf(x)).real


def _digamma(x: float) -> Any:
    if x == 0:
        return -math.copysign(math.inf, x)
    return math.nan if _is_pole(x) else math.inf if math.isinf(x) else mp.psi(0, x)


def _zeta(s: float, q: float) -> Any:
    """The Hurwitz zeta function. For negative q, some terms are powers of negative numbers, so that
    s must be an integer."""
    if s <= 1:
        return math.inf if s == 1 else math.nan
    if _is_pole(q):
        return math.inf
    if math.isinf(s) or math.isinf(q):
        return math.inf if q < 1 else float(q == 1)
    if q > 0:
        # mpmath's error is absolute: a small result needs more bits.
        with mp.extraprec(int(s * math.log2(q + 2))):
            return mp.zeta(s, q)
    if s != math.floor(s):
        return math.nan
    below = math.ceil(-q)
    left = mp.fsum((mp.mpf(q) + k) ** -int(s) for k in range(below))
    return left + mp.zeta(s, mp.mpf(q) + below)


def _erfinv(x: float) -> Any:
    if abs(x) >= 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    return mp.erfinv(mp.mpf(x))


def _ndtri(p: float) -> Any:
    """Newton's method, on the side on which p is small."""
    if p <= 0 or p >= 1:
        return -math.inf if p == 0 else math.inf if p == 1 else math.nan
    small = mp.mpf(min(p, 1 - p)) if p < 0.5 else 1 - mp.mpf(p)
    x = mp.sqrt(-2 * mp.log(small))
    for _ in range(60):
        step = (mp.ncdf(-x) - small) / mp.npdf(x)
        x += step
        if abs(step) <= abs(x) * mp.eps * 32:
            break
    return -x if p < 0.5 else x


def _erfcx(x: float) -> Any:
    if math.isinf(x):
        return 0.0 if x > 0 else math.inf
    return mp.exp(mp.mpf(x) ** 2) * mp.erfc(x)


def _scaled_i(order: int) -> Callable[[float], Any]:
    def meaning(x: float) -> Any:
        if math.isinf(x):
            return math.copysign(0.0, x) if order else 0.0
        return mp.besseli(order, x) * mp.exp(-abs(mp.mpf(x)))

    return meaning


def _scaled_k(order: int) -> Callable[[float], Any]:
    def meaning(x: float) -> Any:
        if x <= 0:
            return math.inf if x == 0 else math.nan
        return 0.0 if math.isinf(x) else mp.besselk(order, x) * mp.exp(mp.mpf(x))

    return meaning


def _wave(order: int, function: Numpy) -> Callable[[float], Any]:
    return lambda x: math.nan if math.isinf(x) else function(order, x)


def _positive_wave(order: int) -> Callable[[float], Any]:
    def meaning(x: float) -> Any:
        if x <= 0:
            return -math.inf if x == 0 else math.nan
        return math.nan if math.isinf(x) else mp.bessely(order, x)

    return meaning


def _airy(x: float) -> Any:
    return math.nan if math.isinf(x) else mp.airyai(x)


# -- orthogonal polynomials ------------------------------------------------------------------


def _polynomial(first: Numpy, following: Numpy) -> Numpy:
    """P_n(x) by recurrence: `first` is P_1(x), `following` gives P_{k+1} of k, x, P_{k-1}, P_k."""

    def meaning(x: Any, n: Any) -> Any:
        degree = np.where(n < 2.0**63, np.trunc(n), -1)
        p, q = np.ones_like(x * n), first(x) + np.zeros_like(n)
        k = 1
        while np.any(goes := (k < degree) & ~np.isnan(q)):
            p, q, k = np.where(goes, q, p), np.where(goes, following(k, x, p, q), q), k + 1
        result = np.where(degree < 0, 0, np.where(degree == 0, 1, q))
        return result.astype(np.asarray(x).dtype)

    return meaning


def _chebyshev(k: int, x: Any, p: Any, q: Any) -> Any:
    return 2 * x * q - p


POLYNOMIALS: dict[str, Numpy] = {
    "chebyshev_t": _polynomial(lambda x: x, _chebyshev),
    "chebyshev_u": _polynomial(lambda x: 2 * x, _chebyshev),
    "chebyshev_v": _polynomial(lambda x: 2 * x - 1, _chebyshev),
    "chebyshev_w": _polynomial(lambda x: 2 * x + 1, _chebyshev),
    "hermite_h": _polynomial(lambda x: 2 * x, lambda k, x, p, q: 2 * (x * q - k * p)),
    "hermite_he": _polynomial(lambda x: x, lambda k, x, p, q: x * q - k * p),
    "laguerre_l": _polynomial(
        lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * q - k * p) / (k + 1)
    ),
    "legendre_p": _polynomial(
        lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * q - k * p) / (k + 1)
    ),
}

# Functions of Python floats, in the precision that mpmath is set to.
EXACT: dict[str, Callable[..., Any]] = {
    "lgamma": _lgamma,
    "digamma": _digamma,
    "zeta": _zeta,
    "erfinv": _erfinv,
    "ndtri": _ndtri,
    "erfcx": _erfcx,
    "i0e": _scaled_i(0),
    "i1e": _scaled_i(1),
    "k0e": _scaled_k(0),
    "k1e": _scaled_k(1),
    "j0": _wave(0, mp.besselj),
    "j1": _wave(1, mp.besselj),
    "y0": _positive_wave(0),
    "y1": _positive_wave(1),
    "airy_ai": _airy,
}
SPECIAL: dict[str, Numpy] = {name: _elementwise(exact) for name, exact in EXACT.items()}
