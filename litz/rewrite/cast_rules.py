"""Rules for conversions of element types.

In: nothing. Out: `CAST_RULES`, which are exact, and `ROUNDING_RULES`, which drop roundings to a
storage type that the program did not ask for (`narrow`). `emulate_precision_casts` leaves the
latter out.
Example: `cast.bf16(cast.f32(x)) -> x` where x is bf16, because f32 holds every bf16 value.
"""

from __future__ import annotations

from litz.ir.dtypes import BF16, BOOL, E4M3, E5M2, F16, F32, F64, DType
from litz.rewrite.engine import Rule
from litz.rewrite.pattern import Bindings

# Significant bits and largest binary exponent: they decide whether one float type contains another.
_FLOATS = {
    F64: (53, 1023),
    F32: (24, 127),
    F16: (11, 15),
    BF16: (8, 127),
    E4M3: (4, 8),
    E5M2: (3, 15),
}


def represents_all(outer: DType, inner: DType) -> bool:
    """Whether every value of `inner` is a value of `outer`."""
    if inner is outer or inner is BOOL:
        return True
    if outer is BOOL:
        return False
    magnitude = inner.bits - (inner.kind == "i")
    if outer.is_float and inner.is_float:
        return all(a >= b for a, b in zip(_FLOATS[outer], _FLOATS[inner], strict=True))
    if outer.is_float:
        return magnitude <= _FLOATS[outer][0]
    if inner.is_float or (inner.kind == "i" and outer.kind == "u"):
        return False
    return magnitude <= outer.bits - (outer.kind == "i")


def _is_way_back(m: Bindings) -> bool:
    """Whether x was widened and comes back to its own type."""
    root, x = m["root"], m["x"]
    return root.dtype is x.dtype and represents_all(root.args[0].dtype, x.dtype)


def is_detour(source: DType, middle: DType, target: DType) -> bool:
    """Whether a cast through `middle` gives the same as a direct cast to `target`."""
    if source.is_int and middle.is_int and target.is_int and middle.bits >= target.bits:
        return True  # both ways keep the low bits
    # The cast of a float outside an integer's range is undefined, while integers wrap.
    wraps = (
        source.is_int and middle.is_float and target.is_int and not represents_all(target, source)
    )
    return represents_all(middle, source) and not wraps


def _passes_through(m: Bindings) -> bool:
    return is_detour(m["x"].dtype, m["root"].args[0].dtype, m["root"].dtype)


def _is_same_type(m: Bindings) -> bool:
    return m["root"].dtype is m["x"].dtype


def _keeps_numbers(m: Bindings) -> bool:
    """Whether the cast makes no NaN of a number: one too large for e4m3 becomes NaN."""
    return m["x"].dtype.is_float and m["root"].args[0].dtype is not E4M3


def _was_whole(m: Bindings) -> bool:
    return not m["x"].dtype.is_float and m["root"].args[0].dtype is not E4M3


def _is_wider_float(m: Bindings) -> bool:
    root, x = m["root"].dtype, m["x"].dtype
    return x.is_float and root.is_float and root is not x and represents_all(root, x)


CAST_RULES = [
    Rule("cast_back", "cast(cast(x)) -> x", when=_is_way_back),
    Rule("narrow_back", "narrow(cast(x)) -> x", when=_is_way_back),
    Rule("cast_cast", "cast(cast(x)) -> cast(x)", when=_passes_through),
    Rule("nan_of_cast", "isnan(cast(x)) -> isnan(x)", when=_keeps_numbers),
    Rule("nan_of_whole", "isnan(cast(x)) -> False", when=_was_whole),
]

ROUNDING_RULES = [
    Rule("widen_narrow", "cast(narrow(x)) -> x", when=_is_same_type),
    Rule("widen_narrow_more", "cast(narrow(x)) -> cast(x)", when=_is_wider_float),
]
