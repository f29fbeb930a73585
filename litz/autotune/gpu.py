"""The space on a GPU: tiles of a product worth a thought, and how long each should take.

In: a product's size, the target and the flags. Out: `ProductChoice`s, likely ones first; what does
not fit a multiprocessor's shared memory or registers is not among them. The library's product is
what the rules take, so it is timed against every one of them. Example: of 4096 x 768 x 3072 in
bfloat16, tiles of 128 x 256 lead the list, and 64 x 64 are not on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from litz.autotune.cost import Machine
from litz.autotune.regions import Size
from litz.config import Config
from litz.ir.choices import ProductChoice
from litz.target import GpuTarget

# Rows, columns, points of the sum a step (of two bytes each), warps. Sixteen rows are the fewest
# that tensor cores take.
TILES = (
    (128, 256, 64, 8), (256, 128, 64, 8), (128, 128, 64, 4), (128, 128, 64, 8), (128, 128, 128, 8),
    (64, 256, 64, 4), (256, 64, 64, 4), (64, 128, 64, 4), (128, 64, 64, 4), (64, 128, 128, 4),
    (64, 64, 64, 4), (64, 64, 128, 4), (64, 32, 128, 4), (32, 128, 128, 4), (32, 64, 128, 4),
    (32, 32, 128, 4), (16, 128, 128, 4), (16, 64, 128, 4), (16, 64, 256, 4), (16, 32, 256, 4),
)  # fmt: skip
SLICES = (2, 4, 8)
SHORTEST_SLICE = 256
# Choices that are timed unless all are asked for, and how many of them load by threads.
SHORT_LIST, BY_THREADS = 9, 3
# How much slower than the best estimate is still worth a trial.
NEAR = 1.6
# A multiprocessor: bytes of shared memory, registers of four bytes, and what one thread may have of
# them beside its sums.
SHARED, REGISTERS, OTHERS = 227 * 1024, 1 << 16, 56
MOST_REGISTERS = 255
# Bytes by which warps wait for each other.
BARRIERS = 64
# Steps under way: of tiles that share a multiprocessor, and of one that has it alone.
STAGES, ALONE_STAGES = (2, 3, 4, 5), (2, 3, 4, 5, 6)
# Bytes a clock that a multiprocessor gets from the cache that all share.
CACHE_BYTES = 50
# Seconds: of a launch; of a tile of 128 x 128 with eight warps before and behind its loop; and of
# what describes operands to the engine that copies them, which each program makes anew.
LAUNCH, ENDS, DESCRIBED = 2e-6, 1e-6, 1e-6
# How much slower sums are if a tile of fewer sums than fill the registers has a multiprocessor
# alone, with few or with enough points under way; and if threads load what they multiply. From an
# H200's times: 128 x 128 alone took 1.3 to 1.5 times as long as two of them, or as 128 x 256.
MANY_SUMS, ENOUGH_POINTS = 1 << 15, 384
ALONE, ALONE_DEEP, LOADING = 1.4, 1.12, 1.04
# What the library reaches of the peak, and we do beside the limits below.
LIBRARY, OURS = 0.8, 0.75
# A generation's multiply-adds (counted as two) a clock and multiprocessor, of two bytes; clocks a
# second; bytes of memory a second. Only ratios count, so one entry speaks for its relatives.
GENERATIONS = {8: (2048, 1.4e9, 1.6e12), 9: (4096, 1.7e9, 4.0e12), 10: (8192, 1.8e9, 7.0e12)}


@dataclass(frozen=True)
class Fit:
    """How a tile lies on a multiprocessor: steps that are under way, and tiles at a time."""

    stages: int
    resident: int


def machine_of(target: GpuTarget) -> Machine:
    """The peaks of a GPU, by its generation."""
    rate, clock, bandwidth = _generation(target)
    return Machine(rate * clock * target.threads, bandwidth)


def candidates(
    size: Size, target: GpuTarget, config: Config, machine: Machine
) -> list[ProductChoice]:
    """What to time, besides the rule's own choice."""
    named = {"CPP": "LITZ", "TRITON": "LITZ"}
    convolves, multiplies = config.max_autotune_conv_backends, config.max_autotune_gemm_backends
    listed = (convolves if size.convolved else multiplies).split(",")
    allowed = {named.get(b, b) for b in listed}
    found = [ProductChoice("ATEN")] if "ATEN" in allowed else []
    exact = size.dtype == "float32" and not torch.backends.cuda.matmul.allow_tf32
    if "LITZ" not in allowed or exact:  # tensor cores have nothing to offer for exact f32
        return found
    ours = tiles(size, target)
    ours.sort(key=lambda choice: estimate(size, choice, target, machine))
    if config.max_autotune_gemm_search_space == "DEFAULT":
        ours = _short(size, ours, target, machine)
    if size.follows and config.benchmark_epilogue_fusion and config.epilogue_fusion:
        apart = (replace(choice, fused=False) for choice in ours)
        found += [choice for choice in apart if _room(choice, size)][:1]
    if size.prepares and config.benchmark_epilogue_fusion and config.prologue_fusion:
        # The engine copies tiles as they lie: what is computed from them, threads load.
        inside = [replace(choice, prologue=True) for choice in ours if choice.form == "TILES"]
        ours = inside + [replace(choice, prologue=False) for choice in ours]
    return found + ours


