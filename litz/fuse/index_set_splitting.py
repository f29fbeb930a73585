"""Index-set splitting: a loop that tests its position becomes one loop per segment, without tests.

In: loops, after inlining. Out: loops. A cat or a pad reads each operand under a test of its
position. Split into segments, each operand's producer is computed only where it is used, and stored
directly into its slice of the result. Example, a cat of 100 and 50 columns:

    y[i, j < 150] = where(j < 100, 2 * a[i, j], b[i, j - 100] + 1)
    ->  y[i, j < 100] = 2 * a[i, j];  y[i, 100 + j] = b[i, j] + 1 over j < 50

A result that another loop reads stays whole, so that the two can share rows. Short segments keep
their test: a border of a few columns would touch every cache line once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from litz.fuse.anchor import MIN_SEGMENTED_ROWS, is_sequential, may_overlap
from litz.ir.checks import CHECK_OPS
from litz.ir.expr import Expr, apply, axis, extent_of, integer, substitute, walk
from litz.ir.index import simplify, to_poly
from litz.ir.ops import OPS
from litz.ir.program import Buffer, Decision, Extern, Loop, read
from litz.rewrite import Simplifier

# The least contiguous bytes of a segment: a cache line if one kernel writes the whole row, four if
# the segment has its own kernel.
MIN_SEGMENT_BYTES_IN_ROW = 64
MIN_SEGMENT_BYTES = 256
# The cost of one more kernel, in float additions: about a microsecond of vector code.
KERNEL_COST = 1 << 15
# The cost of a load, in float additions: from a cache, and of data that an earlier kernel has read.
CACHED_LOAD_COST = 6
RELOAD_COST = 20
MAX_SEGMENTS = 8

Body = tuple[Loop | Extern, ...]


@dataclass(frozen=True)
class _Segment:
    """A loop over one part of the axis, and the cost of one element."""

    loop: Loop
    cost: int

    @property
    def points(self) -> int:
        return extent_of(self.loop.axes)


def split_index_sets(body: Body, simplifier: Simplifier) -> tuple[Body, list[Decision]]:
    """Split loops that test their position, where that saves more than the extra kernels cost."""
    inside = {b for step in body if isinstance(step, Loop) for b in read(step)}
    result: list[Loop | Extern] = []
    decisions = []
    for step in body:
        if isinstance(step, Extern) or not _may_split(step, inside):
            result.append(step)
            continue
        segments = _segments(step, simplifier, MAX_SEGMENTS)
        result += segments
        if len(segments) > 1:
            name = step.stores[0].buffer.name
            reason = f"stored in {len(segments)} segments: each computes what lies in it alone"
            decisions.append(Decision("rewritten", name, name, reason))
    return tuple(result), decisions


def _may_split(loop: Loop, inside: set[Buffer]) -> bool:
    store = loop.stores[0]
    if is_sequential(loop) or store.mode != "set" or store.buffer in inside:
        return False
    # A check also runs where its value is not selected, as in eager.
    return all(node.op not in CHECK_OPS for node in walk(store.value))


def _segments(loop: Loop, simplifier: Simplifier, most: int) -> list[Loop]:
    """Cut along the axis that saves the most, then cut each segment again."""
    whole = _Segment(loop, _cost(loop))
    best: tuple[int, list[_Segment]] = (0, [])
    for variable, points in _cuts(loop).items():
        if len(points) < most:
            segments = _cut(loop, variable, points, simplifier)
            saved = _saved(whole, segments, _in_rows(loop, variable))
            best = max(best, (saved, segments), key=lambda found: found[0])
    if not best[1]:
        return [loop]
    left = most - len(best[1]) + 1
    return [part for segment in best[1] for part in _segments(segment.loop, simplifier, left)]


def _cuts(loop: Loop) -> dict[Expr, list[int]]:
    """For each axis, the positions at which a test changes, without segments that are too short."""
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
        last = node.op in ("le", "gt")  # the number itself is left of the cut
        (variable,) = variables[0]
        if variable.op == "axis":
            yield variable, node.args[1].number - poly.get((), 0) + last


def _in_rows(loop: Loop, variable: Expr) -> bool:
    """Whether the segments have enough rows in common to share a kernel."""
    return extent_of(loop.axes[: loop.axes.index(variable)]) >= MIN_SEGMENTED_ROWS


def _shortest(loop: Loop, variable: Expr) -> int:
    """The shortest segment that stores whole cache lines."""
    store = loop.stores[0]
    steps = zip(store.index, store.buffer.strides, strict=True)
    step = min((s.hint for i, s in steps if variable in i.axes), default=1)
    run = MIN_SEGMENT_BYTES_IN_ROW if _in_rows(loop, variable) else MIN_SEGMENT_BYTES
    return max(-(-run // (max(step, 1) * store.buffer.dtype.bytes)), 1)


def _cut(loop: Loop, variable: Expr, points: list[int], simplifier: Simplifier) -> list[_Segment]:
    """loop j < n  ->  one loop per segment, with j = start + position in the segment."""
    store = loop.stores[0]
    segments = []
    for start, end in pairwise([0, *points, variable.extent.number]):
        part = axis(variable.attr, end - start)
        place = {variable: apply("add", part, integer(start)) if start else part}
        index = tuple(simplify(substitute(i, place)) for i in store.index)
        value = simplifier(substitute(store.value, place))
        axes = tuple(part if a is variable else a for a in loop.axes)
        made = Loop(axes, (), (replace(store, index=index, value=value),), loop.origins)
        segments.append(_Segment(made, _cost(made)))
    return segments


def _cost(loop: Loop) -> int:
    """The cost of one element, in float additions."""
    nodes = [n for n in walk(loop.stores[0].value) if n.axes]
    return sum(CACHED_LOAD_COST if n.op == "load" else OPS[n.op].cost for n in nodes if _counts(n))


def _counts(node: Expr) -> bool:
    return node.op == "load" or (node.op in OPS and node.dtype.name != "i64")


def _saved(whole: _Segment, segments: list[_Segment], in_rows: bool) -> int:
    """Additions saved by cutting, minus the extra kernels and the repeated reads."""
    again = CACHED_LOAD_COST if in_rows else RELOAD_COST
    saved = sum((whole.cost - segment.cost) * segment.points for segment in segments)
    saved -= (len(segments) - 1) * KERNEL_COST
    seen: dict[Buffer, list[tuple[Expr, ...]]] = {}
    for segment in segments:
        for node in segment.loop.loads:
            if any(may_overlap(node.index, other) for other in seen.get(node.buffer, ())):
                saved -= again * extent_of(node.axes)
        for node in segment.loop.loads:
            seen.setdefault(node.buffer, []).append(node.index)
    return saved
