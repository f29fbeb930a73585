"""Split reductions: a few long rows become many short ones, so that threads can share them.

In: a `Kernel` with one reduction phase, and perhaps what follows for each row. Out: two kernels, or
the same one. The first reduces pieces of each row into a small buffer, the second the pieces. How
many pieces there are follows from the sizes alone, never from the threads, so that a sum is the
same on any machine; and a sum of sums loses less to rounding than one long sum. Example:

    s[] = sum over j < 1048576 of x[j]
    ->  p[o] = sum over j < 16384 of x[o * 16384 + j];  s[] = sum over o < 64 of p[o]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from litz.ir.dtypes import BOOL
from litz.ir.expr import (
    Expr,
    apply,
    axis,
    const,
    extent_of,
    integer,
    load,
    rebuild,
    reduce,
    substitute,
    transform,
    walk,
)
from litz.ir.index import ONE, coefficient, flat_index, product, row_major, simplify_indices
from litz.ir.ops import REDUCTIONS, neutral
from litz.ir.product import is_gemm
from litz.ir.program import Buffer, Kernel, Loop, Phase, Store, loads
from litz.ir.rows import shared_phase
from litz.ir.sizes import is_multiple, is_polynomial, named, rounded_up
from litz.ir.stored import guarded
from litz.target import Target

# With fewer rows than this, threads have too little to share.
FEW_ROWS = 16
# A column reduction takes its rows side by side: this many keep as many threads busy as one row.
COLUMNS_A_ROW = 64
# Of an array that no cache holds, whole rows pass by: then threads can only share pieces of rows.
COLUMNS_PASSING_BY = 1024
WORTH_PASSING_BY = 1 << 19
# Elements that are worth a second kernel.
WORTH_SPLITTING = 1 << 16
# Elements of a piece, and the most pieces of a row.
PIECE = 1 << 13
MOST_PIECES = 64


def few_rows(rows: int, points: int, target: Target) -> bool:
    """Whether rows of this many points each are better split than kept whole."""
    return rows < max(FEW_ROWS, target.few_rows) and rows * points >= WORTH_SPLITTING


def split_reduction(kernel: Kernel, target: Target) -> list[Kernel]:
    """The kernel in two, if that gives threads something to share."""
    (phase, *others) = kernel.phases
    if is_gemm(kernel) or not _can_split(phase):
        return [kernel]  # a matrix product has blocks to share
    if any(other.inner for other in others) or any(
        s.buffer in kernel.scratch for s in phase.inside
    ):
        return [kernel]  # both kernels would need a whole row
    rows, points = extent_of(kernel.outer), extent_of(phase.inner)
    read = [node for store in phase.stores for node in loads(store.value)]
    tasks = tasks_of(rows, points, reads_along(phase.inner, read), target)
    if not few_rows(tasks, rows * points // max(tasks, 1), target):
        return [kernel]
    if target.shares_rows and shared_phase(kernel) is not None:
        return [kernel]  # programs share its rows in one launch
    most = max(MOST_PIECES, target.most_pieces)
    cut = cut_axes(phase.inner, min(most, rows * points // (tasks * PIECE)))
    # The last piece may be cut short: sums leave out what is not there, stores cannot.
    if not cut.outer or (cut.guard is not None and phase.inside):
        return [kernel]
    return _in_two(kernel, phase, cut)


def _can_split(phase: Phase) -> bool:
    nodes = [n for s in phase.stores for n in walk(s.value)]
    if any(s.scatters for s in phase.stores) or any(n.op == "scan" for n in nodes):
        return False
    reduces = [n for n in nodes if n.op == "reduce"]
    return bool(reduces) and not any(REDUCTIONS[n.attr[0]].gives_index for n in reduces)


def sole_reduction(loop: Loop, kind: str) -> Expr | None:
    """The one reduction inside a loop's value, if it is of that kind over floats."""
    if not loop.reduced or loop.ordered:
        return None
    found = [n for n in walk(loop.stores[0].value) if n.op == "reduce"]
    if len(found) != 1 or found[0].attr[0] != kind or not found[0].dtype.is_float:
        return None
    return found[0] if found[0].attr[1] == loop.reduced else None


