"""How accurate and how fast the special functions are.

In: nothing. Out: `measure() -> [Row]`: each function of `SPECIAL` against mpmath on points spread
over where it has something to show. Example: `python -m litz.codegen.llvm.special_accuracy` prints
the second table of `docs/math-accuracy.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import mpmath as mp  # type: ignore[import-untyped]
import numpy as np
import torch

from litz.codegen.llvm.math import SPECIAL
from litz.codegen.llvm.math_accuracy import LANES, Array, Compiled, Row, nanoseconds, ulp_error
from litz.ir.special import exact

DTYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64}
COUNT = 2000

# Where the points lie: spans that are evenly filled, and spans of the exponent of ten.
SPANS: dict[str, tuple[list[tuple[float, float]], list[tuple[float, float]]]] = {
    "lgamma": ([(-30.5, 0), (0, 5)], [(-30, 30)]),
    "digamma": ([(-30.5, 0), (0, 5)], [(-30, 30)]),
    "erfcx": ([(-9, 10)], [(-10, 30)]),
    "erfinv": ([(-1, 1)], [(-30, 0)]),
    "ndtri": ([(0, 1)], [(-37, 0)]),
    "i0e": ([(-20, 20)], [(-10, 30)]),
    "i1e": ([(-20, 20)], [(-10, 30)]),
    "k0e": ([(0, 20)], [(-30, 30)]),
    "k1e": ([(0, 20)], [(-30, 30)]),
    "j0": ([(-30, 30)], [(-10, 8)]),
    "j1": ([(-30, 30)], [(-10, 8)]),
    "y0": ([(0, 30)], [(-30, 8)]),
    "y1": ([(0, 30)], [(-30, 8)]),
    "airy_ai": ([(-30, 20)], [(-10, 1)]),
    "logaddexp": ([(-50, 50)], [(-10, 10)]),
    "zeta": ([(-10, 30)], [(-2, 4)]),
}
