"""The polynomials of the special functions, and the interval of each.

In: nothing. Out: `FITS`, rows for `minimax.py` by family. All are f64: f32 goes through it. Like
`minimax.py` it is a workbench: `python -m litz.codegen.llvm.math.special_fits gamma >
gamma_coefficients.py` writes a table that the compiler reads (`bessel` takes some minutes).

A weight of 1 keeps the absolute error of the polynomial small. It is for functions with zeros,
where the relative error is that of the argument.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import mpmath as mp  # type: ignore[import-untyped]

from litz.codegen.llvm.math.minimax import Fit, Real, coefficients_at_once, polynomials_text

_TINY = 1e-24  # stands for zero where a target divides by its argument

HEADER = '''"""Coefficients of some special functions, written by `special_fits.py`: edit that.

In: nothing. Out: polynomials by name, each with its lowest power first; the comment is the largest
error that it alone leaves in the result. `special_fits.py` says of what and where they are.
"""

from __future__ import annotations
'''


def _relative(target: Real) -> tuple[Real, Real]:
    """For a polynomial that is a factor of the result: its relative error is the result's."""
    return target, lambda x: 1 / target(x)


def _absolute(target: Real) -> tuple[Real, Real]:
    return target, lambda x: mp.mpf(1)


def _of_root(function: Real) -> Real:
    """As a function of z = x^2."""
    return lambda z: function(mp.sqrt(z))


def _of_inverse(function: Real) -> Real:
    """As a function of t = 1 / x."""
    return lambda t: function(1 / t)


def _of_ratio(scale: int, function: Real) -> Real:
    """As a function of t = (a - scale) / (a + scale), which maps all a >= 0 into [-1, 1)."""
    return lambda t: function(scale * (1 + t) / (1 - t))


# -- the gamma function ----------------------------------------------------------------------


def _stirling_rest(x: Any) -> Any:
    """S in lgamma(x) = (x - 1/2) (log x - 1) + (log(2 pi) - 1) / 2 + S / x."""
    leading = (x - 0.5) * (mp.log(x) - 1) + (mp.log(2 * mp.pi) - 1) / 2
    return x * (mp.loggamma(x) - leading)


_LGAMMA_FAR = _of_inverse(_of_root(_stirling_rest))
_DIGAMMA_FAR = _of_inverse(_of_root(lambda x: (mp.log(x) - 1 / (2 * x) - mp.psi(0, x)) * x * x))

GAMMA = [
    Fit("lgamma", "f64", 18, -0.5, 0.5, *_relative(lambda t: mp.loggamma(2 + t) / t)),
    Fit("lgamma_far", "f64", 9, _TINY, 3.5**-2, _LGAMMA_FAR, _of_inverse(_of_root(
        lambda x: 1 / (x * mp.loggamma(x))))),
    Fit("digamma_far", "f64", 9, _TINY, 4.0**-2, _DIGAMMA_FAR, _of_inverse(_of_root(
        lambda x: 1 / (x * x * mp.psi(0, x))))),
    Fit("sin_pi", "f64", 8, _TINY, 0.25, *_relative(_of_root(lambda r: mp.sinpi(r) / r))),
    Fit("cot_pi", "f64", 15, _TINY, 0.25, *_relative(_of_root(
        lambda r: (1 / r - mp.pi * mp.cot(mp.pi * r)) / r))),
]  # fmt: skip

# -- the error function ----------------------------------------------------------------------


def _normal_quantile(p: Any) -> Any:
    """The x at which the upper tail of the normal distribution is p, by Halley's method."""
    r = mp.sqrt(-2 * mp.log(p))
    x = r - mp.log(2 * mp.pi * r * r) / (2 * r)
    for _ in range(8):
        error = (mp.erfc(x / mp.sqrt(2)) / 2 - p) * mp.sqrt(2 * mp.pi) * mp.exp(x * x / 2)
        x += error / (1 - x * error / 2)
    return x


ERROR = [
    Fit("erfcx", "f64", 25, -1.0, 1.0, *_relative(_of_ratio(
        4, lambda a: (a + 0.5) * mp.exp(a * a) * mp.erfc(a)))),
    Fit("erfinv", "f64", 20, _TINY, 0.5, *_relative(_of_root(lambda x: mp.erfinv(x) / x))),
    Fit("normal_tail", "f64", 34, (1.95 - 4) / (1.95 + 4), (38.61 - 4) / (38.61 + 4), *_relative(
        _of_ratio(4, lambda r: _normal_quantile(mp.exp(-r * r / 2)) / r))),
]  # fmt: skip

# -- Bessel functions ------------------------------------------------------------------------


def _growing(order: int) -> Real:
    """As a function of u = 16 / x - 1 for x >= 8."""

    def scaled(x: Any) -> Any:
        return mp.sqrt(x) * mp.exp(-x) * mp.besseli(order, x)

    return lambda u: scaled(16 / (u + 1))


def _decaying(order: int) -> Real:
    return lambda x: mp.sqrt(x) * mp.exp(x) * mp.besselk(order, x)


def _rotated(order: int, x: Any) -> tuple[Any, Any]:
    """P and Q in J = sqrt(2 / (pi x)) (P cos - Q sin) and Y, which has (P sin + Q cos)."""
    angle = x - mp.pi / 4 - order * mp.pi / 2
    size = mp.sqrt(mp.pi * x / 2)
    j, y = size * mp.besselj(order, x), size * mp.bessely(order, x)
    return (
        j * mp.cos(angle) + y * mp.sin(angle),
        y * mp.cos(angle) - j * mp.sin(angle),
    )


