"""How large an i64 value can get: which arithmetic is exact, and which may wrap.

In: an i64 `Expr`. Out: the greatest absolute value of it and its parts (`magnitude`), or None if
one may overflow 64 bits. An address cannot wrap, because memory is not that large; a value of a
program can. Example: `i0 * 2**58` with i0 < 8 is below 2**61. With i0 < 40 it may wrap, so that
`i0 * 2**58 // 2**50` is not `i0 * 256` there.
"""

from __future__ import annotations

from litz.ir.dtypes import I64
from litz.ir.expr import UNSEEN, Expr

ARITHMETIC = frozenset(("add", "sub", "mul", "neg", "floordiv", "mod", "check_index"))
LIMIT = 1 << 63
_LOWEST = -(1 << 62)  # a lower bound that means "unknown"
# No loop has more iterations, and no dimension more elements, than there are addresses.
_MOST_POINTS = 1 << 47


def is_exact(node: Expr) -> bool:
    """Whether this is arithmetic on axes, sizes and constants that never leaves 64 bits."""
    return node.dtype is I64 and magnitude(node) is not None


def magnitude(root: Expr) -> int | None:
    """The greatest absolute value of an expression and its parts; None if it may wrap."""
    stack = [root] if root.magnitude == UNSEEN else []
    while stack:
        node = stack[-1]
        below = node.args if node.op in ARITHMETIC or node.op == "axis" else ()
        missing = [a for a in below if a.magnitude == UNSEEN]
        if missing:
            stack.extend(missing)
            continue
        node.magnitude = _of(node)
        stack.pop()
    return root.magnitude


def _of(node: Expr) -> int | None:
    if node.dtype is not I64:
        return None
    if node.is_const:
        return _limited(abs(node.attr))
    if node.op == "size":
        return _of_size(*node.attr[1:3])
    if node.op == "axis":
        extent = node.extent.magnitude
        return _MOST_POINTS if extent is None else min(extent, _MOST_POINTS)
    if node.op not in ARITHMETIC:
        return None
    if node.op == "check_index":  # whatever the operand was, the check has passed
        return node.args[1].magnitude
    parts = [a.magnitude for a in node.args]
    if None in parts or (node.op in ("floordiv", "mod") and not _divides(node.args[1])):
        return None
    sizes = [p for p in parts if p is not None]
    if node.op in ("floordiv", "mod"):
        return sizes[0 if node.op == "floordiv" else 1]
    return _limited(sizes[0] * sizes[1] if node.op == "mul" else sum(sizes))


def _of_size(low: int, high: int | None) -> int | None:
    """The magnitude of a size; None for a number that may be negative and has no bound."""
    if low <= _LOWEST or (low < 0 and high is None):
        return None
    return _limited(max(_MOST_POINTS if high is None else high, abs(low)))


def _limited(value: int) -> int | None:
    return value if value < LIMIT else None


def _divides(divisor: Expr) -> bool:
    """Whether the algebra's laws of division hold: the divisor is a size, or a positive number."""
    return divisor.attr > 0 if divisor.is_const else not divisor.axes
