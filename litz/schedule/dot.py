"""The schedule of a matrix product on a GPU: tiles whose sums the tensor cores hold.

In: a flat `Kernel` that is one product of halves and what is done to its elements. Out: the kernel
over batch, rows and columns as one axis each, and a `Tiling` with a depth; or None, and it is
tiled like any reduction. Example: 16 x 2048 times 2048 x 6144 has tiles of 16 x 32 sums, and each
step takes 128 points of them.
"""

from __future__ import annotations

from litz.ir.dtypes import BF16, F16, DType
from litz.ir.expr import Expr, extent_of
from litz.ir.index import coefficient
from litz.ir.product import Product, kernel_product, stored_load
from litz.ir.program import Kernel, loads
from litz.ir.scheduled import Tiling, power_of_two
from litz.schedule.tile import folded, is_far
from litz.target import Target

# What tensor cores multiply as it is stored.
HALVES: frozenset[DType] = frozenset({BF16, F16})
SMALLEST = 16  # side of a tile
# Programs of a multiprocessor before tiles get wider, if there are few rows.
MOST_PROGRAMS = 4
# Sums from this length on take twice as much a step.
LONG_SUM = 4096
# Tiles of rows that share a tile of columns while it is in the cache.
TOGETHER = 8


def dot_tiles(kernel: Kernel, target: Target) -> tuple[Kernel, Tiling] | None:
    """Tiles for tensor cores, if the kernel is a product that they take."""
    product = kernel_product(kernel)
    if product is None or not product.rows or not _is_multiplied(product):
        return None
    groups = [g for g in (product.batch, product.rows, product.columns) if g]
    whole = folded(kernel, groups)
    found = kernel_product(whole)
    if found is None or is_far(whole) or not _is_plain(found):
        return None
    return whole, product_tiling(found, target)


def _is_multiplied(product: Product) -> bool:
    sides = [stored_load(n) for n in (product.left, product.right)]
    types = {n.dtype for n in sides if n is not None and n.guard is None}
    return None not in sides and len(types) == 1 and types <= HALVES


def _is_plain(product: Product) -> bool:
    """Places follow from axes alone, and one step along the sum is the same everywhere."""
    for node in (*loads(product.left), *loads(product.right)):
        if loads(*node.index) or coefficient(node.index[0], product.depth) is None:
            return False
    return True


def product_tiling(product: Product, target: Target) -> Tiling:
    """Few rows: narrow tiles, so that every multiprocessor reads a part of the weights. Many: wide
    ones, so that each number that is read is used often."""
    batches, rows, columns = map(extent_of, (product.batch, product.rows, product.columns))
    depth = product.depth.extent.number
    if rows <= 64:
        # Of weights that are read once, the narrowest tiles keep the most bytes under way.
        height, width = max(power_of_two(rows), SMALLEST), SMALLEST
        while batches * -(-columns // width) > MOST_PROGRAMS * target.threads:
            width *= 2
        step = 256 if depth >= LONG_SUM else 128
        tiling = (height, width), step, 4, 5 if height <= SMALLEST else 4
    else:
        width = 128 if columns >= 128 and rows * columns >= 128 * 128 * target.threads else 64
        tiling = (128, width), 64, 4 if width == 64 else 8, 4
    (height, width), step, warps, stages = tiling
    step = max(min(step, power_of_two(depth)), SMALLEST)
    return tiles_of(product, height, width, step, warps, stages)


def tiles_of(
    product: Product, height: int, width: int, step: int, warps: int, stages: int
) -> Tiling:
    """A tiling of these sides; a batch has programs of its own."""
    sides: tuple[int, ...] = (height, width)
    blocks = (1, *sides) if product.batch else sides
    return Tiling(blocks, 1, warps, stages, depth=step, together=TOGETHER)


def sides_of(product: Product) -> tuple[Expr, Expr, Expr]:
    """The axis of rows, of columns and of the sum of a folded product."""
    (rows,), (columns,) = product.rows, product.columns
    return rows, columns, product.depth
