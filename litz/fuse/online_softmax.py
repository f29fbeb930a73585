"""Online softmax: the maximum of a long row and its sum of exponentials come from one pass.

In: loops, after inlining. Out: loops, with such pairs rewritten if rows do not fit the cache or are
too few for the threads. Each block of a row computes its own maximum and, while the block is still
in L1, its sum of exponentials relative to that; a second small loop rescales the blocks of a row to
one maximum. Grouping then makes one kernel of each pair. Example:

    m = max of x[j];  s = sum of exp(x[j] - m)                               over all j
    ->  mb[o] = max of x[o, l];  sb[o] = sum of exp(x[o, l] - mb[o])         over each block o
        m = max of mb[o];        s = sum of sb[o] * exp(mb[o] - m)           over the blocks

Each element takes one exponential, as before. If the exponentials were stored for one more reader
(the quotient of a softmax), that reader recomputes them: outside the cache, an exponential costs
less than writing it and reading it back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from litz.config import Config
from litz.fuse.split_reductions import (
    ReductionSplit,
    few_rows,
    partial_buffer,
    partial_reduction,
    replace_nodes,
    sole_reduction,
    split_reduced_axes,
)
from litz.ir.expr import Expr, apply, const, extent_of, load, reduce, substitute
from litz.ir.program import Buffer, Decision, Extern, Loop, Store, loads, read, written
from litz.ir.store_forwarding import forward_stores, value_at
from litz.target import Target

# Elements of a block: a quarter of the smallest L1 cache there is, and many vectors.
BLOCK = 2048
# Row values between the maximum and the subtracted value (logsumexp has one).
MAX_SHIFT_STEPS = 3

Body = tuple[Loop | Extern, ...]


@dataclass(frozen=True)
class _Pair:
    """Loops of one row: `top` has the reduction `most` of f, `total` sums exp(f - shift).

    `stored` is the buffer that held the exponentials, if `below` was read through one.
    """

    top: Loop
    most: Expr
    total: Loop
    summed: Expr
    below: Expr  # exp(f - shift), in the axes of `total`
    stored: Buffer | None


def rewrite_online_softmax(
    body: Body, kept: set[Buffer], target: Target, config: Config
) -> tuple[Body, list[Decision]]:
    """Rewrite every pair where that pays; `kept` are the buffers that are needed outside."""
    finder = _Finder(body, kept)
    decisions: list[Decision] = []
    for loop in finder.loops:
        pair = finder.pair(loop)
        if pair is None:
            continue
        reason = _why(pair, target, config)
        points = extent_of(pair.total.reduced)
        # A program takes a power of two at a time: a slightly longer block takes two steps.
        blocks = -(-points // BLOCK) if target.longest_row else points // BLOCK
        cut = split_reduced_axes(pair.total.reduced, blocks)
        if reason is None or not cut.outer:
            continue
        finder.replace(pair, cut)
        names = pair.top.stores[0].buffer.name, pair.total.stores[0].buffer.name
        way = f"one pass in {extent_of(cut.outer)} blocks a row (online_softmax)"
        decisions.append(Decision("rewritten", *names, f"{reason}: {way}"))
    return finder.body(), decisions


def _why(pair: _Pair, target: Target, config: Config) -> str | None:
    """Why one pass is better than two; None if it is not."""
    rows, points = extent_of(pair.total.axes), extent_of(pair.total.reduced)
    bound = frozenset(pair.total.reduced)
    row_bytes = points * sum(n.dtype.bytes for n in loads(pair.below) if n.axes & bound)
    if row_bytes > target.l2_bytes // 2 and not target.longest_row:
        return f"a row of {row_bytes} bytes does not fit the cache"
    if config.split_reductions and few_rows(rows, points, target):
        return f"{rows} rows of {points} points are split over threads"
    return None


class _Finder:
    """The producers and readers of each buffer, and the replacements of each loop."""

    def __init__(self, body: Body, kept: set[Buffer]) -> None:
        self.steps, self.kept = body, kept
        self.loops = [step for step in body if isinstance(step, Loop)]
        self.makers: dict[Buffer, list[Loop | Extern]] = defaultdict(list)
        self.readers: dict[Buffer, list[Loop | Extern]] = defaultdict(list)
        self.changed: set[Buffer] = set()  # written after a step has read them
        for step in body:
            for buffer in written(step):
                self.makers[buffer].append(step)
                if buffer in self.readers:
                    self.changed.add(buffer)
            for buffer in read(step):
                self.readers[buffer].append(step)
        self.now: dict[Loop, list[Loop]] = {}

    def body(self) -> Body:
        return tuple(
            new
            for step in self.steps
            for new in (self.now.get(step, [step]) if isinstance(step, Loop) else [step])
        )

    def maker(self, buffer: Buffer) -> Loop | None:
        """The only loop that writes a buffer."""
        made = self.makers[buffer]
        return made[0] if len(made) == 1 and isinstance(made[0], Loop) else None

    def pair(self, loop: Loop) -> _Pair | None:
        """This sum of exponentials, paired with the maximum it depends on."""
        summed = sole_reduction(loop, "sum")
        if summed is None or loop in self.now:
            return None
        below, stored = self._below(summed.args[0])
        if below.op != "exp" or below.args[0].op != "sub":
            return None
        values, shift = below.args[0].args
        if shift.axes & frozenset(loop.reduced):
            return None
        for top in self._waited_for(shift):
            most = sole_reduction(top, "max")
            if most is None or top in self.now or _extents(top) != _extents(loop):
                continue
            names = dict(zip((*top.axes, *top.reduced), (*loop.axes, *loop.reduced), strict=True))
            if substitute(most.args[0], names) is values:
                return _Pair(top, most, loop, summed, below, stored)
        return None

    def _below(self, value: Expr) -> tuple[Expr, Buffer | None]:
        """The summed value, seen through a buffer that only stores the exponentials."""
        if value.op != "load" or value.guard is not None:
            return value, None
        maker = self.maker(value.buffer)
        if maker is None or maker.reduced or maker.ordered:
            return value, None
        return value_at(maker.stores[0], value), value.buffer

    def _waited_for(self, shift: Expr) -> Iterator[Loop]:
        """The reductions that a row value comes from, a few steps back."""
        near = [n.buffer for n in loads(shift)]
        for _ in range(MAX_SHIFT_STEPS):
            found = [m for b in dict.fromkeys(near) if (m := self.maker(b)) is not None]
            yield from (m for m in found if m.reduced)
            near = [b for m in found if not m.reduced for b in read(m)]

    def replace(self, pair: _Pair, cut: ReductionSplit) -> None:
        most, total = _blocks(pair, cut)
        self.now[pair.top] = [most, total, _top_of_blocks(pair, cut, most)]
        self.now[pair.total] = [_total_of_blocks(pair, cut, most, total)]
        if pair.stored is not None:
            self._compute_again(pair.stored, pair.total)

    def _compute_again(self, stored: Buffer, total: Loop) -> None:
        """An exponential that no longer feeds its sum and has one reader left is not stored."""
        others = [r for r in self.readers[stored] if r is not total]
        maker = self.maker(stored)
        if maker is None or stored in self.kept or len(others) != 1:
            return
        if self.changed.intersection(read(maker)):
            return
        (reader,) = others
        if not isinstance(reader, Loop) or reader in self.now:
            return
        finals = {stored: (maker.stores[0], maker.origins)}
        store = reader.stores[0]
        fresh = replace(store, value=forward_stores(store.value, finals, {}))
        self.now[reader] = [replace(reader, stores=(fresh,))]
        self.now[maker] = []


def _extents(loop: Loop) -> list[Expr]:
    return [a.extent for a in (*loop.axes, *loop.reduced)]


def _blocks(pair: _Pair, cut: ReductionSplit) -> tuple[Loop, Loop]:
    """mb[o] = max of f, sb[o] = sum of exp(f - mb[o]): one block is one row of a kernel."""
    rows = (*cut.outer, *pair.total.axes)
    top, total = pair.top, pair.total
    f = pair.below.args[0].args[0]
    most_of, sum_of = top.stores[0].buffer, total.stores[0].buffer
    most = partial_buffer(f"{most_of.name}_block", pair.most, rows, most_of)
    highest = Store(most, rows, partial_reduction(reduce("max", total.reduced, f), cut))
    sums = partial_buffer(f"{sum_of.name}_block", pair.summed, rows, sum_of)
    own = _finite(load(most, rows))
    below = apply("exp", apply("sub", f, own))
    summed = Store(sums, rows, partial_reduction(reduce("sum", total.reduced, below), cut))
    return (
        Loop(rows, cut.inner, (highest,), top.origins),
        Loop(rows, cut.inner, (summed,), total.origins),
    )


def _finite(most: Expr) -> Expr:
    """A block of only -inf sums to 0, not to NaN; an infinity stays one in the sum."""
    infinite = apply("eq", apply("abs", most), const(math.inf, most.dtype))
    return apply("where", infinite, const(0.0, most.dtype), most)


def _top_of_blocks(pair: _Pair, cut: ReductionSplit, blocks: Loop) -> Loop:
    index = (*cut.outer, *pair.top.axes)
    whole = reduce("max", cut.outer, load(blocks.stores[0].buffer, index))
    return _completed(pair.top, pair.most, whole, cut)


def _total_of_blocks(pair: _Pair, cut: ReductionSplit, most: Loop, sums: Loop) -> Loop:
    """sum of sb[o] * exp(mb[o] - shift): correct for any shift, finite or not."""
    index = (*cut.outer, *pair.total.axes)
    shift = pair.below.args[0].args[1]
    scale = apply("exp", apply("sub", load(most.stores[0].buffer, index), shift))
    term = apply("mul", load(sums.stores[0].buffer, index), scale)
    return _completed(pair.total, pair.summed, reduce("sum", cut.outer, term), cut)


def _completed(loop: Loop, node: Expr, whole: Expr, cut: ReductionSplit) -> Loop:
    store = loop.stores[0]
    done = replace(store, value=replace_nodes(store.value, {node: whole}))
    return Loop(loop.axes, cut.outer, (done,), loop.origins)
