"""Arithmetic identities, exact for every value of the types they name.

In: nothing. Out: `VALUE_RULES` and `INTEGER_RULES`. Some integer rules are wrong for floats:
`x + 0.0` turns -0.0 into 0.0, `x * 0.0` keeps NaN, `x - x` is NaN for an infinity, sums do not
reassociate, and a max of a max may change the sign of a zero.
"""

from __future__ import annotations

from itertools import product

from litz.rewrite.engine import Rule
from litz.rewrite.pattern import Bindings

ROUNDINGS = ("floor", "ceil", "trunc", "round")


def _was_integer(m: Bindings) -> bool:
    return not m["n"].dtype.is_float


VALUE_RULES = [
    Rule("mul_one", "x * 1 -> x", "number"),
    Rule("mul_minus_one", "x * -1 -> -x", "number"),
    Rule("neg_neg", "-(-x) -> x", "number"),
    Rule("add_neg", "x + -y -> x - y", "number"),
    Rule("sub_neg", "x - -y -> x + y", "number"),
    Rule("mul_neg_neg", "-x * -y -> x * y", "number"),
    Rule("abs_abs", "abs(abs(x)) -> abs(x)", "number"),
    Rule("abs_neg", "abs(-x) -> abs(x)", "signed"),
    Rule("max_same", "max(x, x) -> x"),
    Rule("min_same", "min(x, x) -> x"),
    Rule("add_minus_zero", "x + -0.0 -> x", "float"),
    Rule("float_sub_zero", "x - 0.0 -> x", "float"),
    Rule("minus_zero_sub", "-0.0 - x -> -x", "float"),
    Rule("div_one", "x / 1 -> x", "float"),
    Rule("div_minus_one", "x / -1 -> -x", "float"),
    Rule("div_neg_neg", "-x / -y -> x / y", "float"),
    Rule("abs_square", "abs(x * x) -> x * x", "float"),
    # A number without a fraction stays: it is rounded already, or was an integer.
    *(
        Rule(f"{outer}_{inner}", f"{outer}({inner}(x)) -> {inner}(x)", "float")
        for outer, inner in product(ROUNDINGS, ROUNDINGS)
    ),
    *(Rule(f"{r}_integer", f"{r}(cast(n)) -> cast(n)", when=_was_integer) for r in ROUNDINGS),
]

INTEGER_RULES = [
    Rule("add_zero", "x + 0 -> x", "int"),
    Rule("sub_zero", "x - 0 -> x", "int"),
    Rule("zero_sub", "0 - x -> -x", "int"),
    Rule("sub_same", "x - x -> 0", "int"),
    Rule("add_sub", "x - y + y -> x", "int"),
    Rule("sub_add", "x + y - y -> x", "int"),
    Rule("mul_zero", "x * 0 -> 0", "int"),
    Rule("floordiv_one", "x // 1 -> x", "int"),
    Rule("floordiv_minus_one", "x // -1 -> -x", "int", when=lambda m: m["x"].dtype.kind == "i"),
    Rule("truncdiv_one", "truncdiv(x, 1) -> x", "int"),
    Rule("mod_one", "x % 1 -> 0", "int"),
    # Wrapping sums and products reassociate: the two constants fold into one.
    Rule("add_add", "x + A + B -> x + (A + B)", "int"),
    Rule("mul_mul", "x * A * B -> x * (A * B)", "int"),
    Rule("max_absorb", "max(max(x, y), y) -> max(x, y)", "int"),
    Rule("min_absorb", "min(min(x, y), y) -> min(x, y)", "int"),
    Rule("shl_zero", "x << 0 -> x", "int"),
    Rule("shr_zero", "x >> 0 -> x", "int"),
    Rule("and_zero", "x & 0 -> 0", "int"),
    Rule("and_ones", "x & -1 -> x", "int"),
    Rule("or_zero", "x | 0 -> x", "int"),
    Rule("or_ones", "x | -1 -> -1", "int"),
    Rule("xor_zero", "x ^ 0 -> x", "int"),
    Rule("xor_ones", "x ^ -1 -> ~x", "int"),
    Rule("xor_same", "x ^ x -> 0", "int"),
]
