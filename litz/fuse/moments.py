"""Variances: of a few long rows, pieces give their mean and their spread in one pass.

In: loops, after inlining. Out: loops, where a variance waits for a mean over rows that would be
split over the programs of a GPU. Each of the two would be a sum of pieces by itself, and read all
elements. Here a piece finds its own mean and, while it is still in a cache, the sums of distances
from that and of their squares; a second small loop brings the pieces together. Grouping then makes
one kernel of each pair. Example, with pieces of k elements:

    m = mean of x[j];  c = sum of x[j] - m;  s = sum of (x[j] - m)^2                   over all j
    ->  mp[o] = mean of x[o, l]
        cp[o] = sum of x[o, l] - mp[o];  sp[o] = sum of (x[o, l] - mp[o])^2            over a piece
        m = mean of mp[o];  d = mp[o] - m + cp[o] / k
        c = sum of k * d;   s = sum of sp[o] - cp[o]^2 / k + k * d^2                   over pieces

As in `lower/reduce.py`, sums of distances make up for means that are rounded: a piece lies at
mp + cp / k, and no large numbers are subtracted from each other. So it is as exact as two passes.
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
from litz.ir.expr import Expr, apply, const, extent_of, load, reduce, substitute, walk
from litz.ir.program import Buffer, Decision, Extern, Loop, Store, loads, written
from litz.target import Target

Body = tuple[Loop | Extern, ...]


@dataclass(frozen=True)
class _Spread:
    """A loop with the sum of distances from a mean, or of their squares, or both."""

    loop: Loop
    f: Expr  # what the mean is of
    mean: Expr  # as it is loaded
    off: Expr  # the sum of distances
    squares: Expr


@dataclass(frozen=True)
class _Moments:
    """`center` is the mean of f, and `spreads` are about it."""

    center: Loop
    spreads: list[_Spread]


def join_moments(body: Body, target: Target, config: Config) -> tuple[Body, list[Decision]]:
    """Rewrite all means and variances that would be split."""
    decisions: list[Decision] = []
    if not config.split_reductions or not target.few_rows:
        return body, decisions
    now: dict[int, list[Loop]] = {}
    for moments in _moments(body):
        cut = _cut(moments.spreads[0], target)
        if cut is None:
            continue
        now |= _in_pieces(moments, cut)
        first = moments.spreads[0].loop
        names = moments.center.stores[0].buffer.name, first.stores[0].buffer.name
        way = f"mean and variance in {extent_of(cut.outer)} pieces a row (split_reductions)"
        decisions.append(Decision("rewritten", *names, way))
    return _replaced(body, now), decisions


def _replaced(body: Sequence[Loop | Extern], now: dict[int, list[Loop]]) -> Body:
    found: list[Loop | Extern] = []
    for step in body:
        found += now.get(id(step), [step])
    return tuple(found)


def _moments(body: Body) -> list[_Moments]:
    """Every mean with what is summed about it, if a square is among that."""
    makers: dict[Buffer, list[Loop | Extern]] = defaultdict(list)
    for step in body:
        for buffer in written(step):
            makers[buffer].append(step)
    found: dict[int, _Moments] = {}
    for step in body:
        spread = _spread(step) if isinstance(step, Loop) else None
        made = makers[spread.mean.buffer] if spread is not None else []
        center = made[0] if len(made) == 1 else None
        if spread is not None and isinstance(center, Loop) and _is_mean(center, spread):
            found.setdefault(id(center), _Moments(center, [])).spreads.append(spread)
    return [m for m in found.values() if any(s.squares in _sums(s.loop) for s in m.spreads)]


def _sums(loop: Loop) -> list[Expr]:
    return [n for n in walk(loop.stores[0].value) if n.op == "reduce"]


def _spread(loop: Loop) -> _Spread | None:
    """A loop whose reductions are all sums of distances from one mean, or of their squares."""
    sums = _sums(loop) if loop.reduced and not loop.ordered else []
    value = sums[0].args[0] if sums else None
    distance = value.args[0] if value is not None and value.op == "mul" else value
    if distance is None or distance.op != "sub":
        return None
    f, mean = distance.args
    if mean.op != "load" or mean.guard is not None or not distance.dtype.is_float:
        return None
    off, squares = (
        reduce("sum", loop.reduced, v) for v in (distance, apply("mul", distance, distance))
    )
    return _Spread(loop, f, mean, off, squares) if {*sums} <= {off, squares} else None


def _is_mean(center: Loop, spread: _Spread) -> bool:
    """Whether a loop makes the mean of f, over the same axes."""
    if _extents(center) != _extents(spread.loop):
        return False
    names = dict(zip(_all_axes(center), _all_axes(spread.loop), strict=True))
    total, store = sole_reduction(center, "sum"), center.stores[0]
    if total is None or tuple(substitute(i, names) for i in store.index) != spread.mean.index:
        return False
    count = const(extent_of(center.reduced), total.dtype)
    is_mean = store.value is apply("div", total, count)
    return is_mean and substitute(total.args[0], names) is spread.f


def _all_axes(loop: Loop) -> tuple[Expr, ...]:
    return (*loop.axes, *loop.reduced)


def _extents(loop: Loop) -> list[list[Expr]]:
    return [[a.extent for a in axes] for axes in (loop.axes, loop.reduced)]


def _cut(spread: _Spread, target: Target) -> Cut | None:
    """Pieces of one length, so many that they are not split again, nor is what joins them."""
    loop = spread.loop
    if not all(a.extent.is_const for a in (*loop.axes, *loop.reduced)):
        return None
    rows, points = extent_of(loop.axes), extent_of(loop.reduced)
    along = reads_along(loop.reduced, loads(spread.f))

    def is_split(pieces: int) -> bool:
        tasks = tasks_of(rows * pieces, points // pieces, along, target)
        return few_rows(tasks, rows * points // max(tasks, 1), target)

    if not is_split(1):
        return None
    tasks = tasks_of(rows, points, along, target)
    most = min(max(MOST_PIECES, target.most_pieces), rows * points // (tasks * PIECE))
    most = min(most, WORTH_SPLITTING // rows)
    for wanted in (most, most * 3 // 4, most // 2):  # even ones may be twice as many as asked for
        cut = cut_axes(loop.reduced, wanted)
        pieces = extent_of(cut.outer)
        few = rows * pieces < WORTH_SPLITTING and not is_split(pieces)
        if few and cut.outer and cut.guard is None:
            return cut
    return None


@dataclass(frozen=True)
class _Pieces:
    """What pieces have, each at `rows`, in the axes of the first loop about the mean."""

    means: Buffer
    off: Buffer
    squares: Buffer
    rows: tuple[Expr, ...]
    cut: Cut
    length: Expr


def _in_pieces(moments: _Moments, cut: Cut) -> dict[int, list[Loop]]:
    """The loops instead of the mean, and instead of each that sums about it."""
    center, first = moments.center, moments.spreads[0]
    store, dtype = center.stores[0], first.f.dtype
    rows = as_read((*cut.outer, *first.loop.axes), [piece_of(first.squares, cut)])
    means, off, squares = (
        parts_of(f"{store.buffer.name}_{name}", first.squares, rows, store.buffer)
        for name in ("piece", "off", "squares")
    )
    pieces = _Pieces(means, off, squares, rows, cut, const(extent_of(cut.inner), dtype))
    total = piece_of(reduce("sum", first.loop.reduced, first.f), cut)
    near = {first.mean: load(means, rows)}
    made = {
        means: (apply("div", total, pieces.length), center.origins),
        off: (piece_of(put(first.off, near), cut), first.loop.origins),
        squares: (piece_of(put(first.squares, near), cut), first.loop.origins),
    }
    loops = [
        Loop(rows, cut.inner, (Store(buffer, rows, value),), origins)
        for buffer, (value, origins) in made.items()
    ]
    mean = reduce("sum", cut.outer, load(means, rows))
    mean = apply("div", mean, const(extent_of(cut.outer), dtype))
    whole = replace(store, index=first.mean.index, value=mean)
    loops.append(Loop(first.loop.axes, cut.outer, (whole,), center.origins))
    joined = {id(s.loop): [_joined(s, first, pieces)] for s in moments.spreads}
    return {id(center): loops, **joined}


def _joined(spread: _Spread, first: _Spread, pieces: _Pieces) -> Loop:
    """The same loop over pieces. Its axes may have other names than those of the first."""
    names = dict(zip(first.loop.axes, spread.loop.axes, strict=True))
    rows = tuple(names.get(a, a) for a in pieces.rows)
    means, off, squares = (load(b, rows) for b in (pieces.means, pieces.off, pieces.squares))
    length, outer = pieces.length, pieces.cut.outer
    apart = apply("add", apply("sub", means, spread.mean), apply("div", off, length))
    own = apply("sub", squares, apply("mul", off, apply("div", off, length)))
    around = apply("mul", length, apply("mul", apart, apart))
    sums = {
        spread.off: reduce("sum", outer, apply("mul", length, apart)),
        spread.squares: reduce("sum", outer, apply("add", own, around)),
    }
    held = spread.loop.stores[0]
    return replace(spread.loop, reduced=outer, stores=(replace(held, value=put(held.value, sums)),))
