"""The cost model: how long a product should take, from bytes, flops and the machine's peaks.

In: a product's size, a choice, and `Machine`, whose peaks are measured once. Out: seconds. It puts
choices in order and leaves the hopeless out; it decides about nothing that is timed. Example: of
1 x 768 x 3072, a product bound by memory, all blocks that fill the pipes cost about the same.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.fx
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from litz.autotune.peak import Peak
from litz.autotune.regions import Size
from litz.ir.choices import ProductChoice
from litz.ir.graph import Graph
from litz.target import CpuTarget

# Sums that must be under way for the pipes to be full: latency times pipes.
SUMS_UNDER_WAY = 8
# Seconds of a call of ATen's, and of waking threads for a kernel.
CALL, LAUNCH = 4e-6, 2e-6
# What a library reaches of the peak, packing aside.
LIBRARY = 0.85
STREAMED = 1 << 26  # bytes read to see how fast memory is


@dataclass(frozen=True)
class Machine:
    """Multiply-adds count as two. Both are of all threads together."""

    flops: float  # a second, in float32
    bandwidth: float  # bytes a second, read in a row


def measured(threads: int) -> Machine:
    """The peaks of this machine: the best of a few runs of some milliseconds."""
    peak = Peak(threads)
    numbers = torch.ones(STREAMED // 4, dtype=torch.float32, device="cpu")
    flops = max(peak.flops / _seconds(peak) for _ in range(5))
    return Machine(flops, max(STREAMED / _seconds(numbers.sum) for _ in range(3)))


def _seconds(call: object) -> float:
    start = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - start


def estimate(size: Size, choice: ProductChoice, target: CpuTarget, machine: Machine) -> float:
    """Seconds of one product."""
    peak = machine.flops * 4 / max(size.bytes, 4)  # half types are widened to float32
    memory = _bytes(size) / machine.bandwidth
    if choice.backend == "ATEN":
        packing = 0 if size.rows == 1 else 2 * size.depth * size.columns * size.bytes
        work = _together(size.flops / (LIBRARY * peak), memory)
        return CALL + work + packing / machine.bandwidth
    if choice.backend == "LOOP":
        return LAUNCH + size.flops / peak * 16 + memory
    extra = 0.0 if choice.fused else 2 * size.rows * size.columns * size.bytes / machine.bandwidth
    return LAUNCH + _together(_in_blocks(size, choice, target) / peak, memory) + extra


def multiplying(graph: Graph, machine: Machine) -> float:
    """Seconds that a graph's products, convolutions and attention take at the peak."""
    return sum(map(_flops, graph.nodes)) / machine.flops


def _flops(node: Node) -> float:
    """As torch counts them; none if its formula does not know what to do with the sizes."""
    packet = getattr(node.target, "overloadpacket", None)
    formula = flop_registry.get(packet)
    if formula is None:
        return 0.0
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with suppress(Exception):
        return float(formula(*args, **kwargs, out_val=node.meta["val"]))
    return 0.0


def roofline(size: Size, target: CpuTarget, machine: Machine) -> float:
    """Seconds that no choice is below, as far as the peaks tell: all its multiply-adds, or all its
    bytes if no cache holds them. For narrow types there may be instructions that do more."""
    if size.bytes < 4:
        return 0.0
    moved = _bytes(size) if _bytes(size) > target.l3_bytes else 0
    return max(size.flops * size.bytes / (4 * machine.flops), moved / machine.bandwidth)


def _bytes(size: Size) -> int:
    """Both operands and the result, each once."""
    left, right = size.rows * size.depth, size.depth * size.columns
    return size.bytes * size.batches * (left + right + size.rows * size.columns)


def _together(computing: float, moving: float) -> float:
    """Both at a time: the longer one hides most of the other."""
    return max(computing, moving) + 0.2 * min(computing, moving)


def _in_blocks(size: Size, choice: ProductChoice, target: CpuTarget) -> float:
    """Flops as blocks of registers do them: with columns that no one needs, steps that wait for
    loads or for the sums before, and threads that wait for others."""
    lanes = target.vector_bytes // max(size.bytes, 4)
    vectors = min(choice.vectors or target.registers // 8, -(-size.columns // lanes))
    block = min(choice.block or target.block_rows, size.rows)
    panels = -(-size.columns // (vectors * lanes))
    filled = panels * vectors * lanes / size.columns
    whole, rest = divmod(size.rows, block)
    rows = whole * block * _step(block, vectors) + (rest * _step(rest, vectors) if rest else 0)
    chunk = choice.chunk or size.rows
    tasks = size.batches * panels * -(-size.rows // chunk) * (choice.slices or 1)
    waiting = -(-tasks // target.threads) * target.threads / tasks
    return size.flops * filled * rows / size.rows * waiting


def _step(rows: int, vectors: int) -> float:
    """How much longer a step takes than its multiply-adds alone: two loads go with two of them, and
    each waits for the one before into the same sum."""
    sums = rows * vectors
    return max(1.0, (rows + vectors) / sums, SUMS_UNDER_WAY / sums)
