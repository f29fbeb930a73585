"""The schedule of attention: tiles of query rows in lanes, blocks of columns that stream past them.

In: a flat `Kernel` that is attention. Out: a `Choice` with a `Streaming`, or None. Rows that would
leave most lanes empty, as the one of a decoding step does, are taken one at a time with columns in
lanes. Example: 12 heads of 512 rows and as many columns on 16 lanes: tiles of 4 vectors, 96 tasks,
blocks of 66 columns.
"""

from __future__ import annotations

from litz.ir.attention import Attention, kernel_attention, reach
from litz.ir.expr import Expr, extent_of
from litz.ir.program import Kernel
from litz.ir.scheduled import Choice, Streaming
from litz.target import Target

# Columns of a block: its weights stay in the first cache beside the queries.
COLUMNS = 64
# Columns of a block if there is but one row: of its weights there are few.
COLUMNS_OF_ROW = 256
# Vectors of rows by registers: six columns of four vectors, as in a matrix product, or near it.
MOST_VECTORS = {32: 6, 16: 3}
# Floating-point operations worth waking a thread for.
WORTH_A_THREAD = 500_000


def schedule_attention(kernel: Kernel, target: Target) -> Choice | None:
    """How to run a kernel that is attention; None if it is none."""
    found = kernel_attention(kernel)
    if found is None:
        return None
    lanes = target.vector_bytes // found.dot.dtype.bytes
    rows = 1 if found.row is None else found.row.extent.number
    streaming = _rows(kernel, found, lanes) if 4 * rows <= lanes else None
    streaming = streaming or _tiles(kernel, found, rows, lanes, target)
    work = 4 * max(streaming.tile, 1) * streaming.columns * streaming.depth
    grain = max(WORTH_A_THREAD // work, 1)
    vector = found.column if streaming.by_row else found.row
    return Choice(lanes, vector, 1, 1, grain, attention=streaming)


def _rows(kernel: Kernel, found: Attention, lanes: int) -> Streaming:
    """One row a task: what is a row is a head."""
    columns, depth, width = _sizes(found)
    heads = extent_of(a for a in kernel.outer if a is not found.width)
    return Streaming(0, COLUMNS_OF_ROW, 1, heads, 1, columns, depth, width, None, None, lanes)


def _tiles(
    kernel: Kernel, found: Attention, rows: int, lanes: int, target: Target
) -> Streaming:  # fmt: skip
    columns, depth, width = _sizes(found)
    heads = extent_of(a for a in kernel.outer if a is not found.row and a is not found.width)
    low, high = reach(found)
    most = MOST_VECTORS[target.registers]
    # The fewer rows a tile has, the less it computes of what a causal mask hides.
    best = most // 3 if high is not None else most - most // 3
    vectors = tile_vectors(-(-rows // lanes), best, most)
    group = min((target.registers - vectors - 2) // vectors, columns)
    block = _block(columns, group)
    return Streaming(
        vectors, block, group, heads, rows, columns, depth, width, low, high, lanes
    )  # fmt: skip


def _sizes(found: Attention) -> tuple[int, int, int]:
    return _size(found.column), _size(found.depth), _size(found.width)


def _size(variable: Expr) -> int:
    return variable.extent.number


def _block(columns: int, group: int) -> int:
    """Whole groups of columns; in the last block is at least one."""
    block = -(-COLUMNS // group) * group
    while 0 < columns % block < group:
        block += group
    return min(block, columns)


def tile_vectors(needed: int, best: int, most: int) -> int:
    """Vectors of rows in a tile: as few lanes unused as can be, then as near to `best`."""
    if needed <= best:
        return needed

    def cost(vectors: int) -> tuple[int, int]:
        return -(-needed // vectors) * vectors, abs(vectors - best)

    return min(range(max(best - 1, 1), most + 1), key=cost)