def _short(
    size: Size, ordered: list[ProductChoice], target: GpuTarget, machine: Machine
) -> list[ProductChoice]:
    """The likeliest, of each tile its two best forms."""
    if not ordered:
        return []
    best = estimate(size, ordered[0], target, machine)
    near = [c for c in ordered if estimate(size, c, target, machine) < NEAR * best]
    threads = [c for c in near if c.form == "TILES"][:BY_THREADS]
    copied = [c for c in near if c.form != "TILES"][: SHORT_LIST - len(threads)]
    return [c for c in near if c in threads or c in copied]


def tiles(size: Size, target: GpuTarget) -> list[ProductChoice]:
    """All tiles that fit, in all forms, and with the sum in slices where tiles are few."""
    found = []
    for height, width, step, warps in TILES:
        step = step * 2 // size.bytes
        if _is_wasteful(size.rows, height) or _is_wasteful(size.columns, width):
            continue
        if step > max(size.depth, 32):
            continue
        base = ProductChoice(form="TILES", height=height, width=width, step=step, warps=warps)
        found += [replace(base, slices=n) for n in (None, *_slices(size, base, target))]
    copies = target.copies_tiles and size.bytes < 4
    forms = ["TILES"] + (["DESCRIPTORS", "PERSISTENT"] if copies else [])
    made = [replace(choice, form=form) for choice in found for form in forms]
    made = [c for c in made if c.form != "PERSISTENT" or _takes_turns(size, c, target)]
    fits = ((choice, fit_of(choice, size.bytes, size.held)) for choice in made)
    return [replace(choice, stages=fit.stages) for choice, fit in fits if fit is not None]


def beside(size: Size, choice: ProductChoice, target: GpuTarget) -> list[ProductChoice]:
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


def _room(choice: ProductChoice, size: Size) -> bool:
    assert choice.stages
    fits = fit_of(choice, size.bytes, size.held) is not None
    return fits and shared_bytes(choice, size.bytes, choice.stages) <= SHARED


def _is_wasteful(extent: int, block: int) -> bool:
    """Whether half of a tile would lie outside."""
    return block > 16 and block >= 2 * extent


def shared_bytes(choice: ProductChoice, each: int, stages: int) -> int:
    """Shared memory of a tile: the steps under way, and what its results pass through. That takes
    their place, unless a program already loads for its next tile meanwhile: then it is another part
    of it, a piece for each warp of 16 rows, of which those of two bytes go in halves."""
    height, width, step, warps = _tile(choice)
    staged = stages * (height + width) * step * each
    if choice.form != "PERSISTENT":
        return max(staged, height * width * 2)
    sums = each != 2 or not choice.fused or choice.slices is not None  # sums as they are
    return staged + 16 * warps * (4 * width if sums else 2 * min(width, 128)) + BARRIERS


