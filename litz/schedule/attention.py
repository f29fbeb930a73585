"""The schedule of attention: tiles of query rows in lanes, blocks of columns that stream past them.

In: a flat `Kernel` that is attention. Out: a `Choice` with an `AttentionTiling`, or None. If rows
would leave most lanes empty, as the single row of a decoding step does, each row is a task, with
columns in lanes. Example: 12 heads of 512 rows and as many columns on 16 lanes: tiles of 4 vectors,
96 tasks, blocks of 64 columns.
"""

from __future__ import annotations

from litz.ir.attention import AttentionParts, attention_of, mask_band
from litz.ir.expr import Expr
from litz.ir.index import ONE
from litz.ir.program import Kernel
from litz.ir.scheduled import AttentionTiling, Choice
from litz.ir.sizes import count_of, is_known
from litz.target import CpuTarget

# Columns of a block: its weights stay in L1 beside the queries.
COLUMNS = 64
# Columns of a block for a single row, which has few weights.
COLUMNS_OF_ROW = 256
# Accumulators in registers: enough to hide latency, in groups that divide most sizes evenly.
SUMS = {32: 16, 16: 8}
MAX_GROUP = 8
# Rows up to which a causal tile is one vector: a smaller tile computes less of the masked part.
# With longer sequences it would read keys and values too often.
CAUSAL_ROWS = 1024
# The fraction of a tile's lanes that may be idle for the sake of a larger tile.
MAX_IDLE_LANES = 0.05
# The least floating-point operations that are worth waking a thread.
MIN_FLOPS_PER_THREAD = 500_000


def schedule_attention(kernel: Kernel, target: CpuTarget) -> Choice | None:
    """The schedule of a kernel that is attention; None if it is not."""
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
    grain = max(MIN_FLOPS_PER_THREAD // work, 1)
    vector = found.column if streaming.by_row else found.row
    return Choice(lanes, vector, 1, 1, grain, attention=streaming, points=columns)


def _rows(kernel: Kernel, found: AttentionParts, lanes: int) -> AttentionTiling:
    """One row per task: each row counts as a head."""
    heads = count_of(a for a in kernel.outer if a is not found.width)
    return AttentionTiling(0, COLUMNS_OF_ROW, 1, heads, ONE, *_sizes(found), None, None, lanes)


def _tiles(
    kernel: Kernel, found: AttentionParts, rows: Expr, lanes: int, target: CpuTarget
) -> AttentionTiling:  # fmt: skip
    columns = found.column.extent
    heads = count_of(a for a in kernel.outer if a is not found.row and a is not found.width)
    low, high = mask_band(found)
    sums = SUMS[target.registers]
    most = sums // (MAX_GROUP // 2)
    if high is not None:
        most = 1 if rows.hint <= CAUSAL_ROWS else 2
    # A symbolic number of rows may be small: a small tile leaves few lanes idle in any case.
    vectors = tile_vectors(-(-rows.number // lanes), most) if rows.is_const else 1
    wide = MAX_GROUP if vectors * MAX_GROUP <= sums else MAX_GROUP // 2
    group = min(wide, columns.number) if columns.is_const else wide
    block = _block(columns, group)
    return AttentionTiling(vectors, block, group, heads, rows, *_sizes(found), low, high, lanes)


def _sizes(found: AttentionParts) -> tuple[Expr, int, int]:
    return found.column.extent, found.depth.extent.number, found.width.extent.number


def _block(columns: Expr, group: int) -> int:
    """Columns of a block: whole groups, and at least one in the last block. With symbolic columns,
    the last block takes in a remainder shorter than a group."""
    block = -(-COLUMNS // group) * group
    if not columns.is_const:
        return block
    while 0 < columns.number % block < group:
        block += group
    return min(block, columns.number)


def tile_vectors(needed: int, most: int) -> int:
    """The most vectors of rows in a tile that leave few lanes idle."""

    def unused(vectors: int) -> float:
        return -(-needed // vectors) * vectors / needed - 1

    sizes = range(1, min(needed, most) + 1)
    return max((v for v in sizes if unused(v) <= MAX_IDLE_LANES), default=1)
