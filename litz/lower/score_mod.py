"""score_mod inlining: a graph's value at one position, as an expression.

In: pointwise steps, lowered into a separate list, and functions that supply the elements of their
input buffers. Out: an `Expr`. Example: of `t0 = dot * 0.125; t1 = t0 + mask`, the value of t1 at
(i0, r1) is `dot[i0, r1] * 0.125 + mask[i0, r1]`, where `dot[i0, r1]` may be any expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from litz.ir.expr import Expr, apply, const, rebuild, transform
from litz.ir.program import Buffer, Extern, Loop
from litz.ir.store_forwarding import value_at
from litz.lower.registry import FallbackToAten
from litz.lower.values import View

# Buffer -> a function from an index to the value there.
Given = Mapping[Buffer, Callable[[tuple[Expr, ...]], Expr]]


def inline_value(
    view: View, place: Sequence[Expr], steps: Sequence[Loop | Extern], given: Given
) -> Expr:
    """The element of a view at a position, recomputed there."""
    made = {}
    for step in steps:
        if not isinstance(step, Loop) or step.reduced or step.ordered:
            raise FallbackToAten("a step that is not pointwise")
        made[step.stores[0].buffer] = step.stores[0]
    memo: dict[Expr, Expr] = {}

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        if node.op != "load":
            return node
        if node.buffer in made:
            return transform(value_at(made[node.buffer], node), change, memo)
        if node.buffer not in given:
            return node
        value = given[node.buffer](node.index)
        if node.guard is None:
            return value
        return apply("where", node.guard, value, const(0, value.dtype))

    return transform(view.at(place), change, memo)
