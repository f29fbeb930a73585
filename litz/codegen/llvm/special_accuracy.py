"""Accuracy and speed of the special functions: the second table of `docs/math-accuracy.md`.

In: nothing. Out: `measure() -> [Row]`, each function of `SPECIAL` against mpmath, on points spread
over the range where it is interesting. Example: `errors("j0", "f64", points("j0", "f64", 99))`.
`python -m litz.codegen.llvm.special_accuracy >> docs/math-accuracy.md` adds it to the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import mpmath as mp  # type: ignore[import-untyped]
import numpy as np
import torch

from litz.codegen.llvm.math import SPECIAL
from litz.codegen.llvm.math.formats import FORMATS
from litz.codegen.llvm.math_accuracy import LANES, Array, Compiled, Row, nanoseconds, table
from litz.ir.special import EXACT

_NUMPY: dict[str, Any] = {"f32": np.float32, "f64": np.float64}
_BITS = 120

# The points of each function: evenly spread over the first span, and over powers of ten in the
# second, with both signs if the first span has both.
SPANS: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "lgamma": ((-30.5, 5.0), (-30, 30)),
    "digamma": ((-30.5, 5.0), (-30, 30)),
    "zeta": ((-10.0, 30.0), (-2, 4)),
    "erfcx": ((-9.0, 10.0), (-10, 30)),
    "erfinv": ((-1.0, 1.0), (-30, 0)),
    "ndtri": ((0.0, 1.0), (-37, 0)),
    "i0e": ((-20.0, 20.0), (-10, 30)),
    "i1e": ((-20.0, 20.0), (-10, 30)),
    "k0e": ((0.0, 20.0), (-30, 30)),
    "k1e": ((0.0, 20.0), (-30, 30)),
    "j0": ((-30.0, 30.0), (-10, 8)),
    "j1": ((-30.0, 30.0), (-10, 8)),
    "y0": ((0.0, 30.0), (-30, 8)),
    "y1": ((0.0, 30.0), (-30, 8)),
    "airy_ai": ((-30.0, 20.0), (-10, 1)),
}

_TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    "zeta": torch.special.zeta,
    "erfcx": torch.special.erfcx,
    "erfinv": torch.erfinv,
    "ndtri": torch.special.ndtri,
    "i0e": torch.special.i0e,
    "i1e": torch.special.i1e,
    "k0e": torch.special.scaled_modified_bessel_k0,
    "k1e": torch.special.scaled_modified_bessel_k1,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "airy_ai": torch.special.airy_ai,
}


def points(name: str, dtype: str, count: int, seed: int = 0) -> list[Array]:
    """Operands; the s of `zeta` is mostly an integer."""
    random = np.random.default_rng(seed)
    (low, high), exponents = SPANS[name]
    powers = 10.0 ** random.uniform(*exponents, count)
    x = np.concatenate([random.uniform(low, high, count), powers, -powers if low < 0 else powers])
    x = x.astype(_NUMPY[dtype])
    if SPECIAL[name].arity == 1:
        return [x]
    whole = random.integers(2, 30, x.size)
    s = np.where(random.random(x.size) < 0.6, whole, random.uniform(1.001, 40, x.size))
    return [s.astype(_NUMPY[dtype]), x]


def errors(name: str, dtype: str, operands: list[Array]) -> Array:
    """The error of each result in ULP; infinite where only one is NaN, or only one infinite."""
    got = Compiled(name, dtype, LANES[dtype])(*operands).astype(np.float64)
    with mp.workprec(_BITS):
        return np.array(
            [
                _error(name, dtype, mp.mpf(EXACT[name](*map(float, at))), float(found))
                for found, *at in zip(got, *operands, strict=True)
            ]
        )


def _error(name: str, dtype: str, want: Any, got: float) -> float:
    form = FORMATS[dtype]
    if mp.isnan(want) or math.isnan(got):
        return 0.0 if mp.isnan(want) and math.isnan(got) else math.inf
    if abs(want) >= mp.mpf(2) ** (form.bias + 1) or math.isinf(got):
        return 0.0 if float(want) == got or abs(want) >= 2.0**form.bias * 1.99999999 else math.inf
    floor = SPECIAL[name].floor if dtype == "f64" else 0.0
    size = max(abs(want), floor, form.least_normal)
    return float(abs(want - got) / mp.mpf(2) ** (mp.frexp(size)[1] - 1 - form.mantissa))


def _speed(name: str, dtype: str) -> tuple[float, float]:
    """Ours and torch's on one thread, over 4096 elements that stay in the first cache."""
    compiled = Compiled(name, dtype, LANES[dtype])
    wide = {"f32": torch.float32, "f64": torch.float64}[dtype]
    x, y, out = torch.rand(3, 4096, dtype=wide, device="cpu")
    if name == "zeta":
        x = x + 1.5
    operands = (x, y)[: SPECIAL[name].arity]
    pointers = [t.data_ptr() for t in (x, y, out)]
    return (
        nanoseconds(lambda: compiled.run(*pointers, 4096), 4096, turns=4),
        nanoseconds(lambda: _TORCH[name](*operands, out=out), 4096, turns=4),
    )


def _row(name: str, dtype: str, count: int) -> Row:
    operands = points(name, dtype, count)
    error = errors(name, dtype, operands)
    i = int(np.argmax(error))
    worst = tuple(float(x[i]) for x in operands)
    stated = SPECIAL[name].ulp[dtype]
    return Row(name, dtype, stated, float(error[i]), worst, *_speed(name, dtype))


def measure(names: Iterable[str] = SPECIAL, count: int = 2000) -> list[Row]:
    """A row for each function and type; some minutes with the count given here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(name, dtype, count) for dtype in LANES for name in names]
    finally:
        torch.set_num_threads(threads)


def markdown(rows: list[Row]) -> str:
    """The second part of `docs/math-accuracy.md`."""
    head = (
        "\n## Special functions\n\n"
        "Written by `litz.codegen.llvm.special_accuracy`: the same against 120 bits, on points "
        "where each function has something to show (`SPANS`). Of those with zeros (lgamma, "
        "digamma, j0, ...) f64 results below 1 count as of size 1.\n\n"
    )
    return head + table(rows)


if __name__ == "__main__":
    print(markdown(measure()), end="")
