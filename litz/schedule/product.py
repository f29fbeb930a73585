"""The schedule of a matrix product: blocks of sums in registers, panels of columns, chunks of rows.

In: a flat `Kernel` that is one product and what is done to its elements. Out: a `Choice` with a
`Blocking`, or None if memory does not lie as the block needs it. A task is a panel of columns for a
chunk of rows; the chunk's part of the left operand stays in the cache while panels pass by.
Example: 256 x 768 times 768 x 3072 on 16 lanes: blocks of 6 x 64, 48 panels, chunks of 168 rows.
"""

from __future__ import annotations

from itertools import pairwise

from litz.ir.choices import BY_RULE, ProductChoice
from litz.ir.dtypes import I32
from litz.ir.expr import Expr, apply, extent_of, integer
from litz.ir.index import ONE, bounds, from_poly, product, to_poly
from litz.ir.product import Blocks, Product, in_blocks, kernel_product, stored_load, stride_of
from litz.ir.program import Kernel, loads
from litz.ir.scheduled import Blocking, Choice
from litz.ir.sizes import at_least, count_of, is_known, named, rounded_up
from litz.target import Target

# Tasks that a product of unknown rows is cut into: enough for threads to share evenly.
ENOUGH_TASKS = 16
# Chunks that are looked at beyond those that the cache asks for.
MOST_CHUNKS = 8
# Rows that could be done while a panel comes from the outer caches.
PANEL_ROWS = 2
# Floating-point operations worth waking a thread for, and the rows that take no longer than a panel
# takes to come from the outer caches.
WORTH_A_THREAD = 1_000_000
AS_MANY_ROWS = 4
# Steps of a stretch are a multiple of those after which sums are put aside, so that what is added
# to what does not depend on it.
WHOLE_STRETCH = 256


def schedule_product(
    kernel: Kernel, target: Target, chosen: ProductChoice = BY_RULE
) -> Choice | None:
    """How to run a kernel that is a product; None if it is none."""
    found = kernel_product(kernel)
    if found is None:
        return None
    batches, rows, across = map(count_of, (found.batch, found.rows, found.columns))
    depth = found.depth.extent
    if not is_known(across, *(a.extent for a in found.taps), *([depth] if found.taps else [])):
        return None
    columns = across.number
    lanes = target.vector_bytes // found.node.dtype.bytes
    if lanes < 2 or columns < lanes:
        return None
    last = found.columns[-1]
    if len(found.columns) > 1 and last.extent.number % lanes:
        return None
    if found.taps and not _has_short_rows(found, target):
        return None
    width = target.panel_columns(found.node.dtype.bytes, columns, chosen.vectors)
    group = _group(found, width, target)
    if group is None:
        return None
    taps = extent_of(found.taps)
    block = chosen.block or target.block_rows
    waiting = target.l2_bytes // 16 // (width * found.node.dtype.bytes)  # rows of sums
    stretch = _stretch(found, width, group, target, chosen.stretch)
    if chosen.chunk is not None and chosen.chunk > waiting:
        stretch = 0
    whole = target.l2_bytes // 2 // (max(depth.hint, 1) * _left_bytes(found))
    fitting = waiting if stretch else whole
    panels = -(-columns // width)
    if rows.is_const:
        chunk = integer(_chunk(batches.hint, rows.number, panels, fitting, block, target.threads))
    else:
        chunk = _chunk_of_any(rows, fitting, batches.hint * panels, block)
    if chosen.chunk is not None:
        chunk = integer(-(-chosen.chunk // block) * block)  # a chunk ends with a whole block
    most = -(-waiting // block) * block if stretch else 0
    block = min(block, rows.number) if rows.is_const else block
    blocking = Blocking(
        block, width, chunk, batches, rows, columns, depth, group, taps, stretch, most
    )
    passing = max(min(chunk.hint, rows.hint), AS_MANY_ROWS)
    work = 2 * passing * min(width, columns) * depth.hint * taps
    worth = max(WORTH_A_THREAD // max(work, 1), 1)
    points = chunk if depth.is_const else product((chunk, depth))
    return Choice(lanes, last, 1, 1, worth, product=blocking, points=points)


def _has_short_rows(product: Product, target: Target) -> bool:
    """Whether a row of a tap lies at even steps, and zeros for it fit into the first cache."""
    step = stride_of(product.left, product.depth)
    if step is None or step < 0:
        return False
    return step * product.depth.extent.number * product.node.dtype.bytes <= target.l1_bytes


def _stretch(
    product: Product, width: int, group: int, target: Target, chosen: int | None
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


def _left_bytes(product: Product) -> int:
    """Of what is read of the left operand for one number. The taps of a row are read by its
    neighbours, too, and are counted there."""
    return sum(node.dtype.bytes for node in loads(product.left) if product.depth in node.axes)


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


def _group(product: Product, width: int, target: Target) -> int | None:
    """How many neighbours along the sum a step takes: several where both operands lie as the
    instruction that multiplies and adds them wants them, or one; None if neither fits."""
    left, right = stored_load(product.left), stored_load(product.right)
    known = product.depth.extent.is_const
    if left is not None and right is not None and not product.taps and known:
        group = target.dot_group(left.dtype.name, right.dtype.name)
        if group > 1 and _lies_in_groups(in_blocks(product, width, group), group):
            return group
    # Two steps written out share the byte that holds both numbers, and the scale.
    group = 1 if right is not None or not known or product.depth.extent.number % 2 else 2
    blocks = in_blocks(product, width, group)
    fits = all(_is_readable(node, blocks.inside) for node in loads(blocks.right))
    return group if fits and product.node.dtype is not I32 else None


def _lies_in_groups(blocks: Blocks, group: int) -> bool:
    """a[..., step, part] times b[panel, step, inside, part], both without gaps."""
    left, right = stored_load(blocks.left), stored_load(blocks.right)
    assert left is not None and right is not None
    near = stride_of(left, blocks.part) == 1 and stride_of(right, blocks.part) == 1
    return near and stride_of(right, blocks.inside) == group


def _is_readable(node: Expr, inside: Expr) -> bool:
    """Whether a panel's columns are neighbours, or all the same; and the last panel, too, lies in
    the buffer as a whole."""
    span = bounds(to_poly(node.index[0]))
    if stride_of(node, inside) not in (0, 1) or span is None:
        return False
    return at_least(node.buffer.shape[0], apply("add", from_poly(span[1]), ONE))
