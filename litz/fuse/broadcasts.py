"""Broadcasts: a small value that groups of neighbours share is copied for each of them.

In: loops, after inlining. Out: loops. A value read at `c // 6` along the contiguous axis would
split that axis into runs of six, with most lanes of a vector idle. If the value is small beside the
loop, a copy of it with one element per `c` leaves the axis whole. Example, a group norm of 48
channels in 8 groups, channels last:

    y[p, c < 48] = x[p, c] - mean[c // 6]
    ->  mean_broadcast[c < 48] = mean[c // 6];  y[p, c] = x[p, c] - mean_broadcast[c]
"""

from __future__ import annotations

from dataclasses import replace

from litz.fuse.inline import MANY_REPEATS, memory_order
from litz.fuse.split_reductions import replace_nodes
from litz.ir.expr import Expr, extent_of, load, walk
from litz.ir.index import row_major
from litz.ir.program import Buffer, Decision, Extern, Loop, Store, loads
from litz.ir.sizes import is_multiple
from litz.target import Target

Body = tuple[Loop | Extern, ...]


def materialize_broadcasts(body: Body, target: Target) -> tuple[Body, list[Decision]]:
    """Copy values that are shared by fewer neighbours than a vector has lanes."""
    result: list[Loop | Extern] = []
    copies: dict[Expr, Buffer] = {}
    decisions = []
    for step in body:
        shared = _shared(step, target) if isinstance(step, Loop) else []
        if not isinstance(step, Loop) or not shared:
            result.append(step)
            continue
        for node in shared:
            if node not in copies:
                copies[node] = _add_copy(node, step, len(copies), result)
        reads = {node: load(copies[node], _place(node, step)) for node in shared}
        (store,) = step.stores
        result.append(
            replace(step, stores=(replace(store, value=replace_nodes(store.value, reads)),))
        )
        names = ", ".join(dict.fromkeys(node.buffer.name for node in shared))
        reason = "written out once for each of the neighbours that share an element"
        decisions.append(Decision("rewritten", names, store.buffer.name, reason))
    return tuple(result), decisions


def _shared(loop: Loop, target: Target) -> list[Expr]:
    """Small loads whose index divides the innermost axis, if nothing else would split it anyway."""
    (store,) = loop.stores
    axes = memory_order(loop)
    if loop.reduced or not axes:
        return []
    points, last = extent_of(axes), axes[-1]
    lanes = max(target.vector_bytes // store.buffer.dtype.bytes, 1)
    cuts = {n for n in walk(store.value, *store.index) if _cuts(n, last, lanes)}
    if not cuts:
        return []
    small = [
        node for node in loads(store.value)
        if node.guard is None and cuts.intersection(walk(*node.index))
        and extent_of(node.axes) * MANY_REPEATS <= points and not loads(*node.index)
    ]  # fmt: skip
    inside = set(walk(*(i for node in small for i in node.index)))
    return small if cuts <= inside else []


def _cuts(node: Expr, last: Expr, lanes: int) -> bool:
    """Whether a division would split the axis into runs that do not fill vectors."""
    if node.op not in ("floordiv", "mod") or node.args[0] is not last or not node.args[1].is_const:
        return False
    by = node.args[1].number
    return by > 1 and is_multiple(last.extent, by) and by % lanes != 0


def _place(node: Expr, loop: Loop) -> tuple[Expr, ...]:
    return tuple(a for a in loop.axes if a in node.axes)


def _add_copy(node: Expr, loop: Loop, number: int, body: list[Loop | Extern]) -> Buffer:
    """Append a loop that stores a load over its own axes."""
    place = _place(node, loop)
    shape = tuple(a.extent for a in place)
    name = f"{node.buffer.name}_broadcast{number}"
    made = Buffer(name, node.buffer.dtype, shape, row_major(shape))
    body.append(Loop(place, (), (Store(made, place, node),), loop.origins))
    return made
