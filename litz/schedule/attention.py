"""The schedule of attention: tiles of query rows in lanes, blocks of columns that stream past them.

In: a flat `Kernel` that is attention. Out: a `Choice` with a `Streaming`, or None. Rows that would
leave most lanes empty, as the one of a decoding step does, are taken one at a time with columns in
lanes. Example: 12 heads of 512 rows and as many columns on 16 lanes: tiles of 4 vectors, 96 tasks,
blocks of 64 columns.
"""

from __future__ import annotations

from litz.ir.attention import AttentionParts, attention_of, reach
from litz.ir.expr import Expr
from litz.ir.index import ONE
from litz.ir.program import Kernel
from litz.ir.scheduled import Choice, Streaming
from litz.ir.sizes import count_of, is_known
from litz.target import CpuTarget

# Columns of a block: its weights stay in the first cache beside the queries.
COLUMNS = 64
# Columns of a block if there is but one row: of its weights there are few.
COLUMNS_OF_ROW = 256
# Sums in registers at a time: enough for the pipes, in groups that divide most sizes evenly.
SUMS = {32: 16, 16: 8}
MOST_GROUPED = 8
# Rows up to which a causal tile is one vector: the smaller it is, the less is computed of what the
# mask hides. Longer sequences would read keys and values too often for it.
CAUSAL_ROWS = 1024
# Part of a tile's lanes that may stay empty for the sake of a larger tile.
SPARE = 0.05
# Floating-point operations worth waking a thread for.
WORTH_A_THREAD = 500_000


def schedule_attention(kernel: Kernel, target: CpuTarget) -> Choice | None:
    """How to run a kernel that is attention; None if it is none."""
    found = attention_of(kernel)
    if found is None:
        return None
    lanes = target.vector_bytes // found.dot.dtype.bytes
    if not is_known(found.depth.extent, found.width.extent):
        return None
    rows = ONE if found.row is None else found.row.extent
    few = rows.is_const and 4 * rows.number <= lanes
    streaming = _rows(kernel, found, lanes) if few else None
    streaming = streaming or _tiles(kernel, found, rows, lanes, target)
    columns = streaming.columns
    work = 4 * max(streaming.tile, 1) * columns.hint * streaming.depth
    grain = max(WORTH_A_THREAD // work, 1)
    vector = found.column if streaming.by_row else found.row
    return Choice(lanes, vector, 1, 1, grain, attention=streaming, points=columns)


def _rows(kernel: Kernel, found: AttentionParts, lanes: int) -> Streaming:
    """One row a task: what is a row is a head."""
    heads = count_of(a for a in kernel.outer if a is not found.width)
    return Streaming(0, COLUMNS_OF_ROW, 1, heads, ONE, *_sizes(found), None, None, lanes)


def _tiles(
    kernel: Kernel, found: AttentionParts, rows: Expr, lanes: int, target: CpuTarget
) -> Streaming:  # fmt: skip
    columns = found.column.extent
    heads = count_of(a for a in kernel.outer if a is not found.row and a is not found.width)
    low, high = reach(found)
    sums = SUMS[target.registers]
    most = sums // (MOST_GROUPED // 2)
    if high is not None:
        most = 1 if rows.hint <= CAUSAL_ROWS else 2
    # Of unknown rows there may be few: a small tile leaves few lanes empty whatever they are.
    vectors = tile_vectors(-(-rows.number // lanes), most) if rows.is_const else 1
    wide = MOST_GROUPED if vectors * MOST_GROUPED <= sums else MOST_GROUPED // 2
    group = min(wide, columns.number) if columns.is_const else wide
    block = _block(columns, group)
    return Streaming(vectors, block, group, heads, rows, *_sizes(found), low, high, lanes)


def _sizes(found: AttentionParts) -> tuple[Expr, int, int]:
    return found.column.extent, found.depth.extent.number, found.width.extent.number


def _block(columns: Expr, group: int) -> int:
    """Whole groups of columns; in the last block is at least one. Of unknown columns, the last
    block takes in what would be less than that."""
    block = -(-COLUMNS // group) * group
    if not columns.is_const:
        return block
    while 0 < columns.number % block < group:
        block += group
    return min(block, columns.number)


def tile_vectors(needed: int, most: int) -> int:
    """Vectors of rows in a tile: the most that leave few lanes unused."""

    def unused(vectors: int) -> float:
        return -(-needed // vectors) * vectors / needed - 1

    sizes = range(1, min(needed, most) + 1)
    return max((v for v in sizes if unused(v) <= SPARE), default=1)
