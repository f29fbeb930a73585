"""The search space of a GPU GEMM: the tiles that are worth considering, and their estimated times.

In: a GEMM's size, the target and the flags. Out: `GemmChoice`s, the most promising first, without
those that do not fit a multiprocessor's shared memory or registers. By rule a GEMM is the library's
call, so every choice is timed against that. Example: for 4096 x 768 x 3072 in bfloat16, tiles of
128 x 256 lead the list, and 64 x 64 are not on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from litz.autotune.cost import Machine
from litz.autotune.gemm_regions import GemmSize
from litz.config import Config
from litz.ir.choices import GemmChoice
from litz.target import GpuTarget

# Rows, columns, points of k a step (of two bytes each), warps. Tensor cores take no fewer than
# sixteen rows.
TILES = (
    (128, 256, 64, 8), (256, 128, 64, 8), (128, 128, 64, 4), (128, 128, 64, 8), (128, 128, 128, 8),
    (64, 256, 64, 4), (256, 64, 64, 4), (64, 128, 64, 4), (128, 64, 64, 4), (64, 128, 128, 4),
    (64, 64, 64, 4), (64, 64, 128, 4), (64, 32, 128, 4), (32, 128, 128, 4), (32, 64, 128, 4),
    (32, 32, 128, 4), (16, 128, 128, 4), (16, 64, 128, 4), (16, 64, 256, 4), (16, 32, 256, 4),
)  # fmt: skip
SPLIT_K = (2, 4, 8)
MIN_SPLIT_K_DEPTH = 256
# Choices that are timed unless all are asked for, and how many of them load without TMA.
SHORT_LIST, BY_THREADS = 9, 3
# Choices up to this much slower than the best estimate are worth a trial.
NEAR = 1.6
# A multiprocessor: bytes of shared memory, registers of four bytes, and the registers of a thread
# that are not sums.
SHARED, REGISTERS, OTHER_REGISTERS = 227 * 1024, 1 << 16, 56
MOST_REGISTERS = 255
# Bytes of the barriers between warps.
BARRIERS = 64
# Pipeline stages of tiles that share a multiprocessor, and of one that has it alone.
STAGES, PERSISTENT_STAGES = (2, 3, 4, 5), (2, 3, 4, 5, 6)
# Bytes a clock that a multiprocessor gets from the L2 cache.
CACHE_BYTES = 50
# Seconds: of a launch; of the prologue and epilogue of a 128 x 128 tile with eight warps; and of
# making TMA descriptors, which each program does anew.
LAUNCH, TILE_OVERHEAD, DESCRIPTOR_SECONDS = 2e-6, 1e-6, 1e-6
# How much slower the sums are if a tile has a multiprocessor alone and fewer sums than fill the
# registers, with few or with enough points in flight; and if threads load the operands. From an
# H200's times: 128 x 128 alone took 1.3 to 1.5 times as long as two of them, or as 128 x 256.
MANY_SUMS, ENOUGH_POINTS = 1 << 15, 384
ALONE, ALONE_DEEP, LOADING = 1.4, 1.12, 1.04
# The fraction of the peak that the library reaches, and that we reach within the limits below.
LIBRARY, OURS = 0.8, 0.75
# For each generation: flops a clock and multiprocessor in two-byte types (a multiply-add is two),
# clocks a second, bytes of memory a second. Only ratios matter, so one entry serves its relatives.
GENERATIONS = {8: (2048, 1.4e9, 1.6e12), 9: (4096, 1.7e9, 4.0e12), 10: (8192, 1.8e9, 7.0e12)}


@dataclass(frozen=True)
class Occupancy:
    """A tile on a multiprocessor: its pipeline stages, and how many tiles are resident."""

    stages: int
    resident: int


def machine_of(target: GpuTarget) -> Machine:
    """The peaks of a GPU, by its generation."""
    rate, clock, bandwidth = _generation(target)
    return Machine(rate * clock * target.threads, bandwidth)


def candidates(
    size: GemmSize, target: GpuTarget, config: Config, machine: Machine
) -> list[GemmChoice]:
    """The choices to time, besides the rule's own."""
    named = {"CPP": "LITZ", "TRITON": "LITZ"}
    convolves, multiplies = config.max_autotune_conv_backends, config.max_autotune_gemm_backends
    listed = (convolves if size.is_convolution else multiplies).split(",")
    allowed = {named.get(b, b) for b in listed}
    found = [GemmChoice("ATEN")] if "ATEN" in allowed else []
    exact = size.dtype == "float32" and not torch.backends.cuda.matmul.allow_tf32
    if "LITZ" not in allowed or exact:  # tensor cores do not compute exact f32
        return found
    ours = tiles(size, target)
    ours.sort(key=lambda choice: estimate(size, choice, target, machine))
    if config.max_autotune_gemm_search_space == "DEFAULT":
        ours = _short(size, ours, target, machine)
    if size.has_epilogue and config.benchmark_epilogue_fusion and config.epilogue_fusion:
        unfused = (replace(choice, fused=False) for choice in ours)
        found += [choice for choice in unfused if _room(choice, size)][:1]
    if size.has_prologue and config.benchmark_epilogue_fusion and config.prologue_fusion:
        # TMA copies tiles as stored: an operand that is computed is loaded by threads.
        inside = [replace(choice, prologue=True) for choice in ours if choice.form == "TILES"]
        ours = inside + [replace(choice, prologue=False) for choice in ours]
    return found + ours


