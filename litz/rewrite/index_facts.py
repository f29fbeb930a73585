"""What is known about i64 expressions made of axes, sizes and constants alone.

In: an i64 `Expr`. Out: how large it can get (`IndexFacts.magnitude`), and comparisons that its
range decides. Example: `i0 < 128` is true if i0 runs over 128. The index algebra computes with
unbounded integers, while tensors of int64 wrap: so a value is handed to it only if no step towards
it can leave the range.
"""

from __future__ import annotations

from litz.ir.dtypes import BOOL, I64
from litz.ir.expr import Expr, apply, const
from litz.ir.index import Poly, bounds, is_nonnegative, simplify, to_poly

ARITHMETIC = frozenset(("add", "sub", "mul", "neg", "floordiv", "mod", "check_index"))
COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_LIMIT = 1 << 62
_UNKNOWN_SIZE = 1 << 31  # a dimension may be this long; products of two still fit


class IndexFacts:
    """Magnitudes by node, computed once each, and simplified indices."""

    def __init__(self) -> None:
        self._magnitudes: dict[Expr, int | None] = {}

    def is_index(self, node: Expr) -> bool:
        """Whether the index algebra is exact for this value."""
        return node.dtype is I64 and self.magnitude(node) is not None

    def magnitude(self, root: Expr) -> int | None:
        """The greatest absolute value of any step towards it; None if it may wrap."""
        known = self._magnitudes
        stack = [] if root in known else [root]
        while stack:
            node = stack[-1]
            missing = [a for a in node.args if a not in known] if node.op in ARITHMETIC else []
            if missing:
                stack.extend(missing)
                continue
            known[node] = self._of(node)
            stack.pop()
        return known[root]

    def _of(self, node: Expr) -> int | None:
        if node.dtype is not I64:
            return None
        if node.is_const:
            return _limited(abs(node.attr))
        if node.op == "size":
            return _limited(_UNKNOWN_SIZE if node.attr[2] is None else node.attr[2])
        if node.op == "axis":
            return self.magnitude(node.extent)
        if node.op not in ARITHMETIC:
            return None
        if node.op == "check_index":  # whatever the operand was, the check has passed
            return self._magnitudes[node.args[1]]
        parts = [self._magnitudes[a] for a in node.args]
        if None in parts or (node.op in ("floordiv", "mod") and not _divides(node.args[1])):
            return None
        sizes = [p for p in parts if p is not None]
        return _limited(sizes[0] * sizes[1] if node.op == "mul" else sum(sizes))

    def decide(self, node: Expr) -> Expr | None:
        """A comparison, a minimum or a maximum of indices that the same operand always wins."""
        x, y = node.args
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


def _limited(value: int) -> int | None:
    return value if value < _LIMIT else None


def _divides(divisor: Expr) -> bool:
    """Whether the algebra's laws of division hold: the divisor is a size, or a positive number."""
    return divisor.attr > 0 if divisor.is_const else not divisor.axes


def _is_positive(poly: Poly) -> bool:
    return is_nonnegative({**poly, (): poly.get((), 0) - 1})
