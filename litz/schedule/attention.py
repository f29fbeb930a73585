"""The schedule of attention: tiles of query rows in lanes, blocks of columns that stream past them.

In: a flat `Kernel` that is attention. Out: a `Choice` with a `Streaming`, or None. Example: 12
heads of 512 rows and as many columns on 16 lanes: tiles of 4 vectors, 96 tasks, blocks of 64
columns.
"""

from __future__ import annotations

from litz.ir.attention import Attention, kernel_attention, reach
from litz.ir.expr import extent_of
from litz.ir.program import Kernel
from litz.ir.scheduled import Choice, Streaming
from litz.target import Target

# Columns of a block: its weights stay in the first cache beside the queries.
COLUMNS = 64
# Sums that are in registers at a time: six columns of four vectors, as in a matrix product.
MOST_VECTORS = {32: 6, 16: 3}
# Floating-point operations worth waking a thread for.
WORTH_A_THREAD = 500_000


def schedule_attention(kernel: Kernel, target: Target) -> Choice | None:
    """How to run a kernel that is attention; None if it is none."""
    found = kernel_attention(kernel)
    if found is None:
        return None
    lanes = target.vector_bytes // found.dot.dtype.bytes
    rows, columns = found.row.extent.number, found.column.extent.number
    low, high = reach(found)
    most = MOST_VECTORS[target.registers]
    # The fewer rows a tile has, the less it computes of what a causal mask hides.
    best = most // 3 if high is not None else most - most // 3
    vectors = tile_vectors(-(-rows // lanes), best, most)
    group = min((target.registers - vectors - 2) // vectors, columns)
    block = _block(columns, group)
    streaming = Streaming(
        vectors, block, group, _heads(kernel, found), rows, columns,
        found.depth.extent.number, found.width.extent.number, low, high, lanes,
    )  # fmt: skip
    work = 4 * streaming.tile * columns * streaming.depth
    return Choice(lanes, found.row, 1, 1, max(WORTH_A_THREAD // work, 1), attention=streaming)


def _heads(kernel: Kernel, found: Attention) -> int:
    return extent_of(a for a in kernel.outer if a is not found.row and a is not found.width)


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
