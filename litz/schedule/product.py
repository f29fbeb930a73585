"""The schedule of a matrix product: blocks of sums in registers, panels of columns, chunks of rows.

In: a flat `Kernel` that is one product and what surrounds it. Out: a `Choice` with a `Blocking`, or
None if memory does not lie as the block needs it. A task is a panel of columns for a chunk of rows;
the chunk's part of the left operand stays in the cache while panels pass by. Where phases follow
that need whole rows, a task is a chunk with all its panels.
Example: 256 x 768 times 768 x 3072 on 16 lanes: blocks of 6 x 64, 48 panels, chunks of 168 rows.
"""

from __future__ import annotations

from itertools import pairwise

from litz.ir.choices import BY_RULE, ProductChoice
from litz.ir.expr import Expr, apply, extent_of, integer
from litz.ir.index import ONE, product
from litz.ir.packing import fits_lanes, step_group
from litz.ir.product import Product, product_of, product_phase, stride_of
from litz.ir.program import Kernel, loads
from litz.ir.scheduled import Blocking, Choice
from litz.ir.sizes import at_least, count_of, named, rounded_up
from litz.target import CpuTarget

# Tasks that a product of unknown rows is cut into: enough for threads to share evenly.
ENOUGH_TASKS = 16
# Chunks that are looked at beyond those that the cache asks for.
MOST_CHUNKS = 8
# Rows that could be done while a panel comes from the outer caches.
PANEL_ROWS = 2
# Vectors that a reduction along a row carries side by side.
UNROLL = 4
# Floating-point operations worth waking a thread for, and the rows that take no longer than a panel
# takes to come from the outer caches.
WORTH_A_THREAD = 1_000_000
AS_MANY_ROWS = 4
# Steps of a stretch are a multiple of those after which sums are put aside, so that what is added
# to what does not depend on it.
WHOLE_STRETCH = 256


