"""erf (either float type) and erfc (f32, through f64).

In: a builder and its operand. Out: the result. Example: `erf(b, x)`.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Value
from litz.codegen.llvm.math.coefficients import CONSTANTS, POLYNOMIALS
from litz.codegen.llvm.math.exponential import exp_of
from litz.codegen.llvm.math.wide import exp2_wide, narrow, widen

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