def fit_of(choice: ProductChoice, each: int, held: int = 1) -> Fit | None:
    """The most steps under way that leave the most tiles on a multiprocessor, which a program that
    takes tile after tile has alone; None if not even two fit, or if registers do not hold the sums,
    which are there `held` times."""
    height, width, _, warps = _tile(choice)
    threads = 32 * warps
    registers = held * height * width // threads + OTHERS
    if registers > MOST_REGISTERS:
        return None
    alone = choice.form == "PERSISTENT"
    most = 1 if alone else min(REGISTERS // (registers * threads), 2)
    tried = ALONE_STAGES if alone else STAGES
    options = [(min(most, SHARED // shared_bytes(choice, each, n)), n) for n in tried]
    options = [(resident, n) for resident, n in options if resident]
    if not options:
        return None
    enough = [option for option in options if option[1] >= 3] or options
    resident, stages = max(enough)
    return Fit(stages, resident)


def _tile(choice: ProductChoice) -> tuple[int, int, int, int]:
    height, width, step, warps = choice.height, choice.width, choice.step, choice.warps
    assert height and width and step and warps
    return height, width, step, warps


def _count(size: Size, choice: ProductChoice) -> int:
    assert choice.height is not None and choice.width is not None
    down, across = -(-size.rows // choice.height), -(-size.columns // choice.width)
    return size.batches * down * across


def _slices(size: Size, choice: ProductChoice, target: GpuTarget) -> list[int]:
    """Slices that give multiprocessors which would have nothing to do a part of the sum."""
    if size.batches > 1 or _count(size, choice) * 2 > target.threads:
        return []
    return [n for n in SLICES if size.depth % n == 0 and size.depth // n >= SHORTEST_SLICE]


def _takes_turns(size: Size, choice: ProductChoice, target: GpuTarget) -> bool:
    return _count(size, choice) * (choice.slices or 1) > target.threads


def estimate(size: Size, choice: ProductChoice, target: GpuTarget, machine: Machine) -> float:
    """Seconds of one product."""
    peak = machine.flops * 2 / size.bytes
    read = size.bytes * size.batches * (size.rows + size.columns) * size.depth
    written = size.bytes * size.batches * size.rows * size.columns
    memory = (read + written) / machine.bandwidth
    if choice.form is None:
        return LAUNCH + max(size.flops / (LIBRARY * peak), memory)
    height, width, step, warps = _tile(choice)
    fit = fit_of(choice, size.bytes, size.held)
    assert fit is not None
    slices = choice.slices or 1
    depth = -(-size.depth // slices)
    count = _count(size, choice) * slices
    rounds = -(-count // (target.threads * fit.resident)) * fit.resident
    computing = 2 * height * width * depth / (OURS * peak / target.threads)
    moving = (height + width) * depth * size.bytes / (CACHE_BYTES * _generation(target)[1])
    one = max(computing, moving) * (LOADING if choice.form == "TILES" else 1.0)
    if fit.resident == 1 and height * width < MANY_SUMS:
        deep = (choice.stages or fit.stages) * step * size.bytes >= ENOUGH_POINTS * 2
        one *= ALONE_DEEP if deep else ALONE
    # The ends of a tile are hidden in part if another one is under way.
    hidden = 0.5 if fit.resident > 1 or choice.form == "PERSISTENT" else 1.0
    ends = rounds * hidden * ENDS * height * width / (2048 * warps)
    if choice.form == "DESCRIPTORS":
        ends += DESCRIBED * rounds / fit.resident
    extra = 0.0 if slices == 1 else LAUNCH + 8 * slices * written / size.bytes / machine.bandwidth
    apart = 0.0 if choice.fused else LAUNCH + 2 * written / machine.bandwidth
    return LAUNCH + max(rounds * one, memory) + ends + extra + apart


def _generation(target: GpuTarget) -> tuple[int, float, float]:
    number = int(target.name.removeprefix("sm_")) // 10
    return GENERATIONS[max((g for g in GENERATIONS if g <= number), default=8)]