def schedule_product(
    kernel: Kernel, target: CpuTarget, chosen: ProductChoice = BY_RULE
) -> Choice | None:
    """How to run a kernel that is a product; None if it is none."""
    found = product_of(kernel)
    if found is None:
        return None
    lanes = target.vector_bytes // found.node.dtype.bytes
    if not fits_lanes(found, lanes) or (found.taps and not _has_short_rows(found, target)):
        return None
    batches, rows, columns = count_of(found.batch), count_of(found.rows), extent_of(found.columns)
    last = found.columns[-1]
    width = target.panel_columns(found.node.dtype.bytes, columns, chosen.vectors)
    group = step_group(found, width, target.dot_group)
    if group is None:
        return None
    depth, taps = found.depth.extent, extent_of(found.taps)
    block = chosen.block or target.block_rows
    place = product_phase(kernel)
    whole = place is not None and place < len(kernel.phases) - 1
    waiting = target.l2_bytes // 16 // (width * found.node.dtype.bytes)  # rows of sums
    stretch = _stretch(found, width, group, target, chosen.stretch) if place is None else 0
    if chosen.chunk is not None and chosen.chunk > waiting:
        stretch = 0
    fitting = waiting if stretch else target.l2_bytes // 2 // max(_row_bytes(kernel, found), 1)
    panels = -(-columns // width)
    shared = 1 if whole else panels
    if rows.is_const:
        chunk = integer(_chunk(batches.hint, rows.number, shared, fitting, block, target.threads))
    else:
        chunk = _chunk_of_any(rows, fitting, batches.hint * shared, block)
    if chosen.chunk is not None:
        chunk = integer(-(-chosen.chunk // block) * block)  # a chunk ends with a whole block
    kept = chunk.number if chunk.is_const else -(-max(fitting, block) // block) * block
    most = -(-waiting // block) * block if stretch else 0
    block = min(block, rows.number) if rows.is_const else block
    sizes = (block, width, chunk, batches, rows, columns, depth, group, taps, stretch, most)
    blocking = Blocking(*sizes, whole=whole, kept=kept if kernel.scratch else 0)
    passing = max(min(chunk.hint, rows.hint), AS_MANY_ROWS)
    work = 2 * passing * min(width, columns) * depth.hint * taps
    worth = max(WORTH_A_THREAD // max(work * panels // shared, 1), 1)
    points = chunk if depth.is_const else product((chunk, depth))
    if place is None:
        return Choice(lanes, last, 1, 1, worth, product=blocking, points=points)
    return Choice(lanes, None, UNROLL, 1, worth, product=blocking, points=points)


def _has_short_rows(product: Product, target: CpuTarget) -> bool:
    """Whether a row of a tap lies at even steps, and zeros for it fit into the first cache."""
    step = stride_of(product.left, product.depth)
    if step is None or step < 0:
        return False
    return step * product.depth.extent.number * product.node.dtype.bytes <= target.l1_bytes


def _stretch(
    product: Product, width: int, group: int, target: CpuTarget, chosen: int | None
) -> int:  # fmt: skip
    """Steps of a sum that all blocks of a task pass along before the next ones: as many as have
    their part of the panel in an eighth of the second cache. None if that is all, or if one block
    is: the panel is then read once anyway."""
    depth, rows = product.depth.extent, count_of(product.rows)
    if product.taps or not depth.is_const or depth.number % group:
        return 0
    if rows.is_const and rows.number <= target.block_rows:
        return 0
    if chosen is None:
        chosen = target.l2_bytes // 8 // (width * product.node.dtype.bytes)
    stretch = -(-chosen // WHOLE_STRETCH) * WHOLE_STRETCH
    return stretch if stretch < depth.number // group else 0


def _row_bytes(kernel: Kernel, product: Product) -> int:
    """Of what a row of a chunk has in the cache: what is read of the left operand, and scratch. The
    taps of a row are read by its neighbours, too, and are counted there."""
    found = [node for node in loads(product.left) if product.depth in node.axes]
    left = sum(n.dtype.bytes for n in found if n.buffer not in kernel.scratch)
    scratch = sum(b.dtype.bytes * b.shape[0].hint for b in kernel.scratch)
    return left * product.depth.extent.hint + scratch


def _chunk(
    batches: int, rows: int, panels: int, fitting: int, block: int, threads: int
) -> int:  # fmt: skip
    """Rows of a task: whole blocks, no more than fit the cache, so many that threads, which take
    tasks in a row, get about the same; else as many as possible."""
    least = -(-rows // max(fitting, block))
    counts = range(least, min(least + MOST_CHUNKS, -(-rows // block)) + 1)
    sizes = dict.fromkeys(-(-rows // (count * block)) * block for count in counts)
    return min(sizes, key=lambda chunk: (_longest(batches, rows, panels, chunk, threads), -chunk))


def _longest(batches: int, rows: int, panels: int, chunk: int, threads: int) -> int:
    """The most rows times panels that one thread gets, with what a panel costs once a task."""
    each = -(-rows // chunk) * panels  # tasks of a matrix of the batch

    def before(task: int) -> int:
        whole, rest = divmod(task, each)
        number, panel = divmod(rest, panels)
        begun = min(number * chunk, rows)
        size = min(chunk, rows - begun)
        return (whole * rows + begun) * panels + panel * size + task * PANEL_ROWS

    cuts = [before(batches * each * k // threads) for k in range(threads + 1)]
    return max(high - low for low, high in pairwise(cuts))


def _chunk_of_any(rows: Expr, fitting: int, tasks: int, block: int) -> Expr:
    """The same of rows that only a call knows: enough tasks, about as many rows in each."""
    shared = rounded_up(rows, -(-ENOUGH_TASKS // tasks))
    least = integer(block)
    most = apply("max", apply("min", integer(max(fitting, 1)), shared), least)
    chunks = _some(rounded_up(rows, most), rows)
    blocks = _some(rounded_up(rows, product((chunks, least))), rows)
    return named(product((blocks, least)), low=block)


def _some(count: Expr, rows: Expr) -> Expr:
    """At least one, also if there may be no rows at all."""
    return count if at_least(rows, ONE) else apply("max", count, ONE)
