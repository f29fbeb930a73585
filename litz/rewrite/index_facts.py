"""Facts about i64 expressions of axes, sizes and constants, from their ranges.

In: a comparison of two such expressions, their minimum or their maximum. Out: its value, if the
ranges decide it. Example: `i0 < 128` is true if i0 runs over 128. The index algebra computes with
unbounded integers, while tensors of int64 wrap: so it gets only expressions that cannot wrap
(`litz/ir/magnitude.py`).
"""

from __future__ import annotations

from litz.ir.dtypes import BOOL
from litz.ir.expr import Expr, apply, const
from litz.ir.index import Poly, bounds, is_nonnegative, simplify, to_poly
from litz.ir.magnitude import is_exact

DECIDABLE = frozenset(("lt", "le", "gt", "ge", "eq", "ne", "min", "max"))


def decide(node: Expr) -> Expr | None:
    """The value of a comparison that is the same at every point, or the operand of a minimum or
    maximum that always wins; None if neither is known.

    No kernel computes the difference of the operands, so that only they must not wrap.
    """
    x, y = node.args
    if not is_exact(x) or not is_exact(y):
        return None
    span = bounds(to_poly(simplify(apply("sub", x, y))))
    if span is None:
        return None
    least, most = span
    negated = {m: -c for m, c in most.items()}
    never_less, never_more = is_nonnegative(least), is_nonnegative(negated)
    if node.op in ("min", "max"):
        wins = never_more if node.op == "min" else never_less
        loses = never_less if node.op == "min" else never_more
        return x if wins else y if loses else None
    always_more, always_less = _is_positive(least), _is_positive(negated)
    yes, no = {
        "lt": (always_less, never_less),
        "ge": (never_less, always_less),
        "gt": (always_more, never_more),
        "le": (never_more, always_more),
        "eq": (never_less and never_more, always_less or always_more),
        "ne": (always_less or always_more, never_less and never_more),
    }[node.op]
    return const(yes, BOOL) if yes or no else None


def _is_positive(poly: Poly) -> bool:
    return is_nonnegative({**poly, (): poly.get((), 0) - 1})
