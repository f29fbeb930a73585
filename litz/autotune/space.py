"""The space: every way to compute a product that is worth a thought, and the short list of them.

In: a product's size, the target and the flags. Out: `ProductChoice`s, likely ones first, without
the rule's own. Blocks are all whose sums, columns and spread number fit the registers. Example: on
32 registers, for 16 rows, 8 x 3 and 4 x 6 are among them, 8 x 4 is not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from litz.autotune.cost import Machine, estimate
from litz.autotune.regions import Size
from litz.config import Config
from litz.ir.choices import ProductChoice
from litz.target import CpuTarget

# Choices of ours that are timed, if not all are.
SHORT_LIST = 6
# Products of fewer points may be plain loops: a call of ATen's takes longer than the work.
TINY = 1 << 15
MOST_ROWS, MOST_VECTORS = 16, 8
SLICES = (2, 4, 8)
SHORTEST_SLICE = 128
STRETCHES = (0, 256, 1024)


def backends(config: Config) -> frozenset[str]:
    """Who may compute a product; TorchInductor's names for generated code mean LITZ."""
    named = {"CPP": "LITZ", "TRITON": "LITZ"}
    return frozenset(named.get(b, b) for b in config.max_autotune_gemm_backends.split(","))


def candidates(
    size: Size, target: CpuTarget, config: Config, machine: Machine
) -> list[ProductChoice]:
    """What to time, besides the rule's own choice."""
    allowed = backends(config)
    ours = blocks(size, target) if "LITZ" in allowed else []
    ours.sort(key=lambda choice: estimate(size, choice, target, machine))
    if config.max_autotune_gemm_search_space == "DEFAULT":
        best = estimate(size, ours[0], target, machine) if ours else 0.0
        near = [c for c in ours if estimate(size, c, target, machine) < 1.5 * best]
        ours = _of_each_kind(near)[:SHORT_LIST]
    found = [ProductChoice("ATEN")] if len(allowed) == 2 else []
    if "LITZ" in allowed and size.flops // 2 < TINY:
        found.append(ProductChoice("LOOP"))
    return found + surroundings(size, config) + ours


def surroundings(size: Size, config: Config) -> list[ProductChoice]:
    """What surrounds the product as part of its kernel, and not. One of each two is the rule's own
    choice, which is not timed again."""
    if not config.benchmark_epilogue_fusion:
        return []
    found = [ProductChoice(fused=False)] if size.follows and config.epilogue_fusion else []
    if size.finishes:
        found += [ProductChoice(rows=on) for on in (True, False)]
    if size.prepares:
        found += [ProductChoice(prologue=on) for on in (True, False)]
    if size.finishes and size.prepares:
        found.append(ProductChoice(rows=True, prologue=True))
    return found


def _of_each_kind(ordered: list[ProductChoice]) -> list[ProductChoice]:
    """The best two of each width: neighbours in the model's order tell little more than one."""
    taken: Counter[object] = Counter()
    found = []
    for choice in ordered:
        given = (choice.chunk, choice.stretch, choice.slices)
        kind = (choice.vectors, *(one is None for one in given))
        taken[kind] += 1
        if taken[kind] <= 2:
            found.append(choice)
    return found


def blocks(size: Size, target: CpuTarget) -> list[ProductChoice]:
    """Ours: rows and vectors of a block, rows of a task, slices of the sum."""
    lanes = target.vector_bytes // max(size.bytes, 4)
    found = []
    for vectors in range(1, min(MOST_VECTORS, -(-size.columns // lanes)) + 1):
        most = min((target.registers - vectors - 1) // vectors, MOST_ROWS, size.rows)
        for block in range(max(min(most, 4), 1), most + 1):
            found.append(ProductChoice(block=block, vectors=vectors))
    chunks = dict.fromkeys(-(-size.rows // n) for n in (1, 2, 4) if size.rows >= 16 * n)
    found += [ProductChoice(chunk=chunk) for chunk in chunks]
    if size.rows > target.block_rows:
        found += [ProductChoice(stretch=steps) for steps in STRETCHES if steps < size.depth]
    pieces = [n for n in SLICES if size.depth % n == 0 and size.depth // n >= SHORTEST_SLICE]
    if size.batches == 1 and size.rows > 1:
        found += [ProductChoice(slices=n) for n in (1, *pieces)]
    return found


def beside(size: Size, choice: ProductChoice, target: CpuTarget) -> list[ProductChoice]:
    """One row or one vector more or fewer, a task twice or half as large."""
    if choice.backend != "LITZ":
        return []
    lanes = target.vector_bytes // max(size.bytes, 4)
    most = -(-size.columns // lanes)
    block = min(choice.block or target.block_rows, size.rows)
    vectors = min(choice.vectors or target.registers // 8, most)
    around = [
        (block + 1, vectors),
        (block - 1, vectors),
        (block, vectors + 1),
        (block, vectors - 1),
    ]
    found = [
        replace(choice, block=b, vectors=v)
        for b, v in around
        if 0 < b <= size.rows and 0 < v <= most and b * v + v + 1 <= target.registers
    ]
    chunk = choice.chunk or size.rows
    sizes = [n for n in (2 * chunk, chunk // 2) if block <= n <= size.rows]
    return found + [replace(choice, chunk=n) for n in sizes]
