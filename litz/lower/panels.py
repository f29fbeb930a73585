"""Panels: a matrix packed in the order in which the blocks of a GEMM read it.

In: a `View` of [..., k, j]. Out: a buffer [..., j // width, k, j % width], the last panel padded
with zeros. With groups, neighbours along k are contiguous for each column. Example: 768 x 768 in
panels of 64 columns and pairs is [12, 384, 64, 2].
"""

from __future__ import annotations

from litz.ir.expr import Expr, apply, integer
from litz.ir.index import ZERO, floordiv, modulo, ravel
from litz.ir.program import Buffer, Loop, Store
from litz.ir.sizes import ceil_div
from litz.lower.values import Lowering, View, positions


def in_panels(place: tuple[Expr, ...], width: int, group: int) -> tuple[Expr, ...]:
    """The position of element [..., k, j]: [..., j // width, k // group, j % width, k % group]."""
    *batch, k, j = place
    panel, inside = floordiv(j, integer(width)), modulo(j, integer(width))
    if group == 1:
        return (*batch, panel, k, inside)
    return (*batch, panel, floordiv(k, integer(group)), inside, modulo(k, integer(group)))


def packed_panels(low: Lowering, b: View, width: int, group: int) -> Buffer:
    """A matrix in zero-padded panels; all GEMMs that read it share it."""
    found = low.packed.get((b, width, group))
    if found is not None:
        return found
    *batch, depth, columns = b.shape
    panels, steps = -(-columns.number // width), ceil_div(depth, group)
    parts = (integer(width),) if group == 1 else (integer(width), integer(group))
    made = low.contiguous_buffer((*batch, integer(panels), steps, *parts), b.dtype)
    place = positions(made.shape)
    front, (panel, step, inside, *part) = place[: len(batch)], place[len(batch) :]
    column = ravel((panel, inside), (integer(panels), integer(width)))
    k = ravel((step, *part), (steps, integer(group))) if part else step
    value = b.at((*front, k, column), _inside((column, columns, width), (k, depth, group)))
    axes = tuple(a for a in place if a is not ZERO)
    low.body.append(Loop(axes, (), (Store(made, place, value),), (low.origin,)))
    low.packed[b, width, group] = made
    return made


def _inside(*limits: tuple[Expr, Expr, int]) -> Expr | None:
    """Whether each number is below its limit; None if every limit is a whole multiple."""
    guard = None
    for number, limit, multiple in limits:
        if multiple > 1 and limit.number % multiple:
            below = apply("lt", number, limit)
            guard = below if guard is None else apply("and", guard, below)
    return guard
