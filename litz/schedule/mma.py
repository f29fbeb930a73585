"""The schedule of a GEMM on a GPU: tensor-core (mma) tiles.

In: a flat `Kernel` that is one GEMM with its elementwise epilogue, and a choice about it. Out: the
kernel over batch, rows and columns as one axis each, and a `Tiling` with a depth; or None, and it
is tiled like any reduction. Example: 16 x 2048 times 2048 x 6144 has tiles of 16 x 32 accumulators,
and each step takes 128 points along k.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from litz.ir.choices import BY_RULE, GemmChoice
from litz.ir.dtypes import BF16, F16, F32, FP8_DTYPES, I8
from litz.ir.expr import extent_of
from litz.ir.gemm import (
    SIDES,
    GemmParts,
    gemm_of,
    is_direct_mma_operand,
    mma_dtype,
    operand_strides,
    stored_load,
)
from litz.ir.program import Kernel
from litz.ir.scheduled import Tiling, power_of_two
from litz.ir.sizes import is_known
from litz.schedule.tile import collapse_axes, needs_int64_index
from litz.target import GpuTarget

# Exact f32 products do not use tensor cores: each step is unrolled, so steps are short.
IEEE_SIDES, IEEE_STEP, IEEE_WARPS = (64, 64), 16, 4
# Ops whose f32 operands torch may round to tf32.
TF32_OPS = frozenset(f"aten.{op}.default" for op in ("mm", "addmm", "bmm", "baddbmm"))
# The only op whose fp8 products tensor cores may sum: they keep fewer bits than f32.
SCALED_MM = "aten._scaled_mm.default"
MIN_SIDE = 16  # the least side of a tile
MIN_STEP_BYTES = 32  # the least bytes of a step: what one mma instruction takes along k
# Programs per multiprocessor before tiles get wider, if there are few rows.
MAX_PROGRAMS_PER_SM = 4
# From this K on, a step is twice as long.
LONG_K = 4096
# Tiles of rows that share a tile of columns while it is in the cache.
GROUP_M = 8
# Pipeline stages of a memory-bound GEMM, whose persistent programs take tile after tile and load
# for the next while they store the last: results of any type fit beside this many.
PERSISTENT_STAGES = 3
# Requirements of TMA copies: the alignment in bytes of rows and of the first element, and the
# largest side of a tile.
TMA_ALIGNMENT = 16
TMA_MAX_BOX = 256


def mma_tiles(
    kernel: Kernel, target: GpuTarget, chosen: GemmChoice = BY_RULE
) -> tuple[Kernel, Tiling] | None:
    """Tiles for tensor cores, if the kernel is a GEMM that they take."""
    gemm = gemm_of(kernel)
    if gemm is None or not gemm.rows or gemm.taps or mma_dtype(gemm) is None:
        return None
    if mma_dtype(gemm) in FP8_DTYPES and all(o.op != SCALED_MM for o in kernel.origins):
        return None
    axes = (*gemm.batch, *gemm.rows, *gemm.columns, gemm.depth)
    if not is_known(*(a.extent for a in axes)):
        return None
    groups = [g for g in (gemm.batch, gemm.rows, gemm.columns) if g]
    whole = collapse_axes(kernel, groups)
    found = gemm_of(whole)
    if found is None or needs_int64_index(whole):
        return None
    rule = mma_tiling(found, target)
    stored = all(is_direct_mma_operand(found, side) for side in SIDES)
    if chosen.form is None and stored and _is_memory_bound(found, target):
        chosen = replace(chosen, form="PERSISTENT", stages=PERSISTENT_STAGES)
    if mma_dtype(found) is F32:
        rule = replace(rule, precision=_precision(kernel))
        rule = _ieee(rule) if rule.precision == "ieee" else rule
    return whole, _as_chosen(rule, found, target, chosen)


def _is_memory_bound(gemm: GemmParts, target: GpuTarget) -> bool:
    rows, columns = extent_of(gemm.rows), extent_of(gemm.columns)
    depth = gemm.depth.extent.number
    narrow = mma_dtype(gemm) in (BF16, F16) and not gemm.batch
    return narrow and target.gemm_is_memory_bound(rows, depth, columns)


def _ieee(rule: Tiling) -> Tiling:
    *batch, height, width = rule.blocks
    sides = (min(n, most) for n, most in zip((height, width), IEEE_SIDES, strict=True))
    return replace(rule, blocks=(*batch, *sides), depth=IEEE_STEP, warps=IEEE_WARPS)


def _precision(kernel: Kernel) -> str:
    """The precision of f32 operands: for a matmul as torch is set to, which is exact unless the
    user changes it; exact where the program wrote a sum."""
    asked = any(o.op in TF32_OPS for o in kernel.origins)
    return "tf32" if asked and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def mma_tiling(gemm: GemmParts, target: GpuTarget) -> Tiling:
    """Few rows: narrow tiles, so that every multiprocessor reads a part of the weights. Many rows:
    wide tiles, so that each loaded element is used often."""
    batches, rows, columns = map(extent_of, (gemm.batch, gemm.rows, gemm.columns))
    depth = gemm.depth.extent.number
    dtype = mma_dtype(gemm)
    assert dtype is not None
    least = max(MIN_SIDE, MIN_STEP_BYTES // dtype.bytes)
    if rows <= 64:
        # For weights that are read once, the narrowest tiles have the most bytes in flight.
        height, width = max(power_of_two(rows), MIN_SIDE), MIN_SIDE
        while batches * -(-columns // width) > MAX_PROGRAMS_PER_SM * target.threads:
            width *= 2
        step = 256 if depth >= LONG_K else 128
        tiling = (height, width), step, 4, 5 if height <= MIN_SIDE else 4
    else:
        width = 128 if columns >= 128 and rows * columns >= 128 * 128 * target.threads else 64
        tiling = (128, width), 128 if dtype in FP8_DTYPES else 64, 4 if width == 64 else 8, 4
    (height, width), step, warps, stages = tiling
    if dtype is F32:
        step //= 2
    step = max(min(step, power_of_two(depth)), least)
    blocks = (1, height, width) if gemm.batch else (height, width)
    return Tiling(blocks, 1, warps, stages, depth=step, group_m=GROUP_M)


def _as_chosen(rule: Tiling, gemm: GemmParts, target: GpuTarget, chosen: GemmChoice) -> Tiling:
    """The rule's tiling, overridden by the choice."""
    *batch, height, width = rule.blocks
    blocks = (*batch, chosen.height or height, chosen.width or width)
    tiling = replace(
        rule, blocks=blocks, depth=chosen.step or rule.depth, warps=chosen.warps or rule.warps,
        stages=chosen.stages or rule.stages,
    )  # fmt: skip
    if chosen.form in (None, "TILES") or tiling.precision == "ieee":
        return tiling
    copied = tuple(s for s in SIDES if _fits_tma(gemm, s, tiling))
    programs = target.threads * (1 if chosen.form == "PERSISTENT" else 0)
    return replace(tiling, descriptors=copied, programs=programs)


