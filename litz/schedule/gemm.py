"""The schedule of a GEMM: register tiles (mr x nr), panels of columns, cache blocks of rows (mc).

In: a flat `Kernel` that is one GEMM with its prologue and epilogue. Out: a `Choice` with a
`GemmBlocking`, or None if the operands are not laid out as the microkernel needs them. A task is a
panel of columns for a chunk of rows; the chunk's part of the left operand stays in the cache while
panels pass by. If later phases need whole rows, a task is a chunk with all its panels.
Example: 256 x 768 times 768 x 3072 on 16 lanes: blocks of 6 x 64, 48 panels, chunks of 168 rows.
"""

from __future__ import annotations

from itertools import pairwise

from litz.ir.choices import BY_RULE, GemmChoice
from litz.ir.expr import Expr, apply, extent_of, integer
from litz.ir.gemm import GemmParts, gemm_of, gemm_phase, stride_of
from litz.ir.index import ONE, size_product
from litz.ir.packing import fits_lanes, k_group
from litz.ir.program import Kernel, loads
from litz.ir.scheduled import Choice, GemmBlocking
from litz.ir.sizes import at_least, ceil_div, count_of, named
from litz.target import CpuTarget

# The least tasks of a GEMM with a symbolic number of rows: enough for threads to share evenly.
MIN_TASKS = 16
# How many more chunks than the cache requires are tried.
MAX_EXTRA_CHUNKS = 8
# Rows that could be computed while a panel is loaded from the outer caches.
PANEL_ROWS = 2
# Vectors that a reduction along a row accumulates side by side.
UNROLL = 4
# The least floating-point operations that are worth waking a thread, and the rows whose time equals
# loading a panel from the outer caches.
MIN_FLOPS_PER_THREAD = 1_000_000
PANEL_LATENCY_ROWS = 4
# A K block is a multiple of the steps after which accumulators are flushed, so that the order of
# additions does not depend on it.
K_BLOCK_MULTIPLE = 256


