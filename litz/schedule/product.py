"""The schedule of a matrix product: blocks of sums in registers, panels of columns, chunks of rows.

In: a flat `Kernel` that is one product and what is done to its elements. Out: a `Choice` with a
`Blocking`, or None if memory does not lie as the block needs it. A task is a panel of columns for a
chunk of rows; the chunk's part of the left operand stays in the cache while panels pass by.
Example: 256 x 768 times 768 x 3072 on 16 lanes: blocks of 6 x 64, 48 panels, chunks of 168 rows.
"""

from __future__ import annotations

from litz.ir.expr import Expr, apply, extent_of, integer, substitute
from litz.ir.index import ZERO, coefficient, floordiv, modulo, ravel, simplify
from litz.ir.product import Product, kernel_product
from litz.ir.program import Kernel
from litz.ir.scheduled import Blocking, Choice
from litz.target import Target

# Tasks that a product is cut into, if it has the rows: enough for threads to share evenly.
ENOUGH_TASKS = 16
# Floating-point operations worth waking a thread for.
WORTH_A_THREAD = 2_000_000


def schedule_product(kernel: Kernel, target: Target) -> Choice | None:
    """How to run a kernel that is a product; None if it is none."""
    product = kernel_product(kernel)
    if product is None:
        return None
    rows, columns = extent_of(product.rows), extent_of(product.columns)
    lanes = target.vector_bytes // product.node.dtype.bytes
    if lanes < 2 or columns < lanes:
        return None
    last = product.columns[-1]
    if len(product.columns) > 1 and last.extent.number % lanes:
        return None
    width = target.panel_columns(product.node.dtype.bytes, columns)
    left, right = _left(product), _right(product, width, columns)
    if left is None or right is None:
        return None
    depth = product.depth.extent.number
    chunk = _chunk(rows, depth * product.node.dtype.bytes, -(-columns // width), target)
    block = min(target.block_rows, rows)
    blocking = Blocking(block, width, chunk, rows, columns, depth, *left, *right)
    work = 2 * min(chunk, rows) * min(width, columns) * depth
    return Choice(lanes, last, 1, 1, max(WORTH_A_THREAD // work, 1), product=blocking)


def _chunk(rows: int, row_bytes: int, panels: int, target: Target) -> int:
    """Rows that stay in half of the cache, fewer if that leaves too few tasks; whole blocks, about
    as many in each chunk."""
    block = target.block_rows
    fitting = max(target.l2_bytes // 2 // row_bytes, 1)
    shared = -(-rows // -(-ENOUGH_TASKS // panels))
    chunks = -(-rows // max(min(fitting, shared, rows), block))
    return -(-rows // (chunks * block)) * block


def _step(index: Expr, axes: tuple[Expr, ...]) -> int | None:
    """How far an index moves from one point of the axes, taken as one number, to the next."""
    expected = None
    for variable in reversed(axes):
        found = coefficient(index, variable)
        if found is None or not found[0].is_const:
            return None
        if expected is not None and found[0].number != expected:
            return None
        if expected is None:
            first = found[0].number
        expected = found[0].number * variable.extent.number
    return 0 if expected is None else first


def _origin(index: Expr) -> int | None:
    start = simplify(substitute(index, dict.fromkeys(index.axes, ZERO)))
    return start.number if start.is_const else None


def _left(product: Product) -> tuple[int, int, int] | None:
    """Where a row begins, how far apart rows are, and elements along the sum."""
    index = product.left.index[0]
    steps = (_origin(index), _step(index, product.rows), _step(index, (product.depth,)))
    return None if None in steps else steps  # type: ignore[return-value]


def _right(product: Product, width: int, columns: int) -> tuple[int, int, int] | None:
    """Where panels begin, how far apart they are, and the rows of one: packed, or as they are."""
    index, depth = product.right.index[0], product.depth.extent.number
    origin, along = _origin(index), _step(index, (product.depth,))
    if origin is None or along is None:
        return None
    inside = simplify(substitute(index, {product.depth: ZERO}))
    if along == width and inside is _packed_index(product, width, depth, origin):
        return origin, depth * width, width
    if _step(inside, product.columns) == 1 and columns % width == 0:
        return origin, width, along
    return None


def _packed_index(product: Product, width: int, depth: int, origin: int) -> Expr:
    """The flat place of column c of a packed operand, at the front of the sum."""
    column = ravel(product.columns, tuple(a.extent for a in product.columns))
    panel = apply("mul", floordiv(column, integer(width)), integer(depth * width))
    inside = apply("add", modulo(column, integer(width)), integer(origin))
    return simplify(apply("add", panel, inside))
