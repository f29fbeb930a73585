"""Kernel times: what `LITZ_DEBUG=2` adds to a call.

In: the native steps of a graph and the table of one call. Out: a line a kernel: microseconds, GB/s.
Kernels run one by one instead of in their segment, which is otherwise the same work.
"""

from __future__ import annotations

import time

from litz.ir.program import Buffer, Plan, read, written
from litz.runtime.steps import NativeStep


def moved_bytes(plan: Plan) -> dict[str, int]:
    """Bytes each kernel reads and writes at least once."""
    return {k.name: sum(_bytes(b) for b in (*read(k), *written(k))) for k in plan.graph.kernels}


def _bytes(buffer: Buffer) -> int:
    total = buffer.dtype.bytes
    for n in buffer.shape:
        total *= n.number
    return total


def run_timed(step: NativeStep, address: int, moved: dict[str, int]) -> list[str]:
    """Run the kernels of a step and say how long each took."""
    lines = []
    for name, function in step.kernels:
        start = time.perf_counter()
        function(address)
        seconds = time.perf_counter() - start
        rate = moved[name] / seconds / 1e9
        lines.append(f"{1e6 * seconds:10.1f} us {rate:8.2f} GB/s  {name}")
    return lines