def tasks_of(rows: int, points: int, along: bool, target: Target) -> int:
    """What threads can share of rows as they are: one by one, or side by side as columns."""
    large = target.reads_whole_rows and rows * points >= WORTH_PASSING_BY
    together = COLUMNS_PASSING_BY if large else COLUMNS_A_ROW
    return rows if along else -(-rows // together)


def reads_along(inner: tuple[Expr, ...], read: Iterable[Expr]) -> bool:
    """Whether neighbours in memory belong to one row, of what differs from point to point of it."""
    for node in read:
        steps = zip(node.index, node.buffer.strides, strict=True)
        near = {a for i, step in steps if step is ONE for a in i.axes}
        if near and not near & set(inner) and set(node.axes) & set(inner):
            return False
    return True


@dataclass(frozen=True)
class Cut:
    """`outer` counts pieces, `inner` runs inside one; `places` writes the old axes with both, which
    lie inside the loop where `guard` holds."""

    outer: tuple[Expr, ...]
    inner: tuple[Expr, ...]
    places: dict[Expr, Expr]
    guard: Expr | None


def _evenly(n: Expr, pieces: int) -> tuple[Expr, Expr]:
    """As many pieces and their length, or some more that divide `n`: then no point has to be
    tested. Of a symbolic size, the number of pieces is settled and their length is not."""
    even = next((p for p in range(pieces, 2 * pieces) if is_multiple(n, p)), pieces)
    length = rounded_up(n, even)
    return (rounded_up(n, length), length) if n.is_const else (integer(even), named(length))


def cut_axes(inner: tuple[Expr, ...], pieces: int) -> Cut:
    """Whole leading axes count pieces until the last of them is cut."""
    outer: list[Expr] = []
    places: dict[Expr, Expr] = {}
    for k, variable in enumerate(inner):
        n = variable.extent
        if pieces < 2:
            return Cut(tuple(outer), inner[k:], places, None)
        if n.hint <= pieces:
            places[variable] = axis(f"p{k}", n)
            outer.append(places[variable])
            pieces //= n.hint
            continue
        count, length = _evenly(n, pieces)
        high, low = axis(f"p{k}", count), axis(f"{variable.attr}l", length)
        places[variable] = apply("add", apply("mul", high, length), low)
        whole = product((count, length)) is n
        guard = None if whole else apply("lt", places[variable], n)
        return Cut((*outer, high), (low, *inner[k + 1 :]), places, guard)
    return Cut((), inner, {}, None)  # nothing would be left to run inside a piece


def _in_two(kernel: Kernel, phase: Phase, cut: Cut) -> list[Kernel]:
    sums = list(dict.fromkeys(n for s in phase.stores for n in walk(s.value) if n.op == "reduce"))
    rows = as_read((*cut.outer, *kernel.outer), [piece_of(n, cut) for n in sums])
    made = phase.completing[0].buffer
    parts = {n: parts_of(f"{made.name}_part{k}", n, rows, made) for k, n in enumerate(sums)}
    first = [_moved(s, cut) for s in phase.inside]
    first += [Store(parts[n], rows, piece_of(n, cut)) for n in sums]
    pieces = Phase(cut.inner, True, tuple(first))
    whole = {n: reduce(n.attr[0], cut.outer, load(parts[n], rows)) for n in sums}
    last = tuple(replace(s, value=put(s.value, whole)) for s in phase.completing)
    return [
        Kernel(f"{kernel.name}_pieces", rows, (pieces,), (), kernel.origins),
        replace(kernel, phases=(Phase(cut.outer, True, last), *kernel.phases[1:])),
    ]


def as_read(rows: tuple[Expr, ...], pieces: list[Expr]) -> tuple[Expr, ...]:
    """Axes in the order in which memory is read, so that neighbours there are neighbours here."""
    read = max(loads(*pieces), key=lambda n: len(n.axes), default=None)
    if read is None:
        return rows
    flat = flat_index(read.buffer, read.index)

    def step(variable: Expr) -> int:
        found = coefficient(flat, variable)
        return found[0].hint if found is not None and is_polynomial(found[0]) else 0

    return tuple(sorted(rows, key=lambda a: -step(a)))


def parts_of(name: str, node: Expr, rows: tuple[Expr, ...], whole: Buffer) -> Buffer:
    """Storage for what a reduction gives on each piece, beside what it gives on the whole."""
    shape = tuple(a.extent for a in rows)
    return Buffer(name, node.dtype, shape, row_major(shape), whole.device)


def piece_of(node: Expr, cut: Cut) -> Expr:
    """The same reduction over one piece."""
    value = simplify_indices(substitute(node.args[0], cut.places))
    if cut.guard is not None:
        start = neutral(REDUCTIONS[node.attr[0]].combine, value.dtype)
        nothing = const(bool(start) if value.dtype is BOOL else start, value.dtype)
        value = apply("where", cut.guard, guarded(value, cut.guard), nothing)
    return reduce(node.attr[0], cut.inner, value)


def _moved(store: Store, cut: Cut) -> Store:
    index = tuple(simplify_indices(substitute(i, cut.places)) for i in store.index)
    return replace(store, index=index, value=simplify_indices(substitute(store.value, cut.places)))


def put(root: Expr, values: dict[Expr, Expr]) -> Expr:
    """The value with some of its nodes replaced, whatever is below them."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        return values.get(node) or rebuild(node, args)

    return transform(root, change)
