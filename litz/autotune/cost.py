"""The cost model: how long a GEMM should take, from bytes, flops and the machine's peaks.

In: a GEMM's size, a choice, and `Machine`, whose peaks are measured once. Out: seconds. It orders
the choices and drops the hopeless ones; it never decides between two that are timed. Example: for
1 x 768 x 3072, a GEMM bound by memory, all tiles that fill the FMA units cost about the same.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.fx
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from litz.autotune.gemm_regions import GemmSize
from litz.autotune.peak import Peak
from litz.ir.choices import GemmChoice
from litz.ir.graph import Graph
from litz.target import CpuTarget

# Independent sums that keep the FMA units full: latency times units.
FMAS_IN_FLIGHT = 8
# Seconds of an ATen call, and of waking threads for a kernel.
CALL, LAUNCH = 4e-6, 2e-6
# The fraction of the peak that a library reaches, packing not included.
LIBRARY = 0.85
STREAMED = 1 << 26  # bytes read to measure the memory bandwidth


@dataclass(frozen=True)
class Machine:
    """Peaks of all threads together. A multiply-add counts as two flops."""

    flops: float  # a second, in float32
    bandwidth: float  # bytes a second, read sequentially


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


def estimate(size: GemmSize, choice: GemmChoice, target: CpuTarget, machine: Machine) -> float:
    """Seconds of one GEMM."""
    peak = machine.flops * 4 / max(size.bytes, 4)  # half types are widened to float32
    memory = _bytes(size) / machine.bandwidth
    if choice.backend == "ATEN":
        packing = 0 if size.rows == 1 else 2 * size.depth * size.columns * size.bytes
        work = _overlapped(size.flops / (LIBRARY * peak), memory)
        return CALL + work + packing / machine.bandwidth
    if choice.backend == "LOOP":
        return LAUNCH + size.flops / peak * 16 + memory
    extra = 0.0 if choice.fused else 2 * size.rows * size.columns * size.bytes / machine.bandwidth
    return LAUNCH + _overlapped(_tiled_flops(size, choice, target) / peak, memory) + extra


def matmul_seconds(graph: Graph, machine: Machine) -> float:
    """Seconds that a graph's GEMMs, convolutions and attention take at the peak."""
    return sum(map(_flops, graph.nodes)) / machine.flops


def _flops(node: Node) -> float:
    """As torch counts them; zero if its formula cannot handle the sizes."""
    packet = getattr(node.target, "overloadpacket", None)
    formula = flop_registry.get(packet)
    if formula is None:
        return 0.0
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with suppress(Exception):
        return float(formula(*args, **kwargs, out_val=node.meta["val"]))
    return 0.0


def roofline(size: GemmSize, target: CpuTarget, machine: Machine) -> float:
    """A lower bound of the seconds of any choice: all its multiply-adds at the peak, or all its
    bytes if no cache holds them. Zero for narrow types, which may have faster instructions."""
    if size.bytes < 4:
        return 0.0
    moved = _bytes(size) if _bytes(size) > target.l3_bytes else 0
    return max(size.flops * size.bytes / (4 * machine.flops), moved / machine.bandwidth)


def _bytes(size: GemmSize) -> int:
    """Both operands and the result, each once."""
    left, right = size.rows * size.depth, size.depth * size.columns
    return size.bytes * size.batches * (left + right + size.rows * size.columns)


def _overlapped(computing: float, moving: float) -> float:
    """The time of both together: the longer one hides most of the other."""
    return max(computing, moving) + 0.2 * min(computing, moving)


def _tiled_flops(size: GemmSize, choice: GemmChoice, target: CpuTarget) -> float:
    """The equivalent flops of a register-tiled GEMM. Added to the useful ones: unused columns,
    steps that wait for loads or for earlier sums, and threads that wait for others."""
    lanes = target.vector_bytes // max(size.bytes, 4)
    vectors = min(choice.nr_vectors or target.registers // 8, -(-size.columns // lanes))
    block = min(choice.mr or target.mr, size.rows)
    panels = -(-size.columns // (vectors * lanes))
    filled = panels * vectors * lanes / size.columns
    whole, rest = divmod(size.rows, block)
    rows = whole * block * _step(block, vectors) + (rest * _step(rest, vectors) if rest else 0)
    chunk = choice.mc or size.rows
    tasks = size.batches * panels * -(-size.rows // chunk) * (choice.split_k or 1)
    waiting = -(-tasks // target.threads) * target.threads / tasks
    return size.flops * filled * rows / size.rows * waiting


def _step(rows: int, vectors: int) -> float:
    """A step's time relative to its multiply-adds: two loads go with two of them, and each
    waits for the previous one into the same sum."""
    sums = rows * vectors
    return max(1.0, (rows + vectors) / sums, FMAS_IN_FLIGHT / sums)
