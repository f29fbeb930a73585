"""Parallel Welford: splits of a few long rows compute their mean and M2 in one pass.

In: loops, after inlining. Out: loops, with a mean and a variance about it rewritten if their rows
would be split over the programs of a GPU. Split separately, each of the two would read all
elements. Here a split computes its own mean and, while its elements are still in a cache, the sums
of distances from it and of their squares; a second small loop combines the splits. Grouping then
makes one kernel of each pair. Example, with splits of k elements:

    m = mean of x[j];  c = sum of x[j] - m;  s = sum of (x[j] - m)^2                   over all j
    ->  mp[o] = mean of x[o, l]
        cp[o] = sum of x[o, l] - mp[o];  sp[o] = sum of (x[o, l] - mp[o])^2            over a split
        m = mean of mp[o];  d = mp[o] - m + cp[o] / k
        c = sum of k * d;   s = sum of sp[o] - cp[o]^2 / k + k * d^2                   over splits

As in `lower/reduce.py`, sums of distances correct rounded means: a split's mean is mp + cp / k, and
no large numbers are subtracted from each other. It is therefore as exact as two passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from litz.config import Config
from litz.fuse.split_reductions import (
    ELEMENTS_PER_SPLIT,
    MAX_SPLITS,
    MIN_SPLIT_ELEMENTS,
    ReductionSplit,
    few_rows,
    memory_ordered,
    partial_buffer,
    partial_reduction,
    reads_contiguously,
    replace_nodes,
    sole_reduction,
    split_reduced_axes,
    tasks_of,
)
from litz.ir.expr import Expr, apply, const, extent_of, load, reduce, substitute, walk
from litz.ir.program import Buffer, Decision, Extern, Loop, Store, loads, written
from litz.target import Target

Body = tuple[Loop | Extern, ...]


@dataclass(frozen=True)
class _CenteredSums:
    """A loop with the sum of distances from a mean, of their squares, or both."""

    loop: Loop
    f: Expr  # the value whose mean it is
    mean: Expr  # the load of the mean
    off: Expr  # the sum of distances
    squares: Expr


@dataclass(frozen=True)
class _MeanVar:
    """`center` computes the mean of f; `centered` sum about it."""

    center: Loop
    centered: list[_CenteredSums]


def split_welford(body: Body, target: Target, config: Config) -> tuple[Body, list[Decision]]:
    """Rewrite all pairs of mean and variance that would be split."""
    decisions: list[Decision] = []
    if not config.split_reductions or not target.few_rows:
        return body, decisions
    now: dict[int, list[Loop]] = {}
    for mean_var in _mean_vars(body):
        cut = _cut(mean_var.centered[0], target)
        if cut is None:
            continue
        now |= _partial_loops(mean_var, cut)
        first = mean_var.centered[0].loop
        names = mean_var.center.stores[0].buffer.name, first.stores[0].buffer.name
        way = f"mean and variance in {extent_of(cut.outer)} pieces a row (split_reductions)"
        decisions.append(Decision("rewritten", *names, way))
    return _replaced(body, now), decisions


def _replaced(body: Sequence[Loop | Extern], now: dict[int, list[Loop]]) -> Body:
    found: list[Loop | Extern] = []
    for step in body:
        found += now.get(id(step), [step])
    return tuple(found)


def _mean_vars(body: Body) -> list[_MeanVar]:
    """Every mean with the sums about it, if one of them is of squares."""
    makers: dict[Buffer, list[Loop | Extern]] = defaultdict(list)
    for step in body:
        for buffer in written(step):
            makers[buffer].append(step)
    found: dict[int, _MeanVar] = {}
    for step in body:
        spread = _centered_sums(step) if isinstance(step, Loop) else None
        made = makers[spread.mean.buffer] if spread is not None else []
        center = made[0] if len(made) == 1 else None
        if spread is not None and isinstance(center, Loop) and _is_mean(center, spread):
            found.setdefault(id(center), _MeanVar(center, [])).centered.append(spread)
    return [m for m in found.values() if any(s.squares in _sums(s.loop) for s in m.centered)]


def _sums(loop: Loop) -> list[Expr]:
    return [n for n in walk(loop.stores[0].value) if n.op == "reduce"]


def _centered_sums(loop: Loop) -> _CenteredSums | None:
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
    return _CenteredSums(loop, f, mean, off, squares) if {*sums} <= {off, squares} else None


def _is_mean(center: Loop, spread: _CenteredSums) -> bool:
    """Whether a loop computes the mean of f over the same axes."""
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


def _cut(spread: _CenteredSums, target: Target) -> ReductionSplit | None:
    """Splits of equal length, so many that neither they nor their combination is split again."""
    loop = spread.loop
    if not all(a.extent.is_const for a in (*loop.axes, *loop.reduced)):
        return None
    rows, points = extent_of(loop.axes), extent_of(loop.reduced)
    along = reads_contiguously(loop.reduced, loads(spread.f))

    def is_split(pieces: int) -> bool:
        tasks = tasks_of(rows * pieces, points // pieces, along, target)
        return few_rows(tasks, rows * points // max(tasks, 1), target)

    if not is_split(1):
        return None
    tasks = tasks_of(rows, points, along, target)
    most = min(max(MAX_SPLITS, target.max_splits), rows * points // (tasks * ELEMENTS_PER_SPLIT))
    most = min(most, MIN_SPLIT_ELEMENTS // rows)
    for wanted in (most, most * 3 // 4, most // 2):  # an even split may be twice as many as asked
        cut = split_reduced_axes(loop.reduced, wanted)
        pieces = extent_of(cut.outer)
        few = rows * pieces < MIN_SPLIT_ELEMENTS and not is_split(pieces)
        if few and cut.outer and cut.guard is None:
            return cut
    return None


@dataclass(frozen=True)
class _Partials:
    """The results of splits, each at `rows`, in the axes of the first loop about the mean."""

    means: Buffer
    off: Buffer
    squares: Buffer
    rows: tuple[Expr, ...]
    cut: ReductionSplit
    length: Expr


def _partial_loops(mean_var: _MeanVar, cut: ReductionSplit) -> dict[int, list[Loop]]:
    """The loops that replace the mean, and those that replace each sum about it."""
    center, first = mean_var.center, mean_var.centered[0]
    store, dtype = center.stores[0], first.f.dtype
    rows = memory_ordered((*cut.outer, *first.loop.axes), [partial_reduction(first.squares, cut)])
    means, off, squares = (
        partial_buffer(f"{store.buffer.name}_{name}", first.squares, rows, store.buffer)
        for name in ("piece", "off", "squares")
    )
    pieces = _Partials(means, off, squares, rows, cut, const(extent_of(cut.inner), dtype))
    total = partial_reduction(reduce("sum", first.loop.reduced, first.f), cut)
    near = {first.mean: load(means, rows)}
    made = {
        means: (apply("div", total, pieces.length), center.origins),
        off: (partial_reduction(replace_nodes(first.off, near), cut), first.loop.origins),
        squares: (partial_reduction(replace_nodes(first.squares, near), cut), first.loop.origins),
    }
    loops = [
        Loop(rows, cut.inner, (Store(buffer, rows, value),), origins)
        for buffer, (value, origins) in made.items()
    ]
    mean = reduce("sum", cut.outer, load(means, rows))
    mean = apply("div", mean, const(extent_of(cut.outer), dtype))
    whole = replace(store, index=first.mean.index, value=mean)
    loops.append(Loop(first.loop.axes, cut.outer, (whole,), center.origins))
    joined = {id(s.loop): [_combined(s, first, pieces)] for s in mean_var.centered}
    return {id(center): loops, **joined}


def _combined(spread: _CenteredSums, first: _CenteredSums, pieces: _Partials) -> Loop:
    """The same loop over splits. Its axes may have other names than those of the first."""
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
    return replace(
        spread.loop, reduced=outer, stores=(replace(held, value=replace_nodes(held.value, sums)),)
    )
