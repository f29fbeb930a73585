"""Rows: which axes of each loop are the outer iteration that a fused kernel shares.

In: the loops of a would-be kernel. Out: a `Member` for each loop (its outer axes, in one common
order, and its inner ones) or a `CannotFuse` with the reason. Two loops share rows if one reads the
other's result only in the same row: a row can then be finished before the next begins, and values
that pass between the loops never leave the cache. Example: in `m[i0] = max over r1 of x[i0, r1]`
and `y[i0, i1] = x[i0, i1] - m[i0]`, i0 is the row of both.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise

from litz.ir.expr import Expr, axis, substitute, walk
from litz.ir.gemm import gemm_of
from litz.ir.index import (
    ONE,
    ZERO,
    bounds,
    coefficient,
    floordiv,
    modulo,
    ravel,
    simplify,
    size_product,
    to_poly,
)
from litz.ir.order import order
from litz.ir.program import Buffer, Extern, Loop
from litz.ir.sizes import count_of, is_polynomial, quotient

# With fewer rows, segments of a row gain nothing from being written row by row.
MIN_SEGMENTED_ROWS = 16


@dataclass(frozen=True)
class CannotFuse:
    """The reason why loops cannot share rows."""

    reason: str


@dataclass(frozen=True)
class Member:
    """A loop with its axes divided into outer and inner; flattened axes may have been split."""

    loop: Loop
    outer: tuple[Expr, ...]
    inner: tuple[Expr, ...]

    @cached_property
    def row(self) -> Expr:
        return ravel(self.outer, tuple(a.extent for a in self.outer))

    @property
    def summed(self) -> tuple[Expr, ...]:
        """The reduced axes of a GEMM whose columns are all in the row."""
        columns = set(self.inner) - set(self.loop.reduced) - set(self.loop.ordered)
        return self.loop.reduced if columns else ()


@dataclass
class Group:
    """Loops that become one kernel, or one extern call."""

    position: int
    loops: list[Loop] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    extern: Extern | None = None
    reads: set[Buffer] = field(default_factory=set)
    writes: set[Buffer] = field(default_factory=set)

    @property
    def steps(self) -> list[Loop] | list[Extern]:
        return self.loops if self.extern is None else [self.extern]


def align(
    loops: list[Loop], reorder: bool = True, whole: bool = False
) -> list[Member] | CannotFuse:
    """Divide the axes of every loop so that all share their rows. Loops that exchange no data may
    be reordered to read a shared buffer at the same time. A row of a GEMM is one element of its
    result or, if `whole`, all its columns."""
    rows = _row_count(loops, whole)
    if isinstance(rows, CannotFuse):
        return rows
    links = _Links(loops, whole)
    members: dict[int, Member] = {}
    shared: dict[Buffer, tuple[Member, Expr]] = {}
    # The producer of a GEMM's operand may divide its rows further: then it comes first.
    anchor = next((k for k, loop in enumerate(loops) if is_sequential(loop)), 0)
    anchor = 0 if whole else anchor
    first = _leading(loops[anchor], rows, whole)
    if isinstance(first, CannotFuse):
        return first
    members[anchor] = first
    _note_reads(members[anchor], shared)
    near = deque(links.neighbours[anchor])
    unplaced = dict.fromkeys(range(len(loops)))
    while len(members) < len(loops):
        if near:
            k = near.popleft()
            found = None if k in members else links.divided(k, members)
        else:
            while (k := next(iter(unplaced))) in members:
                del unplaced[k]
            together = _anchored_by_shared_read(loops[k], shared) if reorder else None
            found = together or _leading(loops[k], rows, whole)
        if isinstance(found, CannotFuse):
            return found
        if found is not None:
            members[k] = found
            _note_reads(found, shared)
            near += links.neighbours[k]
    ordered = [members[k] for k in range(len(loops))]
    return _checked(ordered, rows, links.makers)


def is_sequential(loop: Loop) -> bool:
    """Reductions, scans and scatters run along some axes in order; their other axes are rows."""
    return bool(loop.reduced or loop.ordered)


def same_index_accesses(loops: list[Loop], buffers: set[Buffer]) -> bool:
    """Whether in each iteration all loops touch each of these buffers at one index only.

    One kernel may then contain them though one writes what another reads: in each iteration all
    values are computed before the first is stored.
    """
    if any(map(is_sequential, loops)) or len({loop.axes for loop in loops}) > 1:
        return False
    for buffer in buffers:
        stored = {s.index for loop in loops for s in loop.stores if s.buffer == buffer}
        loaded = {n.index for loop in loops for n in loop.loads if n.buffer == buffer}
        if len(stored | loaded) > 1:
            return False
    return True


def anchored(loop: Loop, whole: bool = False) -> Member:
    """A loop by itself: all axes that need not run in order are rows, except the columns of a GEMM
    that is taken `whole`."""
    if not is_sequential(loop):
        return Member(loop, loop.axes, ())
    gemm = gemm_of(loop) if whole else None
    if gemm is not None:
        return Member(loop, gemm.batch + gemm.rows, gemm.columns + loop.reduced)
    outer = tuple(a for a in loop.axes if a not in loop.ordered)
    return Member(loop, outer, loop.reduced + loop.ordered)


def _row_count(loops: list[Loop], whole: bool) -> Expr | CannotFuse:
    counts = {count_of(anchored(loop, whole).outer) for loop in loops if is_sequential(loop)}
    if len(counts) > 1:
        return CannotFuse(f"reductions with {_listed(counts)} rows")
    if counts:
        return counts.pop()
    if len(loops) > 1 and len({loop.stores[0].buffer for loop in loops}) == 1:
        return _rows_of_segments(loops)
    sizes = {count_of(loop.axes) for loop in loops}
    if len(sizes) == 1:
        return sizes.pop()
    return CannotFuse(f"loops over {_listed(sizes)} points")


def _listed(sizes: set[Expr]) -> str:
    return " and ".join(map(str, sorted(sizes, key=lambda n: n.hint)))


def _rows_of_segments(loops: list[Loop]) -> Expr | CannotFuse:
    """Segments of one buffer share the axes before the axis that was cut into segments."""
    rows: Expr = ONE
    for index in zip(*(loop.stores[0].index for loop in loops), strict=True):
        if len(set(index)) > 1:
            break
        rows = size_product((rows, index[0].extent)) if index[0].op == "axis" else rows
    if rows.hint < MIN_SEGMENTED_ROWS:
        return CannotFuse(
            f"windows of {rows} rows are long enough to be stored one after the other"
        )
    return rows


def may_overlap(one: tuple[Expr, ...], other: tuple[Expr, ...]) -> bool:
    """Whether two indices into a buffer may be the same element."""
    spans = [(_span(i), _span(k)) for i, k in zip(one, other, strict=True)]
    return not any(a and b and (a[1] < b[0] or b[1] < a[0]) for a, b in spans)


def _span(index: Expr) -> tuple[int, int] | None:
    found = bounds(to_poly(index))
    if found is None or any(set(poly) - {()} for poly in found):
        return None
    low, high = found
    return low.get((), 0), high.get((), 0)


# -- following reads from loop to loop -------------------------------------------------------


class _Links:
    """Which loops read each other's results, and at which index."""

    def __init__(self, loops: list[Loop], whole: bool) -> None:
        self.loops, self.whole = loops, whole
        self.makers = {loop.stores[0].buffer: k for k, loop in enumerate(loops)}
        self.readers: dict[int, list[tuple[int, Expr]]] = defaultdict(list)
        self.neighbours: dict[int, dict[int, None]] = defaultdict(dict)
        for k, loop in enumerate(loops):
            for node in loop.loads:
                maker = self.makers.get(node.buffer, k)
                if maker != k:
                    self.readers[maker].append((k, node))
                    self.neighbours[maker][k] = self.neighbours[k][maker] = None

    def divided(self, k: int, members: dict[int, Member]) -> Member | CannotFuse:
        """Loop k, divided to match a loop already divided that it reads from or writes for."""
        loop = self.loops[k]
        for node in loop.loads:
            maker = self.makers.get(node.buffer, k)
            if maker != k and maker in members:
                return _as_reader(loop, node, members[maker], self.whole)
        j, node = next((j, node) for j, node in self.readers[k] if j in members)
        return _as_producer(loop, node, members[j], self.whole)


