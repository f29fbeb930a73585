"""The polynomials' origin: a Remez exchange in arbitrary precision, then rounding.

In: the rows of `FITS`, each a function, an interval and the weight of errors there. Out: the text
of `coefficients.py`. It is a workbench, not part of the compiler: only its test imports it.
Example: `python -m litz.codegen.llvm.math.minimax > coefficients.py` (two minutes).

Coefficients are rounded one at a time, the lowest power first, and the higher ones are then fitted
again to the remainder: rounding the early, heavy coefficients costs no accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath as mp  # type: ignore[import-untyped]
import numpy as np

Real = Callable[[Any], Any]
_POINTS = 1500


@dataclass(frozen=True)
class Fit:
    """`weight(x)` turns an error of the polynomial into a relative error of the final result."""

    name: str
    dtype: str
    degree: int
    low: float
    high: float
    target: Real
    weight: Real


def _grid(low: float, high: float) -> list[Any]:
    """Chebyshev points: dense at both ends, where the extremes cluster; zero itself is left out."""
    angles = [mp.pi * (k + mp.mpf("0.5")) / _POINTS for k in range(_POINTS)]
    middle, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
    return [middle - half * mp.cos(a) for a in angles]


def _extremes(error: list[Any], count: int) -> list[int] | None:
    """The largest error of each run of one sign; `None` if the error alternates too few times."""
    runs: list[list[int]] = []
    for i, e in enumerate(error):
        if runs and (error[runs[-1][-1]] > 0) == (e > 0):
            runs[-1].append(i)
        else:
            runs.append([i])
    peaks = [max(run, key=lambda i: abs(error[i])) for run in runs]
    while len(peaks) > count:
        peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
    return peaks if len(peaks) == count else None


def remez(x: list[Any], f: list[Any], w: list[Any], powers: Sequence[int]) -> tuple[list[Any], Any]:
    """Coefficients of `powers` with the least max |f - p| * w over the grid `x`, and that error."""
    count = len(powers) + 1
    peaks = [round((len(x) - 1) * (1 - np.cos(np.pi * k / (count - 1))) / 2) for k in range(count)]
    columns = [[xi**p for p in powers] for xi in x]
    best: tuple[list[Any], Any] = ([], mp.inf)
    for _ in range(30):
        rows = [columns[i] + [(-1) ** k / w[i]] for k, i in enumerate(peaks)]
        solved = list(mp.lu_solve(mp.matrix(rows), mp.matrix([f[i] for i in peaks])))
        c, level = solved[:-1], abs(solved[-1])
        error = [(fi - mp.fdot(row, c)) * wi for fi, row, wi in zip(f, columns, w, strict=True)]
        worst = max(map(abs, error))
        if worst < best[1]:
            best = (c, worst)
        found = _extremes(error, count)
        if found is None or worst <= level * mp.mpf("1.001"):
            break
        peaks = found
    return best


def _round(value: Any, dtype: str) -> float:
    return float(np.float32(float(value))) if dtype == "f32" else float(value)


def coefficients(fit: Fit) -> tuple[list[float], Any]:
    """The rounded coefficients, lowest power first, and the largest weighted error they leave."""
    with mp.workdps(60):
        x = _grid(fit.low, fit.high)
        w = [abs(fit.weight(xi)) for xi in x]
        rest = [fit.target(xi) for xi in x]
        rounded: list[float] = []
        for power in range(fit.degree + 1):
            exact, _ = remez(x, rest, w, range(power, fit.degree + 1))
            rounded.append(_round(exact[0], fit.dtype))
            rest = [ri - rounded[-1] * xi**power for ri, xi in zip(rest, x, strict=True)]
        return rounded, max(abs(ri * wi) for ri, wi in zip(rest, w, strict=True))


def coefficients_at_once(fit: Fit) -> tuple[list[float], Any]:
    """The same for long f64 polynomials, whose high powers near zero cannot be fitted alone."""
    with mp.workdps(60):
        x = _grid(fit.low, fit.high)
        w = [abs(fit.weight(xi)) for xi in x]
        f = [fit.target(xi) for xi in x]
        rounded = [_round(c, fit.dtype) for c in remez(x, f, w, range(fit.degree + 1))[0]]
        powers = [mp.polyval(rounded[::-1], xi) for xi in x]
        return rounded, max(abs((fi - p) * wi) for fi, p, wi in zip(f, powers, w, strict=True))


def parts(value: Any, dtype: str, count: int) -> list[float]:
    """`value` as a sum of `count` floats, each the rounding of what the earlier ones left."""
    found: list[float] = []
    for _ in range(count):
        found.append(_round(value, dtype))
        value -= found[-1]
    return found


def _odd(f: Real) -> tuple[Real, Real]:
    """f(x) = x + x z P(z) with z = x^2: P, and the effect of its error on f."""
    return (
        lambda z: (f(mp.sqrt(z)) / mp.sqrt(z) - 1) / z,
        lambda z: z * mp.sqrt(z) / f(mp.sqrt(z)),
    )


_EXP = (lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2 / mp.exp(r))
_EXPM1 = (_EXP[0], lambda r: r**2 / mp.expm1(r))
_EXP2 = (lambda r: (mp.mpf(2) ** r - 1) / r, lambda r: r / mp.mpf(2) ** r)
_LOG = (lambda r: (mp.log1p(r) - r) / r**2, lambda r: r**2 / mp.log1p(r))
# log((1 + s) / (1 - s)) = 2 s + s z P(z)
_LOG_RATIO = (
    lambda z: (2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) - 2) / z,
    lambda z: z * mp.sqrt(z) / (2 * mp.atanh(mp.sqrt(z))),
)
_COSH = (lambda z: (mp.cosh(mp.sqrt(z)) - 1) / z, lambda z: z / mp.cosh(mp.sqrt(z)))
_COS = (lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z**2 / mp.cos(mp.sqrt(z)))
_ERF = (lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)))
_ERF_TAIL = (lambda a: -mp.log(mp.erfc(a)), lambda a: mp.erfc(a) / mp.erf(a))


def _erfcx_of_ratio(t: Any) -> Any:
    """exp(a^2) erfc(a) where t = (a - 3) / (a + 3)."""
    a = 3 * (1 + t) / (1 - t)
    return mp.exp(a * a) * mp.erfc(a)


_ERFC = (_erfcx_of_ratio, lambda t: 1 / _erfcx_of_ratio(t))
_HALF_LN2 = 0.348  # a little more than ln(2) / 2, since the reduction rounds
_LOG_RANGE = (2**-0.5 - 1 - 1e-6, 2**0.5 - 1 + 1e-6)
_QUADRANT = 0.64  # 0.8^2: pi / 4, plus the error of a rounded quadrant number

FITS: list[Fit] = [
    Fit("exp", "f32", 4, -_HALF_LN2, _HALF_LN2, *_EXP),
    Fit("exp", "f64", 9, -_HALF_LN2, _HALF_LN2, *_EXP),
    Fit("expm1", "f32", 5, -_HALF_LN2, _HALF_LN2, *_EXPM1),
    Fit("expm1", "f64", 10, -_HALF_LN2, _HALF_LN2, *_EXPM1),
    Fit("exp2", "f32", 5, -0.501, 0.501, *_EXP2),
    Fit("exp2", "f64", 10, -0.501, 0.501, *_EXP2),
    Fit("exp2_wide", "f64", 6, -0.501, 0.501, *_EXP2),
    Fit("log", "f32", 8, *_LOG_RANGE, *_LOG),
    Fit("log", "f64", 6, 0.0, 0.02945, *_LOG_RATIO),
    Fit("log_wide", "f64", 11, *_LOG_RANGE, *_LOG),
    Fit("tanh", "f32", 4, 0.0, 0.391, *_odd(mp.tanh)),
    Fit("tanh", "f64", 10, 0.0, 0.391, *_odd(mp.tanh)),
    Fit("sinh", "f32", 2, 0.0, _HALF_LN2**2, *_odd(mp.sinh)),
    Fit("sinh", "f64", 5, 0.0, _HALF_LN2**2, *_odd(mp.sinh)),
    Fit("cosh", "f32", 2, 0.0, _HALF_LN2**2, *_COSH),
    Fit("cosh", "f64", 5, 0.0, _HALF_LN2**2, *_COSH),
    Fit("sin", "f32", 2, 0.0, _QUADRANT, *_odd(mp.sin)),
    Fit("sin", "f64", 5, 0.0, _QUADRANT, *_odd(mp.sin)),
    Fit("cos", "f32", 2, 0.0, _QUADRANT, *_COS),
    Fit("cos", "f64", 5, 0.0, _QUADRANT, *_COS),
    Fit("tan", "f32", 6, 0.0, _QUADRANT, *_odd(mp.tan)),
    Fit("asin", "f32", 4, 0.0, 0.25, *_odd(mp.asin)),
    Fit("atan", "f32", 8, 0.0, 1.0, *_odd(mp.atan)),
    Fit("erf", "f32", 6, 0.0, 0.9, *_ERF),
    Fit("erf", "f64", 12, 0.0, 1.0, *_ERF),
    Fit("erf_tail", "f32", 6, 0.94, 4.0, *_ERF_TAIL),
    Fit("erf_tail", "f64", 18, 1.0, 6.0, *_ERF_TAIL),
    Fit("erfc_wide", "f64", 11, -1.0, 0.549, *_ERFC),
]

CONSTANTS: dict[str, tuple[Callable[[], Any], int]] = {
    "ln2": (lambda: mp.log(2), 2),
    "log2_e": (lambda: 1 / mp.log(2), 2),
    "log10_2": (lambda: mp.log10(2), 2),
    "log10_e": (lambda: mp.log10(mp.e), 2),
    "half_pi": (lambda: mp.pi / 2, 3),
    "two_over_pi": (lambda: 2 / mp.pi, 1),
}
"""Numbers that one float cannot hold: their value and how many floats we sum them from."""


def words(value: Any, skip: int, count: int) -> list[int]:
    """The binary digits of a fraction in 32-bit words, after `skip` zero bits."""
    digits = int(mp.floor(value * mp.mpf(2) ** (32 * count - skip)))
    return [digits >> 32 * (count - 1 - k) & 0xFFFFFFFF for k in range(count)]


def factors(value: float) -> tuple[float, float]:
    """Two f32 numbers whose product is `value` to about 2^-46; an fma subtracts from it exactly."""
    left = np.arange(2**23, 2**24).astype(np.float32) / np.float32(2**23)
    right = (value / left.astype(np.float64)).astype(np.float32)
    best = np.argmin(np.abs(left.astype(np.float64) * right.astype(np.float64) - value))
    return float(left[best]), float(right[best])


_HEADER = '''"""Coefficients of the inline math functions, written by `minimax.py`: edit that.

