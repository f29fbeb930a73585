"""The search space of a CPU GEMM: all choices that are worth considering, and their short list.

In: a GEMM's size, the target and the flags. Out: `GemmChoice`s, the most promising first, without
the rule's own. Register tiles are all those whose sums, panel vectors and broadcast number fit the
registers. Example: with 32 registers and 16 rows, 8 x 3 and 4 x 6 are among them, 8 x 4 is not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from litz.autotune.cost import Machine, estimate
from litz.autotune.gemm_regions import GemmSize
from litz.config import Config
from litz.ir.choices import GemmChoice
from litz.target import CpuTarget

# How many of our choices are timed, unless all are.
SHORT_LIST = 6
# GEMMs with fewer multiply-adds may be plain loops: an ATen call takes longer than the work.
TINY = 1 << 15
MOST_ROWS, MOST_VECTORS = 16, 8
SPLIT_K = (2, 4, 8)
MIN_SPLIT_K_DEPTH = 128
K_BLOCKS = (0, 256, 1024)


def backends(config: Config) -> frozenset[str]:
    """The allowed backends of a GEMM; TorchInductor's names for generated code mean LITZ."""
    named = {"CPP": "LITZ", "TRITON": "LITZ"}
    return frozenset(named.get(b, b) for b in config.max_autotune_gemm_backends.split(","))


def candidates(
    size: GemmSize, target: CpuTarget, config: Config, machine: Machine
) -> list[GemmChoice]:
    """The choices to time, besides the rule's own."""
    allowed = backends(config)
    ours = register_tiles(size, target) if "LITZ" in allowed else []
    ours.sort(key=lambda choice: estimate(size, choice, target, machine))
    if config.max_autotune_gemm_search_space == "DEFAULT":
        best = estimate(size, ours[0], target, machine) if ours else 0.0
        near = [c for c in ours if estimate(size, c, target, machine) < 1.5 * best]
        ours = _of_each_kind(near)[:SHORT_LIST]
    found = [GemmChoice("ATEN")] if len(allowed) == 2 else []
    if "LITZ" in allowed and size.flops // 2 < TINY:
        found.append(GemmChoice("LOOP"))
    return found + fusion_candidates(size, config) + ours


def fusion_candidates(size: GemmSize, config: Config) -> list[GemmChoice]:
    """The GEMM with and without each neighbour in its kernel. One of each two is the rule's own
    choice, which is not timed again."""
    if not config.benchmark_epilogue_fusion:
        return []
    found = [GemmChoice(fused=False)] if size.has_epilogue and config.epilogue_fusion else []
    if size.has_row_epilogue:
        found += [GemmChoice(rows=on) for on in (True, False)]
    if size.has_prologue:
        found += [GemmChoice(prologue=on) for on in (True, False)]
    if size.has_row_epilogue and size.has_prologue:
        found.append(GemmChoice(rows=True, prologue=True))
    return found


def _of_each_kind(ordered: list[GemmChoice]) -> list[GemmChoice]:
    """The best two of each width: choices next to each other in the estimate's order are alike."""
    taken: Counter[object] = Counter()
    found = []
    for choice in ordered:
        given = (choice.mc, choice.k_block, choice.split_k)
        kind = (choice.nr_vectors, *(one is None for one in given))
        taken[kind] += 1
        if taken[kind] <= 2:
            found.append(choice)
    return found


def register_tiles(size: GemmSize, target: CpuTarget) -> list[GemmChoice]:
    """Our choices: rows and vectors of a register tile, rows of a task, split-K."""
    lanes = target.vector_bytes // max(size.bytes, 4)
    found = []
    for vectors in range(1, min(MOST_VECTORS, -(-size.columns // lanes)) + 1):
        most = min((target.registers - vectors - 1) // vectors, MOST_ROWS, size.rows)
        for block in range(max(min(most, 4), 1), most + 1):
            found.append(GemmChoice(mr=block, nr_vectors=vectors))
    chunks = dict.fromkeys(-(-size.rows // n) for n in (1, 2, 4) if size.rows >= 16 * n)
    found += [GemmChoice(mc=chunk) for chunk in chunks]
    if size.rows > target.mr:
        found += [GemmChoice(k_block=steps) for steps in K_BLOCKS if steps < size.depth]
    pieces = [n for n in SPLIT_K if size.depth % n == 0 and size.depth // n >= MIN_SPLIT_K_DEPTH]
    if size.batches == 1 and size.rows > 1:
        found += [GemmChoice(split_k=n) for n in (1, *pieces)]
    return found


def gemm_neighbours(size: GemmSize, choice: GemmChoice, target: CpuTarget) -> list[GemmChoice]:
    """One row or one vector more or fewer, a task twice or half as large."""
    if choice.backend != "LITZ":
        return []
    lanes = target.vector_bytes // max(size.bytes, 4)
    most = -(-size.columns // lanes)
    block = min(choice.mr or target.mr, size.rows)
    vectors = min(choice.nr_vectors or target.registers // 8, most)
    around = [
        (block + 1, vectors),
        (block - 1, vectors),
        (block, vectors + 1),
        (block, vectors - 1),
    ]
    found = [
        replace(choice, mr=b, nr_vectors=v)
        for b, v in around
        if 0 < b <= size.rows and 0 < v <= most and b * v + v + 1 <= target.registers
    ]
    chunk = choice.mc or size.rows
    sizes = [n for n in (2 * chunk, chunk // 2) if block <= n <= size.rows]
    return found + [replace(choice, mc=n) for n in sizes]