def _row_of_load(node: Expr, maker: Member) -> Expr:
    """The row of the element that a load reads, in the reader's axes."""
    store = maker.loop.stores[0]
    places = dict(zip(store.index, node.index, strict=True))
    places = {a: i for a, i in places.items() if a.op == "axis"}
    return simplify(substitute(maker.row, places))


def _as_reader(loop: Loop, node: Expr, maker: Member, whole: bool) -> Member | CannotFuse:
    row = _row_of_load(node, maker)
    split = _split_flattened(loop, row)
    if split is not loop:
        row = simplify(substitute(row, _split_axis_places(loop, split)))
        loop = split
    rows = count_of(maker.outer)
    digits = _mixed_radix(row, rows)
    if digits is None:
        return CannotFuse(f"it reads {node.buffer} across rows ({row} is not a row of its loop)")
    return _divided(loop, digits, whole)


def _divided(loop: Loop, outer: tuple[Expr, ...], whole: bool = False) -> Member | CannotFuse:
    inner = tuple(a for a in (*loop.axes, *loop.reduced) if a not in outer)
    if is_sequential(loop) and set(inner) != set(anchored(loop, whole).inner):
        return CannotFuse("its reduction does not run along the row")
    return Member(loop, outer, inner)


def _as_producer(loop: Loop, node: Expr, reader: Member, whole: bool) -> Member | CannotFuse:
    """The producer's axes that its reader indexes with row axes are rows too."""
    store = loop.stores[0]
    outer: list[tuple[int, Expr]] = []
    for variable, index in zip(store.index, node.index, strict=True):
        if variable.op != "axis":
            continue
        from_rows = index.axes & set(reader.outer)
        if from_rows and index.op == "axis":
            outer.append((reader.outer.index(index), variable))
        elif from_rows:
            return CannotFuse(f"{node.buffer} is read at {index}, which mixes rows and columns")
    ordered = tuple(v for _, v in sorted(outer, key=lambda pair: pair[0]))
    if count_of(ordered) is not count_of(reader.outer):
        return CannotFuse(f"not every row reads its own part of {node.buffer}")
    return _divided(loop, ordered, whole)


