"""Pieces: a loop that tests where it is becomes one loop for each place, without the tests.

In: loops, after inlining. Out: loops. A cat or a pad reads each operand under a test of its own
position; written out over the parts, each operand's producer is computed only where it is used and
stored straight into its window of the result. Example, a cat of 100 and 50 columns:

    y[i, j < 150] = where(j < 100, 2 * a[i, j], b[i, j - 100] + 1)
    ->  y[i, j < 100] = 2 * a[i, j];  y[i, 100 + j] = b[i, j] + 1 over j < 50

A result that another loop reads stays whole, so that the two can share rows. Short pieces stay
where they are, under their test: a border of a few columns would touch every line once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from litz.fuse.rows import FEWEST_WINDOWS, is_sequential, overlap
from litz.ir.checks import CHECK_OPS
from litz.ir.expr import Expr, apply, axis, extent_of, integer, substitute, walk
from litz.ir.index import simplify, to_poly
from litz.ir.ops import OPS
from litz.ir.program import Buffer, Decision, Extern, Loop, read
from litz.rewrite import Simplifier

# Bytes that lie together in a piece: a cache line of a row that one kernel writes from end to end,
# four of a window that a kernel of its own writes.
SHORTEST_IN_ROW = 64
SHORTEST_ALONE = 256
# What one more kernel costs, in float additions: about a microsecond of vectors.
A_KERNEL = 1 << 15
# What a load costs, in float additions: from a cache, and of what an earlier kernel has read.
A_LOAD = 6
A_LOAD_AGAIN = 20
MOST_PIECES = 8

Body = tuple[Loop | Extern, ...]


@dataclass(frozen=True)
class _Piece:
    """A loop over one part of the axis, and what an element of it costs."""

    loop: Loop
    cost: int

    @property
    def points(self) -> int:
        return extent_of(self.loop.axes)


def split_pieces(body: Body, simplifier: Simplifier) -> tuple[Body, list[Decision]]:
    """Write out what is tested by position, where that saves more than the kernels cost."""
    inside = {b for step in body if isinstance(step, Loop) for b in read(step)}
    result: list[Loop | Extern] = []
    decisions = []
    for step in body:
        if isinstance(step, Extern) or not _may_split(step, inside):
            result.append(step)
            continue
        pieces = _pieces(step, simplifier, MOST_PIECES)
        result += pieces
        if len(pieces) > 1:
            name = step.stores[0].buffer.name
            reason = f"stored in {len(pieces)} pieces: each computes what lies in it alone"
            decisions.append(Decision("rewritten", name, name, reason))
    return tuple(result), decisions


def _may_split(loop: Loop, inside: set[Buffer]) -> bool:
    store = loop.stores[0]
    if is_sequential(loop) or store.mode != "set" or store.buffer in inside:
        return False
    # A check is made also where the value is then not chosen, as eager does.
    return all(node.op not in CHECK_OPS for node in walk(store.value))


def _pieces(loop: Loop, simplifier: Simplifier, most: int) -> list[Loop]:
    """Cut along the axis that saves the most, and each piece again."""
    whole = _Piece(loop, _cost(loop))
    best: tuple[int, list[_Piece]] = (0, [])
    for variable, points in _cuts(loop).items():
        if len(points) < most:
            pieces = _cut(loop, variable, points, simplifier)
            saved = _saved(whole, pieces, _in_rows(loop, variable))
            best = max(best, (saved, pieces), key=lambda found: found[0])
    if not best[1]:
        return [loop]
    left = most - len(best[1]) + 1
    return [part for piece in best[1] for part in _pieces(piece.loop, simplifier, left)]


def _cuts(loop: Loop) -> dict[Expr, list[int]]:
    """For each axis, the positions between which no test changes; pieces are not too short."""
    found: dict[Expr, set[int]] = {a: set() for a in loop.axes}
    for node in walk(loop.stores[0].value):
        for variable, point in _changes(node):
            known = variable.extent.is_const
            if variable in found and known and 0 < point < variable.extent.number:
                found[variable].add(point)
    cuts = {}
    for variable, points in found.items():
        shortest = _shortest(loop, variable)
        kept = [0]
        for point in sorted(points):
            if min(point - kept[-1], variable.extent.number - point) >= shortest:
                kept.append(point)
        if len(kept) > 1:
            cuts[variable] = kept[1:]
    return cuts


def _changes(node: Expr) -> Iterator[tuple[Expr, int]]:
    """The position from which on a comparison of an axis with a number has another result."""
    if node.op not in ("lt", "ge", "le", "gt") or not node.args[1].is_const:
        return
    poly = to_poly(node.args[0]) if node.args[0].axes else {}
    variables = [m for m in poly if m]
    if len(variables) == 1 and len(variables[0]) == 1 and poly[variables[0]] == 1:
        last = node.op in ("le", "gt")  # the number itself is on the left of the cut
        (variable,) = variables[0]
        if variable.op == "axis":
            yield variable, node.args[1].number - poly.get((), 0) + last


def _in_rows(loop: Loop, variable: Expr) -> bool:
    """Whether the pieces lie side by side in enough rows to share a kernel."""
    return extent_of(loop.axes[: loop.axes.index(variable)]) >= FEWEST_WINDOWS


def _shortest(loop: Loop, variable: Expr) -> int:
    """How long a piece has to be so that it stores whole lines."""
    store = loop.stores[0]
    steps = zip(store.index, store.buffer.strides, strict=True)
    step = min((s.hint for i, s in steps if variable in i.axes), default=1)
    run = SHORTEST_IN_ROW if _in_rows(loop, variable) else SHORTEST_ALONE
    return max(-(-run // (max(step, 1) * store.buffer.dtype.bytes)), 1)


def _cut(loop: Loop, variable: Expr, points: list[int], simplifier: Simplifier) -> list[_Piece]:
    """loop j < n  ->  one loop over each part, j written as its start and the place in it."""
    store = loop.stores[0]
    pieces = []
    for start, end in pairwise([0, *points, variable.extent.number]):
        part = axis(variable.attr, end - start)
        place = {variable: apply("add", part, integer(start)) if start else part}
        index = tuple(simplify(substitute(i, place)) for i in store.index)
        value = simplifier(substitute(store.value, place))
        axes = tuple(part if a is variable else a for a in loop.axes)
        made = Loop(axes, (), (replace(store, index=index, value=value),), loop.origins)
        pieces.append(_Piece(made, _cost(made)))
    return pieces


def _cost(loop: Loop) -> int:
    """Of one element, in float additions."""
    nodes = [n for n in walk(loop.stores[0].value) if n.axes]
    return sum(A_LOAD if n.op == "load" else OPS[n.op].cost for n in nodes if _counts(n))


def _counts(node: Expr) -> bool:
    return node.op == "load" or (node.op in OPS and node.dtype.name != "i64")


def _saved(whole: _Piece, pieces: list[_Piece], in_rows: bool) -> int:
    """Additions saved by cutting, less the kernels and what is now read more than once."""
    again = A_LOAD if in_rows else A_LOAD_AGAIN
    saved = sum((whole.cost - piece.cost) * piece.points for piece in pieces)
    saved -= (len(pieces) - 1) * A_KERNEL
    seen: dict[Buffer, list[tuple[Expr, ...]]] = {}
    for piece in pieces:
        for node in piece.loop.loads:
            if any(overlap(node.index, other) for other in seen.get(node.buffer, ())):
                saved -= again * extent_of(node.axes)
        for node in piece.loop.loads:
            seen.setdefault(node.buffer, []).append(node.index)
    return saved
