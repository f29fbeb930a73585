"""erf (either float type), erfc (f32, through f64) and erfcx (f64).

In: a builder and its operand. Out: the result. Example: `erf(b, x)`.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.coefficients import CONSTANTS, POLYNOMIALS
from litz.codegen.llvm.math.error_coefficients import ERROR
from litz.codegen.llvm.math.exponential import exp, exp_of
from litz.codegen.llvm.math.f64_intermediates import exp2_wide, narrow, widen

# Where the series around zero ends, and where erf rounds to one.
_NEAR = {"f32": 0.9453125, "f64": 1.0}
_IS_ONE = {"f32": 4.0, "f64": 6.0}


def erf(b: Builder, x: Value) -> Value:
    """x + x P(x^2) near zero, 1 - exp(-g(|x|)) elsewhere, g = -log(erfc) as a polynomial."""
    a = b.at_most(b.abs(x), _IS_ONE[b.dtype])
    near = b.fma(a, b.horner(b.mul(a, a), POLYNOMIALS["erf", b.dtype]), a)
    g = b.horner(a, POLYNOMIALS["erf_tail", b.dtype])
    far = b.sub(1.0, exp_of(b, b.neg(g)))
    return b.copysign(b.select(b.compare("olt", a, _NEAR[b.dtype]), near, far), x)


def erfc(b: Builder, x: Value) -> Value:
    """exp(-a^2) G(t), t = (a - 3) / (a + 3), a = |x|; and 2 less that for negative x."""
    wide = widen(b, x)
    a = b.at_most(b.abs(wide), 10.25)  # beyond which it rounds to zero
    t = b.div(b.sub(a, 3.0), b.add(a, 3.0))
    gauss = exp2_wide(b, b.mul(b.mul(a, a), -CONSTANTS["log2_e", "f64"][0]))
    tail = b.mul(gauss, b.horner(t, POLYNOMIALS["erfc_wide", "f64"]))
    return narrow(b, b.select(b.compare("olt", wide, 0.0), b.sub(2.0, tail), tail))


def erfcx(b: Builder, x: Value) -> Value:
    """G((a - 4) / (a + 4)) / (a + 1/2), a = |x|; for negative x 2 exp(x^2) less that.

    The square is a sum of two floats, or its rounding alone would cost hundreds of ULP.
    """
    a = b.abs(x)
    t = b.div(b.sub(a, 4.0), b.add(a, 4.0))
    positive = b.div(b.horner(t, ERROR["erfcx"]), b.add(a, 0.5))
    positive = b.select(b.compare("oeq", a, math.inf), 0.0, positive)
    square = b.mul(x, x)
    gauss = exp(b, square)
    whole = b.fma(gauss, b.fma(x, x, b.neg(square)), gauss)
    gauss = b.select(b.compare("oeq", gauss, math.inf), gauss, whole)
    negative = b.fma(gauss, 2.0, b.neg(positive))
    return b.select(b.compare("olt", x, 0.0), negative, positive)
