"""Kernel times: what `LITZ_DEBUG=2` adds to a call.

In: the native segments of a graph. Out: segments that also print a line a kernel: microseconds,
GB/s. Kernels run one by one instead of in their segment, which is otherwise the same work.
"""

from __future__ import annotations

import time

from litz.ir.call_plan import CallPlan, Segment
from litz.ir.program import Buffer
from litz.ir.source import Binary
from litz.runtime.layouts import NATIVE, Native
from litz.trace import KERNELS, Trace

# The first call warms caches up; the second shows what a call costs.
TIMED_CALLS = 2


def timed_segments(plan: CallPlan, binary: Binary, debug: int) -> dict[str, Native]:
    """Stand-ins for the segments of a graph."""
    moved = [sum(_bytes(b) for b in (*k.reads, *k.writes)) for k in plan.kernels]
    names = [k.name for k in plan.kernels]
    trace = Trace(debug)
    return {s.name: TimedSegment(s, names, moved, binary, trace) for s in plan.segments}


def _bytes(buffer: Buffer) -> int:
    """Read or written at least once."""
    total = buffer.dtype.bytes
    for n in buffer.shape:
        total *= n.hint
    return total


class TimedSegment:
    """Runs the kernels of a segment and says, for the first calls, how long each took."""

    def __init__(
        self, segment: Segment, names: list[str], moved: list[int], binary: Binary, trace: Trace
    ) -> None:
        self.whole: Native = NATIVE(binary.address[segment.name])
        self.kernels = [
            (names[k], moved[k], NATIVE(binary.address[f"litz_step_{k}"])) for k in segment.kernels
        ]
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