def _fits_tma(gemm: GemmParts, side: str, tiling: Tiling) -> bool:
    """Whether TMA can copy the tiles of an operand: it is stored in the dtype that is multiplied,
    its rows have a constant stride, and one of its axes is contiguous."""
    node = stored_load(gemm.left if side == "left" else gemm.right)
    if node is None or not is_direct_mma_operand(gemm, side):
        return False
    matrix = operand_strides(gemm, side)
    if matrix is None or not (matrix.depth == 1 or matrix.mn == 1):
        return False
    far = [matrix.mn if matrix.depth == 1 else matrix.depth]
    far += [matrix.batch] if gemm.batch else []
    starts = all(n > 0 and n * node.dtype.bytes % TMA_ALIGNMENT == 0 for n in far)
    sides = (tiling.depth, tiling.blocks[-2 if side == "left" else -1])
    near = tiling.depth if matrix.depth == 1 else sides[1]
    if near * node.dtype.bytes < TMA_ALIGNMENT or max(sides) > TMA_MAX_BOX:
        return False
    # For 8-bit and f32 operands, tensor cores need k contiguous in both.
    if node.dtype in (I8, F32, *FP8_DTYPES) and matrix.depth != 1:
        return False
    return starts and matrix.start * node.dtype.bytes % TMA_ALIGNMENT == 0