In: nothing. Out: tables by name and dtype. A polynomial has its lowest power first; the comment is
the largest error that it alone leaves in the result. A `wide` polynomial is evaluated in f64 and
good enough for an f32 result. Example: `POLYNOMIALS["exp", "f32"]` is Q in 1 + r + r^2 Q(r).
"""

from __future__ import annotations
'''


def _row(key: str, values: Sequence[object], comment: str = "") -> str:
    body = "".join(f"        {value!r},\n".replace("e+", "e") for value in values)
    return f"    {key}: ({comment}\n{body}    ),\n"


def polynomials_text(
    fits: Sequence[Fit],
    key: Callable[[Fit], str],
    find: Callable[[Fit], tuple[list[float], Any]] = coefficients,
) -> str:
    """The rows of a table of polynomials, each with the error it leaves."""
    rows = []
    for fit in fits:
        rounded, error = find(fit)
        rows.append(_row(key(fit), rounded, f"  # 2^{float(mp.log(error, 2)):.1f}"))
    return "".join(rows)


def main() -> None:
    """Print `coefficients.py`."""
    mp.mp.dps = 80
    print(_HEADER)
    print("POLYNOMIALS: dict[tuple[str, str], tuple[float, ...]] = {")
    print(polynomials_text(FITS, lambda fit: f'("{fit.name}", "{fit.dtype}")'), end="")
    print("}\n\nCONSTANTS: dict[tuple[str, str], tuple[float, ...]] = {")
    for name, (value, count) in CONSTANTS.items():
        for dtype in ("f32", "f64"):
            print(_row(f'("{name}", "{dtype}")', parts(value(), dtype, count)), end="")
    print('}\n"""Each number as the sum of floats."""\n')
    print("# Their product is pi / 2 to 2^-46.")
    print(f"HALF_PI_FACTORS = {factors(np.pi / 2)}\n")
    print("# The binary digits of 2 / pi behind 32 zeros: what f32 arguments of any size need.")
    print(f"TWO_OVER_PI_WORDS = {tuple(words(2 / mp.pi, 32, 8))}")


if __name__ == "__main__":
    main()