def _short(
    size: GemmSize, ordered: list[GemmChoice], target: GpuTarget, machine: Machine
) -> list[GemmChoice]:
    """The most promising choices, with the two best forms of each tile."""
    if not ordered:
        return []
    best = estimate(size, ordered[0], target, machine)
    near = [c for c in ordered if estimate(size, c, target, machine) < NEAR * best]
    threads = [c for c in near if c.form == "TILES"][:BY_THREADS]
    copied = [c for c in near if c.form != "TILES"][: SHORT_LIST - len(threads)]
    return [c for c in near if c in threads or c in copied]


def tiles(size: GemmSize, target: GpuTarget) -> list[GemmChoice]:
    """All tiles that fit, in all forms, with split-K if there are few tiles."""
    found = []
    for height, width, step, warps in TILES:
        step = step * 2 // size.bytes
        if _is_wasteful(size.rows, height) or _is_wasteful(size.columns, width):
            continue
        if step > max(size.depth, 32):
            continue
        base = GemmChoice(form="TILES", height=height, width=width, step=step, warps=warps)
        found += [replace(base, split_k=n) for n in (None, *_split_k(size, base, target))]
    copies = target.has_tma and size.bytes < 4
    forms = ["TILES"] + (["DESCRIPTORS", "PERSISTENT"] if copies else [])
    made = [replace(choice, form=form) for choice in found for form in forms]
    made = [c for c in made if c.form != "PERSISTENT" or _needs_several_waves(size, c, target)]
    fits = ((choice, occupancy_of(choice, size.bytes, size.accumulator_copies)) for choice in made)
    return [replace(choice, stages=fit.stages) for choice, fit in fits if fit is not None]


