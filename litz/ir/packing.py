"""Packing: the layout that a gemm's operands need for register blocks, decided in one place.

In: sizes and strides of a gemm, and facts of the target as numbers. Out: the layout of its right
operand, whether its left one is copied, the splits of its sum (split-K) and, from the layout of its
operands, how many neighbours along K a step takes. `lower` asks before it writes a gemm, and makes
the copies (`lower/panels.py`); `fuse` and `schedule` ask which layout a gemm already has. Example:
a parameter of 768 x 768 is packed in panels of 64 columns; a right operand that changes from call
to call is packed if there are 64 rows or more.
"""

from __future__ import annotations

from collections.abc import Callable

from litz.ir.dtypes import I32, DType
from litz.ir.expr import Expr, apply, extent_of
from litz.ir.gemm import BlockedOperands, GemmParts, blocked_operands, stored_load, stride_of
from litz.ir.index import ONE, bounds, flat_index, from_poly, to_poly
from litz.ir.program import loads
from litz.ir.sizes import at_least, is_known, span

# Rows from which packing the right operand at each call pays: it costs about as much as multiplying
# six rows by it, and ATen packs as well. With fewer rows ATen reads it in place.
PACKED_ROWS = 64
# Split-K: register blocks that are enough for all threads; the least depth and the least flops of
# a split.
ENOUGH_BLOCKS = 8
MIN_SPLIT_K_DEPTH = 512
MIN_SPLIT_K_FLOPS = 2_000_000
# Bytes between rows from which each row has memory pages of its own; packed rows share pages.
PAGE_STRIDE = 1 << 13
# Columns from which a left operand with a large stride along K is copied: 2048 x 2048 x 2048 gains
# a twentieth by it, 2048 x 512 x 512 loses a seventh.
MANY_COLUMNS = 1024
# The strides of a matrix along its last axis and along the one before; 0 if one is not constant.
Strides = tuple[int, int]


# -- decisions ---------------------------------------------------------------------------------


def packs_right(
    rows: int, columns: int, width: int, group: int, steps: Strides, dtype: DType, kept: bool
) -> bool | str:
    """True if the right operand is packed in panels, False if it is read in place, or the reason
    why neither pays. One that is `kept` from call to call is packed once."""
    if group > 1 and not kept:
        return "groups to be packed at each call: oneDNN's packing is faster"
    near, far = steps
    readable = near == 1 and columns % width == 0
    pays = rows >= PACKED_ROWS and (not readable or far * dtype.bytes >= PAGE_STRIDE)
    if kept or pays:
        return True
    return False if readable else "a right operand that would have to be packed at each call"


def copies_left(columns: int, group: int, steps: Strides, dtype: DType) -> bool:
    """Whether the left operand is copied. Each of its elements is read once for each panel, so it
    should be contiguous along K. Contiguous rows, as in the gradient of a weight, do as well,
    unless the stride along K is so large and the panels so many that a copy pays."""
    near, far = steps
    dear = near * dtype.bytes >= PAGE_STRIDE and columns >= MANY_COLUMNS
    as_it_lies = near == 1 or (group == 1 and far == 1 and not dear)
    return not as_it_lies


def split_k_of(
    rows: int, depth: int, columns: int, width: int, group: int, mr: int, chosen: int | None
) -> int:
    """Splits of the sum that run side by side (split-K): several if it is long and there are too
    few blocks for all threads. Sizes alone decide, so that a sum is the same with any number of
    threads."""
    if chosen is not None:
        return chosen if depth % (chosen * group) == 0 else 1
    blocks = -(-rows // mr) * -(-columns // width)
    most = min(ENOUGH_BLOCKS // blocks, depth // MIN_SPLIT_K_DEPTH,
               2 * rows * columns * depth // MIN_SPLIT_K_FLOPS)  # fmt: skip
    fits = (n for n in range(most, 1, -1) if depth % (n * group) == 0)
    return next(fits, 1) if rows > 1 else 1


# -- the layout that a gemm has ----------------------------------------------------------------


def fits_lanes(gemm: GemmParts, lanes: int) -> bool:
    """Whether the sizes of its columns, its taps and the depth of a tap are known, and its columns
    fill vectors."""
    sizes = (*gemm.columns, *gemm.taps, *([gemm.depth] if gemm.taps else []))
    if lanes < 2 or not is_known(*(a.extent for a in sizes)):
        return False
    *others, last = gemm.columns
    return extent_of(gemm.columns) >= lanes and not (others and last.extent.number % lanes)


def k_group(
    gemm: GemmParts, width: int, dot_group: Callable[[str, str], int]
) -> int | None:  # fmt: skip
    """How many neighbours along K a step takes: several if both operands have the layout that a
    dot product instruction needs, else one; None if neither fits."""
    left, right = stored_load(gemm.left), stored_load(gemm.right)
    known = gemm.depth.extent.is_const
    if left is not None and right is not None and not gemm.taps and known:
        group = dot_group(left.dtype.name, right.dtype.name)
        if group > 1 and _lies_in_groups(blocked_operands(gemm, width, group), group):
            return group
    # A computed operand may be int4: two unrolled steps share a byte of it, and the scale.
    group = 1 if right is not None or not known or gemm.depth.extent.number % 2 else 2
    blocks = blocked_operands(gemm, width, group)
    fits = all(_is_readable(node, blocks.inside) for node in loads(blocks.right))
    return group if fits and gemm.node.dtype is not I32 else None


def _lies_in_groups(blocks: BlockedOperands, group: int) -> bool:
    """Whether they are a[..., step, part] and b[panel, step, inside, part], both without gaps."""
    left, right = stored_load(blocks.left), stored_load(blocks.right)
    assert left is not None and right is not None
    near = stride_of(left, blocks.part) == 1 and stride_of(right, blocks.part) == 1
    return near and stride_of(right, blocks.inside) == group


def _is_readable(node: Expr, inside: Expr) -> bool:
    """Whether a load of a panel's columns is contiguous or the same for all, and even the last
    panel is completely inside the buffer."""
    reach = bounds(to_poly(flat_index(node.buffer, node.index)))
    if stride_of(node, inside) not in (0, 1) or reach is None:
        return False
    return at_least(span(node.buffer), apply("add", from_poly(reach[1]), ONE))
