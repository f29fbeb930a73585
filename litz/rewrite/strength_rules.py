"""Strength reduction: expensive ops become cheap ones that give the same bits.

In: nothing. Out: `STRENGTH_RULES`. Eager computes powers with these exponents as products too, so
the product is the reference. `x ** 0.5` stays, because it differs from `sqrt(x)` at -0.0 and -inf.
Integer `//` and `%` stay: the index algebra reads them, and LLVM turns them into shifts itself.
"""

from __future__ import annotations

import math
import sys

from litz.ir.dtypes import F64
from litz.ir.expr import Expr, const
from litz.rewrite.engine import Rule
from litz.rewrite.pattern import Bindings

_F32_LEAST_NORMAL = 2.0**-126


def _exact_reciprocal(m: Bindings) -> Expr | None:
    """1 / K if K is a power of two and 1 / K is normal: a denormal may be flushed to zero."""
    value, dtype = m["K"].attr, m["K"].dtype
    if dtype.is_narrow or abs(math.frexp(value)[0]) != 0.5:
        return None
    result = const(1 / value, dtype)
    least = sys.float_info.min if dtype is F64 else _F32_LEAST_NORMAL
    return result if math.isfinite(result.attr) and abs(result.attr) >= least else None


STRENGTH_RULES = [
    Rule("pow_zero", "x ** 0 -> 1", "number"),
    Rule("pow_one", "x ** 1 -> x", "number"),
    Rule("pow_two", "x ** 2 -> x * x", "number"),
    Rule("pow_three", "x ** 3 -> x * x * x", "number"),
    Rule("pow_minus_one", "x ** -1 -> 1 / x", "float"),
    Rule("pow_minus_two", "x ** -2 -> 1 / (x * x)", "float"),
    Rule("recip_of_root", "1 / sqrt(x) -> rsqrt(x)", "float"),
    Rule("div_power_of_two", "x / K -> x * R", "float", let={"R": _exact_reciprocal}),
]
