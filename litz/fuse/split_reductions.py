"""Split reductions: a few long rows become many short ones, so that threads can share them.

In: a `Kernel` with one reduction phase, and perhaps an epilogue per row. Out: two kernels, or the
same one. The first reduces splits of each row into a small buffer, the second reduces the splits.
The number of splits follows from the sizes alone, never from the threads, so a sum is the same on
any machine; and a sum of sums has less rounding error than one long sum. Example:

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
from litz.ir.gemm import is_gemm
from litz.ir.gpu_rows import cooperative_phase
from litz.ir.index import ONE, coefficient, flat_index, row_major, simplify_indices, size_product
from litz.ir.ops import REDUCTIONS, neutral
from litz.ir.program import Buffer, Kernel, Loop, Phase, Store, loads
from litz.ir.sizes import ceil_div, is_multiple, is_polynomial, named
from litz.ir.store_forwarding import guarded
from litz.target import Target

# With fewer rows, threads have too few tasks.
FEW_ROWS = 16
# A column reduction takes rows side by side: this many keep a thread as busy as one row.
COLUMNS_PER_TASK = 64
# An array larger than all caches is read in whole rows: threads can then only share splits of rows.
STREAMED_COLUMNS_PER_TASK = 1024
MIN_STREAMED_ELEMENTS = 1 << 19
# The least elements that are worth a second kernel.
MIN_SPLIT_ELEMENTS = 1 << 16
# Elements of a split, and the most splits of a row.
ELEMENTS_PER_SPLIT = 1 << 13
MAX_SPLITS = 64


def few_rows(rows: int, points: int, target: Target) -> bool:
    """Whether rows of this many points each are better split than kept whole."""
    return rows < max(FEW_ROWS, target.few_rows) and rows * points >= MIN_SPLIT_ELEMENTS


def split_reduction(kernel: Kernel, target: Target) -> list[Kernel]:
    """The kernel in two, if that gives threads enough tasks."""
    (phase, *others) = kernel.phases
    if is_gemm(kernel) or not _can_split(phase):
        return [kernel]  # a GEMM has its own tiles to share
    if any(other.inner for other in others) or any(
        s.buffer in kernel.scratch for s in phase.inside
    ):
        return [kernel]  # both kernels would need a whole row
    rows, points = extent_of(kernel.outer), extent_of(phase.inner)
    read = [node for store in phase.stores for node in loads(store.value)]
    tasks = tasks_of(rows, points, reads_contiguously(phase.inner, read), target)
    if not few_rows(tasks, rows * points // max(tasks, 1), target):
        return [kernel]
    if target.cooperative_reductions and cooperative_phase(kernel) is not None:
        return [kernel]  # a cooperative reduction shares rows in one launch
    most = max(MAX_SPLITS, target.max_splits)
    cut = split_reduced_axes(phase.inner, min(most, rows * points // (tasks * ELEMENTS_PER_SPLIT)))
    # The last split may be shorter: a guarded reduction skips missing points, a store cannot.
    if not cut.outer or (cut.guard is not None and phase.inside):
        return [kernel]
    return _split_in_two(kernel, phase, cut)


def _can_split(phase: Phase) -> bool:
    nodes = [n for s in phase.stores for n in walk(s.value)]
    if any(s.scatters for s in phase.stores) or any(n.op == "scan" for n in nodes):
        return False
    reduces = [n for n in nodes if n.op == "reduce"]
    return bool(reduces) and not any(REDUCTIONS[n.attr[0]].gives_index for n in reduces)


def sole_reduction(loop: Loop, kind: str) -> Expr | None:
    """The only reduction in a loop's value, if it is of that kind over floats."""
    if not loop.reduced or loop.ordered:
        return None
    found = [n for n in walk(loop.stores[0].value) if n.op == "reduce"]
    if len(found) != 1 or found[0].attr[0] != kind or not found[0].dtype.is_float:
        return None
    return found[0] if found[0].attr[1] == loop.reduced else None


