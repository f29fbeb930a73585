"""The schedule of a matrix product on a GPU: tiles whose sums the tensor cores hold.

In: a flat `Kernel` that is one product and what is done to its elements, and a choice about it.
Out: the kernel over batch, rows and columns as one axis each, and a `Tiling` with a depth; or None,
and it is tiled like any reduction. Example: 16 x 2048 times 2048 x 6144 has tiles of 16 x 32 sums,
and each step takes 128 points of them.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from litz.ir.choices import BY_RULE, ProductChoice
from litz.ir.dtypes import BF16, EIGHTHS, F16, F32, I8
from litz.ir.expr import extent_of
from litz.ir.product import (
    SIDES,
    Product,
    is_stored,
    matrix_of,
    multiplied_type,
    product_of,
    stored_load,
)
from litz.ir.program import Kernel
from litz.ir.scheduled import Tiling, power_of_two
from litz.ir.sizes import is_known
from litz.schedule.tile import folded, is_far
from litz.target import GpuTarget

# Exact products of f32 are no matter of tensor cores: each step is written out, so steps are short.
EXACT_SIDES, EXACT_STEP, EXACT_WARPS = (64, 64), 16, 4
# Ops whose factors torch may shorten to tf32.
SHORTENED = frozenset(f"aten.{op}.default" for op in ("mm", "addmm", "bmm", "baddbmm"))
# The op whose sums tensor cores may make of floats of eight bits: they keep fewer bits than f32.
SCALED = "aten._scaled_mm.default"
SMALLEST = 16  # side of a tile
SMALLEST_BYTES = 32  # of a step: what an instruction of the tensor cores takes along the sum
# Programs of a multiprocessor before tiles get wider, if there are few rows.
MOST_PROGRAMS = 4
# Sums from this length on take twice as much a step.
LONG_SUM = 4096
# Tiles of rows that share a tile of columns while it is in the cache.
TOGETHER = 8
# Steps under way of a product that waits for memory, whose programs take tile after tile and load
# for the next one while they store the last: results of any type fit beside as many.
SHORT_STAGES = 3
# What the engine that copies tiles asks for: bytes between rows and of the first element, and how
# many rows a tile has at most.
COPIED_BYTES = 16
MOST_COPIED = 256


def dot_tiles(
    kernel: Kernel, target: GpuTarget, chosen: ProductChoice = BY_RULE
) -> tuple[Kernel, Tiling] | None:
    """Tiles for tensor cores, if the kernel is a product that they take."""
    product = product_of(kernel)
    if product is None or not product.rows or product.taps or multiplied_type(product) is None:
        return None
    if multiplied_type(product) in EIGHTHS and all(o.op != SCALED for o in kernel.origins):
        return None
    axes = (*product.batch, *product.rows, *product.columns, product.depth)
    if not is_known(*(a.extent for a in axes)):
        return None
    groups = [g for g in (product.batch, product.rows, product.columns) if g]
    whole = folded(kernel, groups)
    found = product_of(whole)
    if found is None or is_far(whole):
        return None
    rule = product_tiling(found, target)
    stored = all(is_stored(found, side) for side in SIDES)
    if chosen.form is None and stored and _waits(found, target):
        chosen = replace(chosen, form="PERSISTENT", stages=SHORT_STAGES)
    if multiplied_type(found) is F32:
        rule = replace(rule, precision=_precision(kernel))
        rule = _exact(rule) if rule.precision == "ieee" else rule
    return whole, _as_chosen(rule, found, target, chosen)


def _waits(product: Product, target: GpuTarget) -> bool:
    rows, columns = extent_of(product.rows), extent_of(product.columns)
    depth = product.depth.extent.number
    narrow = multiplied_type(product) in (BF16, F16) and not product.batch
    return narrow and target.waits_for_memory(rows, depth, columns)


def _exact(rule: Tiling) -> Tiling:
    *batch, height, width = rule.blocks
    sides = (min(n, most) for n, most in zip((height, width), EXACT_SIDES, strict=True))
    return replace(rule, blocks=(*batch, *sides), depth=EXACT_STEP, warps=EXACT_WARPS)


def _precision(kernel: Kernel) -> str:
    """How f32 is multiplied: as the user lets torch do it in a matrix product, which is exactly
    unless told else; and exactly in what is spelled as a sum."""
    asked = any(o.op in SHORTENED for o in kernel.origins)
    return "tf32" if asked and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def product_tiling(product: Product, target: GpuTarget) -> Tiling:
    """Few rows: narrow tiles, so that every multiprocessor reads a part of the weights. Many: wide
    ones, so that each number that is read is used often."""
    batches, rows, columns = map(extent_of, (product.batch, product.rows, product.columns))
    depth = product.depth.extent.number
    dtype = multiplied_type(product)
    assert dtype is not None
    least = max(SMALLEST, SMALLEST_BYTES // dtype.bytes)
    if rows <= 64:
        # Of weights that are read once, the narrowest tiles keep the most bytes under way.
        height, width = max(power_of_two(rows), SMALLEST), SMALLEST
        while batches * -(-columns // width) > MOST_PROGRAMS * target.threads:
            width *= 2
        step = 256 if depth >= LONG_SUM else 128
        tiling = (height, width), step, 4, 5 if height <= SMALLEST else 4
    else:
        width = 128 if columns >= 128 and rows * columns >= 128 * 128 * target.threads else 64
        tiling = (128, width), 128 if dtype in EIGHTHS else 64, 4 if width == 64 else 8, 4
    (height, width), step, warps, stages = tiling
    if dtype is F32:
        step //= 2
    step = max(min(step, power_of_two(depth)), least)
    blocks = (1, height, width) if product.batch else (height, width)
    return Tiling(blocks, 1, warps, stages, depth=step, together=TOGETHER)


def _as_chosen(rule: Tiling, product: Product, target: GpuTarget, chosen: ProductChoice) -> Tiling:
    """The rule's tiling with what is chosen in place of it."""
    *batch, height, width = rule.blocks
    blocks = (*batch, chosen.height or height, chosen.width or width)
    tiling = replace(
        rule, blocks=blocks, depth=chosen.step or rule.depth, warps=chosen.warps or rule.warps,
        stages=chosen.stages or rule.stages,
    )  # fmt: skip
    if chosen.form in (None, "TILES") or tiling.precision == "ieee":
        return tiling
    copied = tuple(s for s in SIDES if _is_copied(product, s, tiling))
    programs = target.threads * (1 if chosen.form == "PERSISTENT" else 0)
    return replace(tiling, descriptors=copied, programs=programs)


def _is_copied(product: Product, side: str, tiling: Tiling) -> bool:
    """Whether the GPU's engine can copy the tiles of an operand: it is stored as it is multiplied,
    its rows lie at even distances, and along one of its axes without gaps."""
    node = stored_load(product.left if side == "left" else product.right)
    if node is None or not is_stored(product, side):
        return False
    matrix = matrix_of(product, side)
    if matrix is None or not (matrix.depth == 1 or matrix.across == 1):
        return False
    far = [matrix.across if matrix.depth == 1 else matrix.depth]
    far += [matrix.batch] if product.batch else []
    starts = all(n > 0 and n * node.dtype.bytes % COPIED_BYTES == 0 for n in far)
    sides = (tiling.depth, tiling.blocks[-2 if side == "left" else -1])
    near = tiling.depth if matrix.depth == 1 else sides[1]
    if near * node.dtype.bytes < COPIED_BYTES or max(sides) > MOST_COPIED:
        return False
    # Of bytes, the tensor cores take both operands with the sum in rows alone.
    if node.dtype in (I8, F32, *EIGHTHS) and matrix.depth != 1:
        return False
    return starts and matrix.start * node.dtype.bytes % COPIED_BYTES == 0
