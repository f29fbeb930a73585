"""Vectorization: the axis that runs in vector lanes, and the order of the others.

In: a flat `Kernel` and a `CpuTarget`. Out: the kernel with that axis last, and a `Choice`. Every
access has a cost along each candidate axis: the share of one lane if it is contiguous, a whole
access per lane if it is not. Example: a column sum runs its columns (outer) in lanes, a row sum its
row (inner).
"""

from __future__ import annotations

from litz.config import Config
from litz.ir.expr import Expr, extent_of, walk
from litz.ir.index import coefficient
from litz.ir.ops import OPS, REDUCTIONS, SCANS
from litz.ir.program import Kernel, Phase, Store, buffer_bytes, loads
from litz.ir.scheduled import Choice
from litz.ir.sizes import count_of
from litz.schedule.axes import reorder_inner, reorder_outer, stride_along
from litz.target import COLUMN_VECTORS, CpuTarget

STRIDED_STORE_COST = 2.0
# Vectors that a row reduction accumulates side by side, to hide the latency of an addition.
ROW_UNROLL = 4
# The latency of an addition relative to its throughput.
SCAN_LATENCY = 4
# The most columns whose sums stay in L1 while rows of an array larger than all caches stream by.
MAX_STREAMED_COLUMNS = 1024
# Vectors along the vector axis that a transposing kernel takes before it moves on across.
TRANSPOSE_VECTORS = 4
# The least elements of a task, if sizes are symbolic and may be far larger than their hint.
MIN_SYMBOLIC_CHUNK = 1024