def tasks_of(rows: int, points: int, along: bool, target: Target) -> int:
    """The tasks that rows make without splitting: one each, or many side by side as columns."""
    large = target.reads_whole_rows and rows * points >= MIN_STREAMED_ELEMENTS
    together = STREAMED_COLUMNS_PER_TASK if large else COLUMNS_PER_TASK
    return rows if along else -(-rows // together)


def reads_contiguously(inner: tuple[Expr, ...], read: Iterable[Expr]) -> bool:
    """Whether contiguous elements belong to one row, in all loads that vary along the row."""
    for node in read:
        steps = zip(node.index, node.buffer.strides, strict=True)
        near = {a for i, step in steps if step is ONE for a in i.axes}
        if near and not near & set(inner) and set(node.axes) & set(inner):
            return False
    return True


@dataclass(frozen=True)
class ReductionSplit:
    """`outer` counts splits, `inner` runs inside one. `places` has the old axes in terms of both;
    they are in range where `guard` is true."""

    outer: tuple[Expr, ...]
    inner: tuple[Expr, ...]
    places: dict[Expr, Expr]
    guard: Expr | None


def _evenly(n: Expr, pieces: int) -> tuple[Expr, Expr]:
    """(number, length) of splits: `pieces`, or some more that divide `n`, so that no guard is
    needed. For a symbolic size, the number is constant and the length is not."""
    even = next((p for p in range(pieces, 2 * pieces) if is_multiple(n, p)), pieces)
    length = ceil_div(n, even)
    return (ceil_div(n, length), length) if n.is_const else (integer(even), named(length))


def split_reduced_axes(inner: tuple[Expr, ...], pieces: int) -> ReductionSplit:
    """Whole leading axes count splits, until the last of them is cut."""
    outer: list[Expr] = []
    places: dict[Expr, Expr] = {}
    for k, variable in enumerate(inner):
        n = variable.extent
        if pieces < 2:
            return ReductionSplit(tuple(outer), inner[k:], places, None)
        if n.hint <= pieces:
            places[variable] = axis(f"p{k}", n)
            outer.append(places[variable])
            pieces //= n.hint
            continue
        count, length = _evenly(n, pieces)
        high, low = axis(f"p{k}", count), axis(f"{variable.attr}l", length)
        places[variable] = apply("add", apply("mul", high, length), low)
        whole = size_product((count, length)) is n
        guard = None if whole else apply("lt", places[variable], n)
        return ReductionSplit((*outer, high), (low, *inner[k + 1 :]), places, guard)
    return ReductionSplit((), inner, {}, None)  # nothing would be left inside a split


def _split_in_two(kernel: Kernel, phase: Phase, cut: ReductionSplit) -> list[Kernel]:
    sums = list(dict.fromkeys(n for s in phase.stores for n in walk(s.value) if n.op == "reduce"))
    rows = memory_ordered((*cut.outer, *kernel.outer), [partial_reduction(n, cut) for n in sums])
    made = phase.completing[0].buffer
    parts = {n: partial_buffer(f"{made.name}_part{k}", n, rows, made) for k, n in enumerate(sums)}
    first = [_moved(s, cut) for s in phase.inside]
    first += [Store(parts[n], rows, partial_reduction(n, cut)) for n in sums]
    pieces = Phase(cut.inner, True, tuple(first))
    whole = {n: reduce(n.attr[0], cut.outer, load(parts[n], rows)) for n in sums}
    last = tuple(replace(s, value=replace_nodes(s.value, whole)) for s in phase.completing)
    return [
        Kernel(f"{kernel.name}_pieces", rows, (pieces,), (), kernel.origins),
        replace(kernel, phases=(Phase(cut.outer, True, last), *kernel.phases[1:])),
    ]


def memory_ordered(rows: tuple[Expr, ...], pieces: list[Expr]) -> tuple[Expr, ...]:
    """Axes in the order in which memory is read, so that contiguous elements are neighbours."""
    read = max(loads(*pieces), key=lambda n: len(n.axes), default=None)
    if read is None:
        return rows
    flat = flat_index(read.buffer, read.index)

    def step(variable: Expr) -> int:
        found = coefficient(flat, variable)
        return found[0].hint if found is not None and is_polynomial(found[0]) else 0

    return tuple(sorted(rows, key=lambda a: -step(a)))


def partial_buffer(name: str, node: Expr, rows: tuple[Expr, ...], whole: Buffer) -> Buffer:
    """A buffer for the results of a reduction's splits, on the device of the whole result."""
    shape = tuple(a.extent for a in rows)
    return Buffer(name, node.dtype, shape, row_major(shape), whole.device)


def partial_reduction(node: Expr, cut: ReductionSplit) -> Expr:
    """The same reduction over one split."""
    value = simplify_indices(substitute(node.args[0], cut.places))
    if cut.guard is not None:
        start = neutral(REDUCTIONS[node.attr[0]].combine, value.dtype)
        nothing = const(bool(start) if value.dtype is BOOL else start, value.dtype)
        value = apply("where", cut.guard, guarded(value, cut.guard), nothing)
    return reduce(node.attr[0], cut.inner, value)


def _moved(store: Store, cut: ReductionSplit) -> Store:
    index = tuple(simplify_indices(substitute(i, cut.places)) for i in store.index)
    return replace(store, index=index, value=simplify_indices(substitute(store.value, cut.places)))


def replace_nodes(root: Expr, values: dict[Expr, Expr]) -> Expr:
    """The value with some of its nodes replaced; their operands are not visited."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        return values.get(node) or rebuild(node, args)

    return transform(root, change)