def gemm_neighbours(size: GemmSize, choice: GemmChoice, target: GpuTarget) -> list[GemmChoice]:
    """One field twice or half as large, or one stage more or fewer."""
    if choice.form is None:
        return []
    found = []
    for name, low, high in (("height", 16, 256), ("width", 16, 256), ("step", 16, 256),
                            ("warps", 2, 8)):  # fmt: skip
        value = getattr(choice, name)
        found += [replace(choice, **{name: n}) for n in (2 * value, value // 2) if low <= n <= high]
    stages = choice.stages or 3
    found += [replace(choice, stages=n) for n in (stages + 1, stages - 1) if 2 <= n <= 6]
    return [c for c in found if _room(c, size)]


def _room(choice: GemmChoice, size: GemmSize) -> bool:
    assert choice.stages
    fits = occupancy_of(choice, size.bytes, size.accumulator_copies) is not None
    return fits and shared_bytes(choice, size.bytes, choice.stages) <= SHARED


def _is_wasteful(extent: int, block: int) -> bool:
    """Whether half of a tile would be outside."""
    return block > 16 and block >= 2 * extent


def shared_bytes(choice: GemmChoice, each: int, stages: int) -> int:
    """Shared memory of a tile: its pipeline stages, and the staging of its results. The latter
    reuses the memory of the stages, except in a persistent kernel, which is already loading its
    next tile. There it is extra, 16 rows for each warp; results of two bytes go in halves."""
    height, width, step, warps = _tile(choice)
    staged = stages * (height + width) * step * each
    if choice.form != "PERSISTENT":
        return max(staged, height * width * 2)
    sums = each != 2 or not choice.fused or choice.split_k is not None  # sums as they are
    return staged + 16 * warps * (4 * width if sums else 2 * min(width, 128)) + BARRIERS


def occupancy_of(choice: GemmChoice, each: int, accumulator_copies: int = 1) -> Occupancy | None:
    """The most stages that allow the most resident tiles; a persistent program is alone on its
    multiprocessor. None if not even two stages fit, or if registers cannot hold
    `accumulator_copies` copies of the sums."""
    height, width, _, warps = _tile(choice)
    threads = 32 * warps
    registers = accumulator_copies * height * width // threads + OTHER_REGISTERS
    if registers > MOST_REGISTERS:
        return None
    alone = choice.form == "PERSISTENT"
    most = 1 if alone else min(REGISTERS // (registers * threads), 2)
    tried = PERSISTENT_STAGES if alone else STAGES
    options = [(min(most, SHARED // shared_bytes(choice, each, n)), n) for n in tried]
    options = [(resident, n) for resident, n in options if resident]
    if not options:
        return None
    enough = [option for option in options if option[1] >= 3] or options
    resident, stages = max(enough)
    return Occupancy(stages, resident)


def _tile(choice: GemmChoice) -> tuple[int, int, int, int]:
    height, width, step, warps = choice.height, choice.width, choice.step, choice.warps
    assert height and width and step and warps
    return height, width, step, warps


def _count(size: GemmSize, choice: GemmChoice) -> int:
    assert choice.height is not None and choice.width is not None
    down, across = -(-size.rows // choice.height), -(-size.columns // choice.width)
    return size.batches * down * across


def _split_k(size: GemmSize, choice: GemmChoice, target: GpuTarget) -> list[int]:
    """The split-K factors that give idle multiprocessors a part of the sum."""
    if size.batches > 1 or _count(size, choice) * 2 > target.threads:
        return []
    return [n for n in SPLIT_K if size.depth % n == 0 and size.depth // n >= MIN_SPLIT_K_DEPTH]


def _needs_several_waves(size: GemmSize, choice: GemmChoice, target: GpuTarget) -> bool:
    return _count(size, choice) * (choice.split_k or 1) > target.threads


def estimate(size: GemmSize, choice: GemmChoice, target: GpuTarget, machine: Machine) -> float:
    """Seconds of one GEMM."""
    peak = machine.flops * 2 / size.bytes
    read = size.bytes * size.batches * (size.rows + size.columns) * size.depth
    written = size.bytes * size.batches * size.rows * size.columns
    memory = (read + written) / machine.bandwidth
    if choice.form is None:
        return LAUNCH + max(size.flops / (LIBRARY * peak), memory)
    height, width, step, warps = _tile(choice)
    fit = occupancy_of(choice, size.bytes, size.accumulator_copies)
    assert fit is not None
    split_k = choice.split_k or 1
    depth = -(-size.depth // split_k)
    count = _count(size, choice) * split_k
    waves = -(-count // (target.threads * fit.resident)) * fit.resident
    computing = 2 * height * width * depth / (OURS * peak / target.threads)
    moving = (height + width) * depth * size.bytes / (CACHE_BYTES * _generation(target)[1])
    one = max(computing, moving) * (LOADING if choice.form == "TILES" else 1.0)
    if fit.resident == 1 and height * width < MANY_SUMS:
        deep = (choice.stages or fit.stages) * step * size.bytes >= ENOUGH_POINTS * 2
        one *= ALONE_DEEP if deep else ALONE
    # The prologue and epilogue of a tile are partly hidden if another tile is in flight.
    hidden = 0.5 if fit.resident > 1 or choice.form == "PERSISTENT" else 1.0
    ends = waves * hidden * TILE_OVERHEAD * height * width / (2048 * warps)
    if choice.form == "DESCRIPTORS":
        ends += DESCRIPTOR_SECONDS * waves / fit.resident
    extra = 0.0 if split_k == 1 else LAUNCH + 8 * split_k * written / size.bytes / machine.bandwidth
    unfused = 0.0 if choice.fused else LAUNCH + 2 * written / machine.bandwidth
    return LAUNCH + max(waves * one, memory) + ends + extra + unfused


def _generation(target: GpuTarget) -> tuple[int, float, float]:
    number = int(target.name.removeprefix("sm_")) // 10
    return GENERATIONS[max((g for g in GENERATIONS if g <= number), default=8)]