def natural_lanes(kernel: Kernel, target: CpuTarget) -> int:
    """The lanes of the widest dtype that is computed with."""
    widest = 1
    for phase in kernel.phases:
        for store in phase.stores:
            for node in (*loads(store.value), store.value):
                if node.axes:
                    widest = max(widest, node.dtype.compute.bytes)
    return max(target.vector_bytes // widest, 1)


def _access_cost(index: Expr, variable: Expr, lanes: int, strided: float) -> float:
    """The cost of an access per point, if `variable` runs in lanes."""
    if variable not in index.axes:
        return 0.0
    found = coefficient(index, variable)
    together = min(lanes, max(variable.extent.hint, 1))
    if found is not None and found[0].is_const and found[0].attr == 1:
        return 1.0 / together
    return strided


def _phase_cost(phase: Phase, variable: Expr, lanes: int) -> float:
    total = 0.0
    for store in phase.stores:
        total += _access_cost(store.index[0], variable, lanes, STRIDED_STORE_COST)
        total += sum(_access_cost(n.index[0], variable, lanes, 1.0) for n in loads(store.value))
    work = sum(op_cost(s) for s in phase.stores)
    return total + work / (8 * min(lanes, max(variable.extent.hint, 1)))


def op_cost(store: Store) -> int:
    return _ops_cost(store.value)


def _ops_cost(*values: Expr) -> int:
    """The cost of all ops of these values, in float additions."""
    ops = sum(OPS[n.op].cost for n in walk(*values) if n.op in OPS)
    return ops + sum(SCANS[n.attr].cost for n in walk(*values) if n.op == "scan")


def _scan_latency(phase: Phase) -> float:
    """The time that a scan along its own row waits for the element before: its step's latency."""
    scans = {n for s in phase.stores for n in walk(s.value) if n.op == "scan"}
    return SCAN_LATENCY * sum(SCANS[n.attr].cost for n in scans) / 8


def _inner_cost(kernel: Kernel, lanes: int) -> tuple[float, list[tuple[Expr, ...]]]:
    """The cost with each phase in lanes along its best inner axis, which then runs last."""
    total = 0.0
    orders = []
    for phase in kernel.phases:
        points = extent_of(phase.inner)
        if not phase.inner or in_order(phase):
            orders.append(phase.inner)
            total += points * (len(phase.stores) + _scan_latency(phase))
            continue
        costs = {a: _phase_cost(phase, a, lanes) for a in phase.inner}
        best = min(reversed(phase.inner), key=lambda a: costs[a])
        rest = tuple(a for a in phase.inner if a is not best)
        orders.append((*rest, best))
        total += costs[best] * points + (8.0 if phase.is_reduction else 0.0)
    return total, orders


def in_order(phase: Phase) -> bool:
    """Scans and scatters take the points of their inner axes one after the other."""
    scans = any(n.op == "scan" for s in phase.stores for n in walk(s.value))
    return scans or any(s.scatters for s in phase.stores)


def vectorize(kernel: Kernel, target: CpuTarget, config: Config) -> tuple[Kernel, Choice]:
    """Pick the cheapest axis; the others keep their order."""
    lanes = natural_lanes(kernel, target)
    sequential = any(p.inner for p in kernel.phases)
    outer_costs = {
        a: sum(_phase_cost(p, a, lanes) * extent_of(p.inner) for p in kernel.phases)
        for a in kernel.outer
    }
    best = min(reversed(kernel.outer), key=lambda a: outer_costs[a]) if outer_costs else None
    if sequential:
        inner_cost, orders = _inner_cost(kernel, lanes)
        if best is None or inner_cost <= outer_costs[best]:
            kernel = reorder_inner(kernel, orders)
            unroll = _accumulators(kernel, ROW_UNROLL, target)
            points = _points(kernel)
            return kernel, Choice(lanes, None, unroll, 1, grain(kernel, 1, config), points=points)
    if best is None:
        return kernel, Choice(1, None, 1, 1, 1 << 62)
    if not config.pick_loop_orders:
        best = kernel.outer[-1]
    along = None if sequential or not config.pick_loop_orders else _transposed_axis(kernel, best)
    if along is not None:
        rest = [a for a in kernel.outer if a not in (best, along)]
        kernel = reorder_outer(kernel, (best, *rest, along))
        chunk = _at_most(TRANSPOSE_VECTORS * lanes, best.extent)
        block = chunk * lanes if lanes > 1 else chunk
        transpose_axis = along if lanes > 1 else None
        return kernel, Choice(lanes, best, 1, chunk, grain(kernel, block, config), transpose_axis)
    kernel = reorder_outer(kernel, (*(a for a in kernel.outer if a is not best), best))
    if _streams_rows(kernel, best, target):
        chunk = _evenly(best.extent, MAX_STREAMED_COLUMNS, lanes)
        worth = grain(kernel, chunk, config)
        return kernel, Choice(lanes, best, 1, chunk, worth, row_by_row=True, points=_points(kernel))
    if sequential:
        lanes *= _accumulators(kernel, COLUMN_VECTORS, target)
        while lanes > best.extent.hint and lanes > 1:
            lanes //= 2
    chunk = _chunk(kernel, best, lanes, target)
    worth = grain(kernel, chunk, config)
    return kernel, Choice(lanes, best, 1, chunk, worth, points=_points(kernel))


def _points(kernel: Kernel) -> Expr:
    """The points of a task's longest phase: its work grows with them."""
    return max((count_of(p.inner) for p in kernel.phases), key=lambda n: n.hint)


def _at_most(most: int, extent: Expr) -> int:
    return min(most, extent.number) if extent.is_const else most


def _streams_rows(kernel: Kernel, columns: Expr, target: CpuTarget) -> bool:
    """Whether a kernel is only a column reduction of an array that is better read row by row, and
    an epilogue of its results."""
    phase, *others = kernel.phases
    if any(p.inner for p in others) or not phase.inner or phase.inside or in_order(phase):
        return False
    reduces = [n for s in phase.stores for n in walk(s.value) if n.op == "reduce"]
    if any(REDUCTIONS[n.attr[0]].gives_index for n in reduces):
        return False
    return any(
        target.reads_row_by_row(columns.extent.hint * n.dtype.bytes, _bytes_read(n))
        and stride_along(n.index[0], columns) == 1
        and all(stride_along(n.index[0], a) >= columns.extent.hint for a in phase.inner)
        for n in loads(*(s.value for s in phase.stores))
    )


def _bytes_read(node: Expr) -> int:
    """The bytes of an array that a load reads in all; windows may overlap."""
    return min(extent_of(node.axes) * node.dtype.bytes, buffer_bytes(node.buffer))


def _evenly(extent: Expr, most: int, lanes: int) -> int:
    """About equal chunks of whole vectors, none larger than `most`."""
    if not extent.is_const:
        return most
    chunks = -(-extent.number // most)
    return -(-extent.number // (chunks * lanes)) * lanes


def _accumulators(kernel: Kernel, most: int, target: CpuTarget) -> int:
    """As many vectors per accumulator as leave half of the registers to the operands."""
    sums = max(
        len({n for s in p.stores for n in walk(s.value) if n.op == "reduce"}) for p in kernel.phases
    )
    while most > 1 and most * sums > target.registers // 2:
        most //= 2
    return most


def _transposed_axis(kernel: Kernel, best: Expr) -> Expr | None:
    """The axis along which a load that strides over `best` is contiguous: a transpose.

    Its cache lines are then used up within a few vectors, before they are evicted.
    """
    for store in kernel.stores:
        for node in loads(store.value):
            if _access_cost(node.index[0], best, 2, 1.0) != 1.0:
                continue
            for a in kernel.outer:
                if a is not best and stride_along(node.index[0], a) == 1:
                    return a
    return None


def _chunk(kernel: Kernel, vector: Expr, lanes: int, target: CpuTarget) -> int:
    """The elements of a task: enough tasks for the threads, each a whole number of vectors."""
    n = vector.extent.hint
    others = extent_of(a for a in kernel.outer if a is not vector)
    pieces = -(-4 * target.threads // max(others, 1))
    least = 4 * lanes if vector.extent.is_const else MIN_SYMBOLIC_CHUNK
    size = max(-(-n // pieces), least)
    return max(_at_most(-(-size // lanes) * lanes, vector.extent), 1)


def grain(kernel: Kernel, chunk: int, config: Config) -> int:
    """The number of tasks that make up about the least work worth a thread. Ops that several stores
    share count once: the cell of an LSTM, whose two results share most of it, takes 0.17 ns for
    each unit of this estimate, like a tanh or a GELU alone."""
    work = 0.0
    for phase in kernel.phases:
        cost = _ops_cost(*(s.value for s in phase.stores)) / 8
        work += max(cost, len(phase.stores)) * extent_of(phase.inner)
    return max(round(config.cpp.min_chunk_size / max(work * chunk, 1.0)), 1)
