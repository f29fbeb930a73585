"""Variances: of a few long rows, pieces give their mean and their spread in one pass.

In: loops, after inlining. Out: loops, where a variance waits for a mean over rows that would be
split over the programs of a GPU. Each of the two would be a sum of pieces by itself, and read all
elements. Here a piece finds its own mean and, while it is still in a cache, the sum of squares
around that; a second small loop brings the pieces together. Grouping then makes one kernel of each
pair. Example, with pieces of k elements:

    m = mean of x[j];  v = sum of (x[j] - m)^2                                    over all j
    ->  mp[o] = mean of x[o, l];  vp[o] = sum of (x[o, l] - mp[o])^2              over each piece o
        m = mean of mp[o];        v = sum of vp[o] + k * (mp[o] - m)^2            over the pieces

No large numbers are subtracted from each other, so it is as exact as two passes are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from litz.config import Config
from litz.fuse.split import (
    MOST_PIECES,
    PIECE,
    WORTH_SPLITTING,
    Cut,
    as_read,
    cut_axes,
    few_rows,
    parts_of,
    piece_of,
    put,
    reads_along,
    sole_reduction,
    tasks_of,
)
from litz.ir.expr import Expr, apply, const, extent_of, load, reduce, substitute
from litz.ir.program import Buffer, Decision, Extern, Loop, Store, loads, written
from litz.target import Target

Body = tuple[Loop | Extern, ...]


@dataclass(frozen=True)
class _Pair:
    """`center` is the mean of f; `spread` holds `summed`, which sums the squares of f - mean."""

    center: Loop
    spread: Loop
    summed: Expr
    f: Expr  # in the axes of `spread`
    mean: Expr  # as that loads it


def join_moments(body: Body, target: Target, config: Config) -> tuple[Body, list[Decision]]:
    """Rewrite every pair that would be split."""
    decisions: list[Decision] = []
    if not config.split_reductions or not target.few_rows:
        return body, decisions
    makers: dict[Buffer, list[Loop | Extern]] = defaultdict(list)
    for step in body:
        for buffer in written(step):
            makers[buffer].append(step)
    now: dict[int, list[Loop]] = {}
    for step in body:
        pair = _pair(step, makers) if isinstance(step, Loop) else None
        cut = _cut(pair, target) if pair is not None else None
        if pair is None or cut is None or id(pair.center) in now:
            continue
        now[id(pair.center)], now[id(pair.spread)] = _in_pieces(pair, cut)
        names = pair.center.stores[0].buffer.name, pair.spread.stores[0].buffer.name
        way = f"mean and variance in {extent_of(cut.outer)} pieces a row (split_reductions)"
        decisions.append(Decision("rewritten", *names, way))
    return _replaced(body, now), decisions


def _replaced(body: Sequence[Loop | Extern], now: dict[int, list[Loop]]) -> Body:
    found: list[Loop | Extern] = []
    for step in body:
        found += now.get(id(step), [step])
    return tuple(found)


def _pair(spread: Loop, makers: dict[Buffer, list[Loop | Extern]]) -> _Pair | None:
    """The mean that a sum of squares waits for."""
    summed = sole_reduction(spread, "sum")
    square = summed.args[0] if summed is not None else None
    if summed is None or square is None or square.op != "mul" or square.args[0].op != "sub":
        return None
    distance, again = square.args
    f, middle = distance.args
    if distance is not again or middle.op != "load" or middle.guard is not None:
        return None
    made = makers[middle.buffer]
    center = made[0] if len(made) == 1 else None
    if not isinstance(center, Loop) or _extents(center) != _extents(spread):
        return None
    names = dict(zip(_all_axes(center), _all_axes(spread), strict=True))
    total, store = sole_reduction(center, "sum"), center.stores[0]
    if total is None or tuple(substitute(i, names) for i in store.index) != middle.index:
        return None
    count = const(extent_of(center.reduced), total.dtype)
    is_mean = store.value is apply("div", total, count)
    if not is_mean or substitute(total.args[0], names) is not f:
        return None
    return _Pair(center, spread, summed, f, middle)


def _all_axes(loop: Loop) -> tuple[Expr, ...]:
    return (*loop.axes, *loop.reduced)


def _extents(loop: Loop) -> list[list[Expr]]:
    return [[a.extent for a in axes] for axes in (loop.axes, loop.reduced)]


def _cut(pair: _Pair, target: Target) -> Cut | None:
    """Pieces of one length, so many that they are not split again, nor is what joins them."""
    spread = pair.spread
    if not all(a.extent.is_const for a in (*spread.axes, *spread.reduced)):
        return None
    rows, points = extent_of(spread.axes), extent_of(spread.reduced)
    along = reads_along(spread.reduced, loads(pair.f))

    def is_split(pieces: int) -> bool:
        tasks = tasks_of(rows * pieces, points // pieces, along, target)
        return few_rows(tasks, rows * points // max(tasks, 1), target)

    if not is_split(1):
        return None
    tasks = tasks_of(rows, points, along, target)
    most = min(max(MOST_PIECES, target.most_pieces), rows * points // (tasks * PIECE))
    most = min(most, WORTH_SPLITTING // rows)
    for wanted in (most, most * 3 // 4, most // 2):  # even ones may be twice as many as asked for
        cut = cut_axes(spread.reduced, wanted)
        pieces = extent_of(cut.outer)
        few = rows * pieces < WORTH_SPLITTING and not is_split(pieces)
        if few and cut.outer and cut.guard is None:
            return cut
    return None


def _in_pieces(pair: _Pair, cut: Cut) -> tuple[list[Loop], list[Loop]]:
    """The loops instead of the mean, and instead of what holds the sum of squares."""
    center, spread = pair.center, pair.spread
    dtype, names = pair.summed.dtype, [lp.stores[0].buffer for lp in (center, spread)]
    rows = as_read((*cut.outer, *spread.axes), [piece_of(pair.summed, cut)])
    means, squares = (parts_of(f"{b.name}_piece", pair.summed, rows, b) for b in names)
    length = const(extent_of(cut.inner), dtype)
    total = piece_of(reduce("sum", spread.reduced, pair.f), cut)
    distance = apply("sub", pair.f, load(means, rows))
    square = piece_of(reduce("sum", spread.reduced, apply("mul", distance, distance)), cut)
    first = [
        Loop(rows, cut.inner, (Store(means, rows, apply("div", total, length)),), center.origins),
        Loop(rows, cut.inner, (Store(squares, rows, square),), spread.origins),
    ]
    mean = reduce("sum", cut.outer, load(means, rows))
    mean = apply("div", mean, const(extent_of(cut.outer), dtype))
    whole = replace(center.stores[0], index=pair.mean.index, value=mean)
    apart = apply("sub", load(means, rows), pair.mean)
    around = apply("mul", length, apply("mul", apart, apart))
    summed = reduce("sum", cut.outer, apply("add", load(squares, rows), around))
    held = spread.stores[0]
    last = replace(held, value=put(held.value, {pair.summed: summed}))
    joined = Loop(spread.axes, cut.outer, (whole,), center.origins)
    return [*first, joined], [replace(spread, reduced=cut.outer, stores=(last,))]