def _leading(loop: Loop, rows: Expr, whole: bool) -> Member | CannotFuse:
    """Without data between the loops, rows are the leading axes."""
    if is_sequential(loop):
        return anchored(loop, whole)
    for count in range(len(loop.axes)):
        if count_of(loop.axes[:count]) is rows:
            return Member(loop, loop.axes[:count], loop.axes[count:])
    if count_of(loop.axes) is rows:
        return Member(loop, loop.axes, ())
    return CannotFuse(f"its leading axes do not make {rows} rows")


def _anchored_by_shared_read(
    loop: Loop, shared: dict[Buffer, tuple[Member, Expr]]
) -> Member | None:
    """Rows in which the loop reads a buffer at the same time as another member.

        a[i0] = sum over r1 of x[i0, r1]  beside  b[i0, i1] = x[i1, i0] + 1   ->   rows i0 and i1

    Its store must be contiguous along the same axis as the read, or the other order was better.
    """
    for node in loop.loads:
        if node.buffer not in shared or not _same_direction(loop, node):
            continue
        member, other = shared[node.buffer]
        places = dict(zip(other.index, node.index, strict=True))
        outer = tuple(places[a] for a in member.outer if a in places)
        fits = [a.extent for a in outer if a.op == "axis"] == [a.extent for a in member.outer]
        if not fits or len(set(outer)) < len(outer):
            continue
        divided = _divided(loop, outer)
        if isinstance(divided, Member):
            return divided
    return None


def _note_reads(member: Member, shared: dict[Buffer, tuple[Member, Expr]]) -> None:
    for node in member.loop.loads:
        if _same_direction(member.loop, node):
            shared.setdefault(node.buffer, (member, node))


def _same_direction(loop: Loop, node: Expr) -> bool:
    """Whether neighbouring elements of the load are stored as neighbours, or reduced."""
    store = loop.stores[0]
    return is_sequential(loop) or _fastest(store.buffer, store.index) is _fastest(
        node.buffer, node.index
    )


def _fastest(buffer: Buffer, index: tuple[Expr, ...]) -> Expr | None:
    steps = zip(buffer.strides, index, strict=True)
    moving = [(step.hint, i) for step, i in steps if i.axes]
    return min(moving, key=lambda pair: pair[0])[1] if moving else None


@lru_cache(maxsize=4096)
def _mixed_radix(row: Expr, rows: Expr) -> tuple[Expr, ...] | None:
    """The axes whose row-major number is `row`, slowest first; None if it is no such number."""
    terms: list[tuple[Expr, Expr]] = []
    left = row
    for variable in sorted(row.axes, key=order):
        found = coefficient(left, variable)
        if found is None or not is_polynomial(found[0]):
            return None
        terms.append((found[0], variable))
        left = found[1]
    if left is not ZERO:
        return None
    expected: Expr = ONE
    for factor, variable in sorted(terms, key=lambda t: t[0].hint):
        if factor is not expected:
            return None
        expected = size_product((expected, variable.extent))
    if expected is not rows:
        return None
    return tuple(v for _, v in sorted(terms, key=lambda t: -t[0].hint))


