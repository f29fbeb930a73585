"""Packing: how the operands of a matrix product lie so that it runs in blocks, in one place.

In: sizes and strides of a product, and facts of the target as numbers. Out: how its right operand
is laid out, whether its left one is copied, in how many slices it is summed (split-K), and by the
layout that operands then have, how many neighbours along the sum a step takes. `lower` asks before
it writes a product and makes the copies (`lower/panels.py`); `fuse` and `schedule` ask what a
product that they read is laid out for. Example: a parameter of 768 x 768 is packed in panels of 64
columns; a right operand that changes from call to call is packed from 64 rows on.
"""

from __future__ import annotations

from collections.abc import Callable

from litz.ir.dtypes import I32, DType
from litz.ir.expr import Expr, apply, extent_of
from litz.ir.index import ONE, bounds, flat_index, from_poly, to_poly
from litz.ir.product import Blocks, Product, in_blocks, stored_load, stride_of
from litz.ir.program import loads
from litz.ir.sizes import at_least, is_known, span

# Rows for which packing the right operand at each call pays: it costs about as much as the products
# with six rows, and ATen packs as well. With fewer rows ATen reads it as it lies.
PACKED_ROWS = 64
# Blocks for threads to share, and what a slice of the sum must have to be one of them.
ENOUGH_BLOCKS = 8
SHORTEST_SLICE = 512
WORTH_A_SLICE = 2_000_000
# Bytes between rows from which every one of them lies on pages of its own: packed, they do not.
FAR_APART = 1 << 13
# Columns from which a left operand whose steps are far apart is copied: 2048 x 2048 x 2048 gains a
# twentieth by it, 2048 x 512 x 512 loses a seventh.
MANY_COLUMNS = 1024
# How far apart neighbours along the last axis of a matrix lie, and those along the one before; 0 if
# that changes from place to place.
Steps = tuple[int, int]


# -- what is decided ---------------------------------------------------------------------------


def packs_right(
    rows: int, columns: int, width: int, group: int, steps: Steps, dtype: DType, kept: bool
) -> bool | str:
    """Whether the right operand is packed in panels, or read as it lies; else why neither pays.
    What is `kept` from call to call is packed once."""
    if group > 1 and not kept:
        return "groups to be packed at each call: oneDNN's packing is faster"
    near, far = steps
    readable = near == 1 and columns % width == 0
    pays = rows >= PACKED_ROWS and (not readable or far * dtype.bytes >= FAR_APART)
    if kept or pays:
        return True
    return False if readable else "a right operand that would have to be packed at each call"


def copies_left(columns: int, group: int, steps: Steps, dtype: DType) -> bool:
    """Whether the left operand is copied: each element is read once a panel, numbers one by one or
    in groups of neighbours. The rows of a block may be neighbours instead of the steps, as they are
    in the gradient of a weight, unless steps are so far apart and panels so many that a copy is
    soon paid for."""
    near, far = steps
    dear = near * dtype.bytes >= FAR_APART and columns >= MANY_COLUMNS
    as_it_lies = near == 1 or (group == 1 and far == 1 and not dear)
    return not as_it_lies


def slices_of(
    rows: int, depth: int, columns: int, width: int, group: int, block_rows: int, chosen: int | None
) -> int:
    """Pieces of the sum that run side by side (split-K): several if it is long and the blocks too
    few to share. Sizes alone decide, so that a sum is the same with any number of threads."""
    if chosen is not None:
        return chosen if depth % (chosen * group) == 0 else 1
    blocks = -(-rows // block_rows) * -(-columns // width)
    most = min(ENOUGH_BLOCKS // blocks, depth // SHORTEST_SLICE,
               2 * rows * columns * depth // WORTH_A_SLICE)  # fmt: skip
    fits = (n for n in range(most, 1, -1) if depth % (n * group) == 0)
    return next(fits, 1) if rows > 1 else 1


# -- what a product is laid out for ------------------------------------------------------------


def fits_lanes(product: Product, lanes: int) -> bool:
    """Whether its columns are known, and taps and what a tap sums, and columns fill vectors."""
    sizes = (*product.columns, *product.taps, *([product.depth] if product.taps else []))
    if lanes < 2 or not is_known(*(a.extent for a in sizes)):
        return False
    *others, last = product.columns
    return extent_of(product.columns) >= lanes and not (others and last.extent.number % lanes)


def step_group(
    product: Product, width: int, dot_group: Callable[[str, str], int]
) -> int | None:  # fmt: skip
    """How many neighbours along the sum a step takes: several where both operands lie as the
    instruction that multiplies and adds them wants them, or one; None if neither fits."""
    left, right = stored_load(product.left), stored_load(product.right)
    known = product.depth.extent.is_const
    if left is not None and right is not None and not product.taps and known:
        group = dot_group(left.dtype.name, right.dtype.name)
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
    reach = bounds(to_poly(flat_index(node.buffer, node.index)))
    if stride_of(node, inside) not in (0, 1) or reach is None:
        return False
    return at_least(span(node.buffer), apply("add", from_poly(reach[1]), ONE))
