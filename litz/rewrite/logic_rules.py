"""Rules for booleans, comparisons and `where`.

In: nothing. Out: `LOGIC_RULES`. A comparison with NaN is false, so `x == x` and `~(x < y)` are
rewritten for integers only, while `~(x == y) -> x != y` holds for every value.
"""

from __future__ import annotations

from litz.ir.dtypes import BOOL
from litz.rewrite.engine import FAMILIES, Rule
from litz.rewrite.pattern import Bindings


def _compares_integers(m: Bindings) -> bool:
    return FAMILIES["integral"](m["x"].dtype)


def _is_flag(m: Bindings) -> bool:
    """Whether b, which is converted to a number, is a boolean."""
    return m["b"].dtype is BOOL


LOGIC_RULES = [
    Rule("not_not", "~~x -> x", "integral"),
    Rule("and_same", "x & x -> x", "integral"),
    Rule("or_same", "x | x -> x", "integral"),
    Rule("and_true", "b & True -> b", "bool"),
    Rule("and_false", "b & False -> False", "bool"),
    Rule("or_true", "b | True -> True", "bool"),
    Rule("or_false", "b | False -> b", "bool"),
    Rule("flip", "b ^ True -> ~b", "bool"),
    Rule("keep", "b ^ False -> b", "bool"),
    Rule("flip_same", "b ^ b -> False", "bool"),
    Rule("and_not", "b & ~b -> False", "bool"),
    Rule("or_not", "b | ~b -> True", "bool"),
    Rule("and_absorb", "a & (a & b) -> a & b", "integral"),
    Rule("or_absorb", "a | (a | b) -> a | b", "integral"),
    # comparisons
    Rule("is_true", "b == True -> b", "bool"),
    Rule("is_false", "b == False -> ~b", "bool"),
    Rule("isnt_true", "b != True -> ~b", "bool"),
    Rule("isnt_false", "b != False -> b", "bool"),
    Rule("eq_same", "x == x -> True", "integral"),
    Rule("le_same", "x <= x -> True", "integral"),
    Rule("ge_same", "x >= x -> True", "integral"),
    Rule("ne_same", "x != x -> False", "integral"),
    Rule("lt_same", "x < x -> False"),
    Rule("gt_same", "x > x -> False"),
    Rule("not_eq", "~(x == y) -> x != y", "bool"),
    Rule("not_ne", "~(x != y) -> x == y", "bool"),
    Rule("not_lt", "~(x < y) -> x >= y", "bool", when=_compares_integers),
    Rule("not_le", "~(x <= y) -> x > y", "bool", when=_compares_integers),
    Rule("not_gt", "~(x > y) -> x <= y", "bool", when=_compares_integers),
    Rule("not_ge", "~(x >= y) -> x < y", "bool", when=_compares_integers),
    Rule("flag_set", "cast(b) != 0 -> b", "number", when=_is_flag),
    Rule("flag_clear", "cast(b) == 0 -> ~b", "number", when=_is_flag),
    Rule("nan_of_neg", "isnan(-x) -> isnan(x)", "float"),
    Rule("nan_of_abs", "isnan(abs(x)) -> isnan(x)", "float"),
    # choice
    Rule("where_true", "where(True, x, y) -> x"),
    Rule("where_false", "where(False, x, y) -> y"),
    Rule("where_same", "where(c, x, x) -> x"),
    Rule("where_not", "where(~c, x, y) -> where(c, y, x)"),
    Rule("where_then_where", "where(c, where(c, x, y), z) -> where(c, x, z)"),
    Rule("where_then_cast", "where(c, cast(where(c, x, y)), z) -> where(c, cast(x), z)"),
    Rule("where_else_where", "where(c, x, where(c, y, z)) -> where(c, x, z)"),
    Rule("where_is", "where(c, True, False) -> c", "bool"),
    Rule("where_isnt", "where(c, False, True) -> ~c", "bool"),
    Rule("where_and", "where(c, b, False) -> c & b", "bool"),
    Rule("where_or", "where(c, True, b) -> c | b", "bool"),
    Rule("where_flag", "where(c, 1, 0) -> cast(c)", "number"),
]