# -- splitting flattened axes ----------------------------------------------------------------


def _split_flattened(loop: Loop, row: Expr) -> Loop:
    """Split an axis that occurs in `row` only divided: `i0 // 768` becomes the axis i0h."""
    for node in walk(row):
        if node.op == "floordiv" and node.args[0].op == "axis" and not node.args[1].axes:
            variable, by = node.args
            count = quotient(variable.extent, by) if variable in loop.axes else None
            if count is not None and by.hint > 1:
                return split_axis(loop, variable, by, count)
    return loop


def split_axis(loop: Loop, variable: Expr, by: Expr, count: Expr) -> Loop:
    """loop a < n -> loop ah < n // by, al < by with a = ah * by + al."""
    high = axis(f"{variable.attr}h", count)
    low = axis(f"{variable.attr}l", by)
    whole = simplify(ravel((high, low), (high.extent, low.extent)))
    axes = tuple(b for a in loop.axes for b in ((high, low) if a is variable else (a,)))
    stores = tuple(
        replace(
            s,
            index=tuple(simplify(substitute(i, {variable: whole})) for i in s.index),
            value=substitute(s.value, {variable: whole}),
        )
        for s in loop.stores
    )
    pattern = loop.pattern and loop.pattern.moved({variable: (high, low)})
    return Loop(axes, loop.reduced, stores, loop.origins, pattern)


def _split_axis_places(before: Loop, after: Loop) -> dict[Expr, Expr]:
    (gone,) = [a for a in before.axes if a not in after.axes]
    high, low = [a for a in after.axes if a not in before.axes]
    return {gone: ravel((high, low), (high.extent, low.extent))}


# -- the common order ------------------------------------------------------------------------


def _checked(
    members: list[Member], rows: Expr, makers: dict[Buffer, int]
) -> list[Member] | CannotFuse:
    """Check that every read between members stays in its row."""
    for member in members:
        if count_of(member.outer) is not rows:
            return CannotFuse(f"{count_of(member.outer)} rows beside {rows}")
        for node in member.loop.loads:
            maker = makers.get(node.buffer)
            if maker is None:
                continue
            store = members[maker].loop.stores[0]
            if any(i.op != "axis" and i is not ZERO for i in store.index):
                return CannotFuse(f"{node.buffer} is written through a view")
            # Compare digits, not the row number: [0, i] is row i too, as long as i is small.
            own = _digits(member.row, members[maker].outer)
            for variable, index in zip(store.index, node.index, strict=True):
                if variable in own and simplify(index) is not own[variable]:
                    return CannotFuse(f"it reads {node.buffer} in another row")
    return members


def common_outer(members: list[Member]) -> tuple[Expr, ...] | CannotFuse:
    """The coarsest axes that refine all members' outer axes: 256 and 2 x 128 -> 2, 128."""
    ways = {tuple(a.extent for a in member.outer) for member in members}
    if len(ways) == 1:
        return tuple(axis(f"o{k}", n) for k, n in enumerate(ways.pop()) if n is not ONE)
    marks = {ONE}
    for member in members:
        marks.update(count_of(member.outer[k:]) for k in range(len(member.outer)))
    chain = sorted(marks, key=lambda n: (n.hint, max(map(len, to_poly(n)), default=0)))
    extents = [quotient(big, small) for small, big in pairwise(chain)]
    if any(n is None for n in extents):
        return CannotFuse("the rows are numbered in ways that have no common refinement")
    return tuple(axis(f"o{k}", n) for k, n in enumerate(reversed(extents)) if n is not None)


def places_of(member: Member, outer: tuple[Expr, ...]) -> dict[Expr, Expr]:
    """Each of a member's axes in terms of the kernel's axes; inner ones are named by position."""
    places = dict(_digits(ravel(outer, tuple(a.extent for a in outer)), member.outer))
    for k, variable in enumerate(member.inner):
        places[variable] = axis(f"j{k}", variable.extent)
    return places


@lru_cache(maxsize=4096)
def _digits(row: Expr, axes: tuple[Expr, ...]) -> Mapping[Expr, Expr]:
    """Each axis as a digit of the row number, slowest first."""
    digits: dict[Expr, Expr] = {}
    for k, variable in enumerate(axes):
        step = count_of(axes[k + 1 :])
        digit = floordiv(row, step) if step is not ONE else row
        digits[variable] = modulo(digit, variable.extent)
    return digits
