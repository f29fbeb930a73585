"""Kernel times: the lines that `LITZ_DEBUG=2` prints during a call.

In: the native segments of a graph. Out: segments that also print a line for each kernel:
microseconds, GB/s. Kernels run one by one instead of as a segment, which is otherwise the same
work.
"""

from __future__ import annotations

import time

from litz.ir.call_plan import CallPlan, Segment
from litz.ir.program import Buffer
from litz.ir.source import Binary
from litz.runtime.layouts import Native, native_segments, native_step
from litz.trace import KERNELS, Trace

# The first call warms caches up; the second shows the real cost of a call.
TIMED_CALLS = 2


def timed_segments(plan: CallPlan, binary: Binary, debug: int) -> dict[str, Native]:
    """The segments of a graph, timed."""
    moved = [sum(_bytes(b) for b in (*k.reads, *k.writes)) for k in plan.kernels]
    names = [k.name for k in plan.kernels]
    trace, whole = Trace(debug), native_segments(plan, binary)
    timed = [(s, whole[s.name]) for s in plan.segments]
    return {s.name: TimedSegment(s, run, names, moved, binary, trace) for s, run in timed}


def _bytes(buffer: Buffer) -> int:
    """The bytes of a buffer, each of which is read or written at least once."""
    total = buffer.dtype.bytes
    for n in buffer.shape:
        total *= n.hint
    return total


class TimedSegment:
    """Runs the kernels of a segment and prints, for the first calls, how long each took."""

    def __init__(
        self, segment: Segment, whole: Native, names: list[str], moved: list[int],
        binary: Binary, trace: Trace,
    ) -> None:  # fmt: skip
        self.whole = whole
        self.kernels = [(names[k], moved[k], native_step(binary, k)) for k in segment.kernels]
        self.name, self.trace, self.left = segment.name, trace, TIMED_CALLS

    def __call__(self, address: int) -> None:
        if not self.left:
            self.whole(address)
            return
        self.left -= 1
        lines = [_timed(name, moved, run, address) for name, moved, run in self.kernels]
        self.trace.note(KERNELS, f"kernels of {self.name}", "\n".join(lines))


def _timed(name: str, moved: int, run: Native, address: int) -> str:
    start = time.perf_counter()
    run(address)
    seconds = time.perf_counter() - start
    return f"{1e6 * seconds:10.1f} us {moved / seconds / 1e9:8.2f} GB/s  {name}"
