"""The schedule of a matrix product: blocks of sums in registers, panels of columns, chunks of rows.

In: a flat `Kernel` that is one product and what is done to its elements. Out: a `Choice` with a
`Blocking`, or None if memory does not lie as the block needs it. A task is a panel of columns for a
chunk of rows; the chunk's part of the left operand stays in the cache while panels pass by.
Example: 256 x 768 times 768 x 3072 on 16 lanes: blocks of 6 x 64, 48 panels, chunks of 168 rows.
"""

from __future__ import annotations

from litz.ir.dtypes import I32
from litz.ir.expr import Expr, apply, extent_of, integer
from litz.ir.index import ONE, bounds, coefficient, from_poly, product, to_poly
from litz.ir.product import Blocks, Product, in_blocks, kernel_product, stored_load
from litz.ir.program import Kernel, loads
from litz.ir.scheduled import Blocking, Choice
from litz.ir.sizes import at_least, count_of, is_known, named, rounded_up
from litz.target import Target

# Tasks that a product is cut into, if it has the rows: enough for threads to share evenly.
ENOUGH_TASKS = 16
# Floating-point operations worth waking a thread for.
WORTH_A_THREAD = 2_000_000


def schedule_product(kernel: Kernel, target: Target) -> Choice | None:
    """How to run a kernel that is a product; None if it is none."""
    found = kernel_product(kernel)
    if found is None:
        return None
    batches, rows, across = map(count_of, (found.batch, found.rows, found.columns))
    if not is_known(across, found.depth.extent, *(a.extent for a in found.taps)):
        return None
    columns = across.number
    lanes = target.vector_bytes // found.node.dtype.bytes
    if lanes < 2 or columns < lanes:
        return None
    last = found.columns[-1]
    if len(found.columns) > 1 and last.extent.number % lanes:
        return None
    width = target.panel_columns(found.node.dtype.bytes, columns)
    group = _group(found, width, target)
    if group is None:
        return None
    depth, taps = found.depth.extent.number, extent_of(found.taps)
    tasks = batches.hint * -(-columns // width)
    chunk = _chunk(rows, depth * _left_bytes(found), tasks, target)
    block = min(target.block_rows, rows.number) if rows.is_const else target.block_rows
    blocking = Blocking(block, width, chunk, batches, rows, columns, depth, group, taps)
    work = 2 * min(chunk.hint, rows.hint) * min(width, columns) * depth * taps
    worth = max(WORTH_A_THREAD // work, 1)
    return Choice(lanes, last, 1, 1, worth, product=blocking, points=chunk)


def _left_bytes(product: Product) -> int:
    """Of what is read of the left operand for one number. The taps of a row are read by its
    neighbours, too, and are counted there."""
    return sum(node.dtype.bytes for node in loads(product.left) if product.depth in node.axes)


def _chunk(rows: Expr, row_bytes: int, tasks: int, target: Target) -> Expr:
    """Rows that stay in half of the cache, fewer if that leaves too few tasks; whole blocks, about
    as many in each chunk. Of symbolic rows, each call finds it by the same rule."""
    block = integer(target.block_rows)
    fitting = integer(max(target.l2_bytes // 2 // row_bytes, 1))
    shared = rounded_up(rows, -(-ENOUGH_TASKS // tasks))
    most = apply("max", apply("min", fitting, shared), block)
    most = integer(most.hint) if rows.is_const else most
    chunks = rounded_up(rows, most)
    blocks = rounded_up(rows, product((chunks, block)))
    return named(product((blocks, block)), low=target.block_rows)


def _group(product: Product, width: int, target: Target) -> int | None:
    """How many neighbours along the sum a step takes: several where both operands lie as the
    instruction that multiplies and adds them wants them, or one; None if neither fits."""
    left, right = stored_load(product.left), stored_load(product.right)
    if left is not None and right is not None and not product.taps:
        group = target.dot_group(left.dtype.name, right.dtype.name)
        if group > 1 and _lies_in_groups(in_blocks(product, width, group), group):
            return group
    # Two steps written out share the byte that holds both numbers, and the scale.
    group = 1 if right is not None or product.depth.extent.number % 2 else 2
    blocks = in_blocks(product, width, group)
    fits = all(_is_readable(node, blocks.inside) for node in loads(blocks.right))
    return group if fits and product.node.dtype is not I32 else None


def _lies_in_groups(blocks: Blocks, group: int) -> bool:
    """a[..., step, part] times b[panel, step, inside, part], both without gaps."""
    left, right = stored_load(blocks.left), stored_load(blocks.right)
    assert left is not None and right is not None
    near = _step(left, blocks.part) == 1 and _step(right, blocks.part) == 1
    return near and _step(right, blocks.inside) == group


def _step(node: Expr, variable: Expr) -> int | None:
    """How far apart neighbours along an axis lie; None if that differs."""
    found = coefficient(node.index[0], variable)
    return found[0].number if found is not None and found[0].is_const else None


def _is_readable(node: Expr, inside: Expr) -> bool:
    """Whether a panel's columns are neighbours, or all the same; and the last panel, too, lies in
    the buffer as a whole."""
    span = bounds(to_poly(node.index[0]))
    if _step(node, inside) not in (0, 1) or span is None:
        return False
    return at_least(node.buffer.shape[0], apply("add", from_poly(span[1]), ONE))