def _centred(function: Real) -> Real:
    """As a function of u = x^2 / 32 - 1 for 0 <= x <= 8: around the middle, terms do not cancel."""
    return lambda u: function(mp.sqrt(32 * (u + 1)))


def _y0_rest(x: Any) -> Any:
    return mp.bessely(0, x) - 2 / mp.pi * mp.log(x) * mp.besselj(0, x)


def _y1_rest(x: Any) -> Any:
    return (mp.bessely(1, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x


def _k0_rest(x: Any) -> Any:
    return mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x)


def _k1_rest(x: Any) -> Any:
    return (mp.besselk(1, x) - 1 / x - mp.log(x / 2) * mp.besseli(1, x)) / x


def _wave(order: int) -> list[Fit]:
    """J and Y of one order: the middle, and both parts of the wave beyond x = 8."""
    j: dict[int, Callable[[Any], Any]] = {
        0: lambda x: mp.besselj(0, x),
        1: lambda x: mp.besselj(1, x) / x,
    }
    y = _y0_rest if order == 0 else _y1_rest
    high = 8.0**-2
    return [
        Fit(f"j{order}", "f64", 15, -1.0, 1.0, *_absolute(_centred(j[order]))),
        Fit(f"y{order}", "f64", 15, -1.0, 1.0, *_absolute(_centred(y))),
        Fit(f"wave{order}_p", "f64", 13, _TINY, high, *_relative(_of_inverse(_of_root(
            lambda x: _rotated(order, x)[0])))),
        Fit(f"wave{order}_q", "f64", 15, _TINY, high, _of_inverse(_of_root(
            lambda x: _rotated(order, x)[1] * x)), mp.sqrt),
    ]  # fmt: skip


BESSEL = [
    Fit("i0", "f64", 15, _TINY, 64.0, *_relative(_of_root(lambda x: mp.besseli(0, x)))),
    Fit("i1", "f64", 14, _TINY, 64.0, *_relative(_of_root(lambda x: mp.besseli(1, x) / x))),
    Fit("i0_far", "f64", 25, -1.0, 1.0, *_relative(_growing(0))),
    Fit("i1_far", "f64", 25, -1.0, 1.0, *_relative(_growing(1))),
    Fit("k0", "f64", 9, _TINY, 4.0, *_absolute(_of_root(_k0_rest))),
    Fit("k1", "f64", 8, _TINY, 4.0, *_absolute(_of_root(_k1_rest))),
    Fit("k0_far", "f64", 18, 1 / 3, 1.0, *_relative(_of_ratio(1, _decaying(0)))),
    Fit("k1_far", "f64", 18, 1 / 3, 1.0, *_relative(_of_ratio(1, _decaying(1)))),
    *_wave(0),
    *_wave(1),
]

# -- the Airy function -----------------------------------------------------------------------


def _airy_middle(u: Any) -> Any:
    """For -3.5 <= x <= 1."""
    return mp.airyai(2.25 * u - 1.25)


def _airy_decay(zeta: Any) -> Any:
    """Ai(x) without its leading behaviour, x = (3 zeta / 2)^(2/3)."""
    x = (1.5 * zeta) ** (mp.mpf(2) / 3)
    return mp.airyai(x) * 2 * mp.sqrt(mp.pi) * mp.root(x, 4) * mp.exp(zeta)


def _airy_wave(zeta: Any) -> tuple[Any, Any]:
    """P and Q in Ai(-x) = (P cos + Q sin of zeta - pi / 4) / (sqrt(pi) x^(1/4))."""
    x = (1.5 * zeta) ** (mp.mpf(2) / 3)
    size = mp.sqrt(mp.pi) * mp.root(x, 4)
    a, c = size * mp.airyai(-x), size * mp.airybi(-x)
    cosine, sine = mp.cos(zeta - mp.pi / 4), mp.sin(zeta - mp.pi / 4)
    return a * cosine - c * sine, a * sine + c * cosine


AIRY = [
    Fit("airy", "f64", 27, -1.0, 1.0, _airy_middle, lambda u: 1 / _airy_middle(max(u, mp.mpf(0)))),
    Fit("airy_decay", "f64", 24, -0.2, 1.0, *_relative(_of_ratio(1, _airy_decay))),
    Fit("airy_wave_p", "f64", 18, _TINY, 0.0525, *_relative(_of_inverse(_of_root(
        lambda zeta: _airy_wave(zeta)[0])))),
    Fit("airy_wave_q", "f64", 18, _TINY, 0.0525, _of_inverse(_of_root(
        lambda zeta: _airy_wave(zeta)[1] * zeta)), mp.sqrt),
]  # fmt: skip

FITS: dict[str, list[Fit]] = {
    "gamma": GAMMA,
    "error": ERROR,
    "bessel": [*BESSEL, *AIRY],
}


def main(family: str) -> None:
    """Print the table of one family."""
    mp.mp.dps = 80
    print(HEADER)
    print(f"{family.upper()}: dict[str, tuple[float, ...]] = {{")
    text = polynomials_text(FITS[family], lambda fit: f'"{fit.name}"', coefficients_at_once)
    print(text, end="")
    print("}")


if __name__ == "__main__":
    main(sys.argv[1])
