"""Part of a graph as an expression: what its nodes compute at one place.

In: steps that were lowered aside, all pointwise, and what stands for the buffers they begin with.
Out: an `Expr`. Example: of `t0 = dot * 0.125; t1 = t0 + mask`, the value of t1 at (i0, r1) is
`dot[i0, r1] * 0.125 + mask[i0, r1]`, where `dot[i0, r1]` may be any expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from litz.ir.expr import Expr, apply, const, rebuild, transform
from litz.ir.program import Buffer, Extern, Loop
from litz.ir.stored import value_at
from litz.lower.registry import NotGenerated
from litz.lower.values import View

# What stands at an index of a buffer.
Given = Mapping[Buffer, Callable[[tuple[Expr, ...]], Expr]]


def value_aside(
    view: View, place: Sequence[Expr], steps: Sequence[Loop | Extern], given: Given
) -> Expr:
    """The element of a view at a place, computed where it is read."""
    made = {}
    for step in steps:
        if not isinstance(step, Loop) or step.reduced or step.ordered:
            raise NotGenerated("a step that is not pointwise")
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