def schedule_gemm(kernel: Kernel, target: CpuTarget, chosen: GemmChoice = BY_RULE) -> Choice | None:
    """The schedule of a kernel that is a GEMM; None if it is not one."""
    found = gemm_of(kernel)
    if found is None:
        return None
    lanes = target.vector_bytes // found.node.dtype.bytes
    if not fits_lanes(found, lanes) or (found.taps and not _has_short_rows(found, target)):
        return None
    batches, rows, columns = count_of(found.batch), count_of(found.rows), extent_of(found.columns)
    last = found.columns[-1]
    width = target.panel_columns(found.node.dtype.bytes, columns, chosen.nr_vectors)
    group = k_group(found, width, target.dot_group)
    if group is None:
        return None
    depth, taps = found.depth.extent, extent_of(found.taps)
    block = chosen.mr or target.mr
    place = gemm_phase(kernel)
    whole = place is not None and place < len(kernel.phases) - 1
    waiting = target.l2_bytes // 16 // (width * found.node.dtype.bytes)  # rows of accumulators
    k_block = _k_block(found, width, group, target, chosen.k_block) if place is None else 0
    if chosen.mc is not None and chosen.mc > waiting:
        k_block = 0
    fitting = waiting if k_block else target.l2_bytes // 2 // max(_row_bytes(kernel, found), 1)
    panels = -(-columns // width)
    shared = 1 if whole else panels
    if rows.is_const:
        chunk = integer(_mc(batches.hint, rows.number, shared, fitting, block, target.threads))
    else:
        chunk = _symbolic_mc(rows, fitting, batches.hint * shared, block)
    if chosen.mc is not None:
        chunk = integer(-(-chosen.mc // block) * block)  # a chunk ends with a whole block
    kept = chunk.number if chunk.is_const else -(-max(fitting, block) // block) * block
    most = -(-waiting // block) * block if k_block else 0
    block = min(block, rows.number) if rows.is_const else block
    sizes = (block, width, chunk, batches, rows, columns, depth, group, taps, k_block, most)
    blocking = GemmBlocking(*sizes, full_rows=whole, scratch_rows=kept if kernel.scratch else 0)
    passing = max(min(chunk.hint, rows.hint), PANEL_LATENCY_ROWS)
    work = 2 * passing * min(width, columns) * depth.hint * taps
    worth = max(MIN_FLOPS_PER_THREAD // max(work * panels // shared, 1), 1)
    points = chunk if depth.is_const else size_product((chunk, depth))
    if place is None:
        return Choice(lanes, last, 1, 1, worth, gemm=blocking, points=points)
    return Choice(lanes, None, UNROLL, 1, worth, gemm=blocking, points=points)


def _has_short_rows(gemm: GemmParts, target: CpuTarget) -> bool:
    """Whether a row of a tap has a constant stride, and zeros in its place fit L1."""
    step = stride_of(gemm.left, gemm.depth)
    if step is None or step < 0:
        return False
    return step * gemm.depth.extent.number * gemm.node.dtype.bytes <= target.l1_bytes


def _k_block(
    gemm: GemmParts, width: int, group: int, target: CpuTarget, chosen: int | None
) -> int:  # fmt: skip
    """K-blocking: the steps along k that all tiles of a task take before the next ones, so many
    that their part of the panel fits an eighth of L2. 0 if that is all of k, or if there is only
    one tile of rows: the panel is then read once anyway."""
    depth, rows = gemm.depth.extent, count_of(gemm.rows)
    if gemm.taps or not depth.is_const or depth.number % group:
        return 0
    if rows.is_const and rows.number <= target.mr:
        return 0
    if chosen is None:
        chosen = target.l2_bytes // 8 // (width * gemm.node.dtype.bytes)
    k_block = -(-chosen // K_BLOCK_MULTIPLE) * K_BLOCK_MULTIPLE
    return k_block if k_block < depth.number // group else 0


def _row_bytes(kernel: Kernel, gemm: GemmParts) -> int:
    """Bytes of one row of a chunk in the cache: its left operand, and scratch. Neighbouring rows
    share the taps of a row, which are counted only once."""
    found = [node for node in loads(gemm.left) if gemm.depth in node.axes]
    left = sum(n.dtype.bytes for n in found if n.buffer not in kernel.scratch)
    scratch = sum(b.dtype.bytes * b.shape[0].hint for b in kernel.scratch)
    return left * gemm.depth.extent.hint + scratch


def _mc(
    batches: int, rows: int, panels: int, fitting: int, block: int, threads: int
) -> int:  # fmt: skip
    """mc, the rows of a task: whole tiles that fit the cache, in sizes that give threads, which
    take consecutive tasks, about equal work; of these the most rows."""
    least = -(-rows // max(fitting, block))
    counts = range(least, min(least + MAX_EXTRA_CHUNKS, -(-rows // block)) + 1)
    sizes = dict.fromkeys(-(-rows // (count * block)) * block for count in counts)
    return min(
        sizes, key=lambda chunk: (_critical_path(batches, rows, panels, chunk, threads), -chunk)
    )


def _critical_path(batches: int, rows: int, panels: int, chunk: int, threads: int) -> int:
    """The most rows times panels of any thread, plus the cost of a panel per task."""
    each = -(-rows // chunk) * panels  # tasks per matrix of the batch

    def before(task: int) -> int:
        whole, rest = divmod(task, each)
        number, panel = divmod(rest, panels)
        begun = min(number * chunk, rows)
        size = min(chunk, rows - begun)
        return (whole * rows + begun) * panels + panel * size + task * PANEL_ROWS

    cuts = [before(batches * each * k // threads) for k in range(threads + 1)]
    return max(high - low for low, high in pairwise(cuts))


def _symbolic_mc(rows: Expr, fitting: int, tasks: int, block: int) -> Expr:
    """mc for a symbolic number of rows: enough tasks of about equal size."""
    shared = ceil_div(rows, -(-MIN_TASKS // tasks))
    least = integer(block)
    most = apply("max", apply("min", integer(max(fitting, 1)), shared), least)
    chunks = _some(ceil_div(rows, most), rows)
    blocks = _some(ceil_div(rows, size_product((chunks, least))), rows)
    return named(size_product((blocks, least)), low=block)


def _some(count: Expr, rows: Expr) -> Expr:
    """At least one, even if there may be no rows."""
    return count if at_least(rows, ONE) else apply("max", count, ONE)
