"""Store forwarding: a load becomes the value that was stored there.

In: a `Store` and a load of its buffer. Out: the stored value at the load's index. Example: after
`t[i0] = exp(x[i0])`, the load `t[i1 * 2]` is `exp(x[i1 * 2])`.
"""

from __future__ import annotations

from litz.ir.checks import CHECK_OPS
from litz.ir.dtypes import BOOL
from litz.ir.expr import Expr, apply, const, load, rebuild, substitute, transform
from litz.ir.index import ZERO, simplify_indices, surely_inside
from litz.ir.program import Buffer, Origin, Store


def forward_stores(
    root: Expr,
    finals: dict[Buffer, tuple[Store, tuple[Origin, ...]]],
    memo: dict[Expr, Expr],
) -> Expr:
    """The expression with loads of the buffers in `finals` replaced by the values stored there."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        if node.op == "load" and node.buffer in finals:
            return value_at(finals[node.buffer][0], node)
        return node

    if root in memo:
        return memo[root]
    return transform(root, change, memo)


def value_at(store: Store, node: Expr) -> Expr:
    """The stored value at the index of a load; the load's guard goes to every load inside it."""
    places = {
        variable: index
        for variable, index in zip(store.index, node.index, strict=True)
        if variable.op == "axis" and variable is not index
    }
    value = substitute(store.value, places)
    if places:
        value = simplify_indices(value)
    if node.guard is None:
        return value
    return apply("where", node.guard, guarded(value, node.guard), const(0, value.dtype))


def guarded(root: Expr, guard: Expr) -> Expr:
    """The expression with its loads and checks restricted to where `guard` holds. A load that is in
    range anyway stays unguarded, so that it can be hoisted out of the guard's loop."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        if node.op in CHECK_OPS:
            return _checked_where(guard, node)
        if node.op != "load" or (node.guard is None and _in_range(node)):
            return node
        both = guard if node.guard is None else apply("and", guard, node.guard)
        return load(node.buffer, node.index, both)

    return transform(root, change)


def _checked_where(guard: Expr, node: Expr) -> Expr:
    """The same check, which passes where the guard does not hold."""
    if node.op == "check_index":
        index, extent = node.args
        return rebuild(node, (apply("where", guard, index, ZERO), extent))
    if node.op == "check_divisor":
        (divisor,) = node.args
        return rebuild(node, (apply("where", guard, divisor, const(1, divisor.dtype)),))
    condition, *rest = node.args
    return rebuild(node, (apply("where", guard, condition, const(True, BOOL)), *rest))


def _in_range(node: Expr) -> bool:
    return all(surely_inside(i, n) for i, n in zip(node.index, node.buffer.shape, strict=True))
