"""Timing on a GPU: two calls captured as CUDA graphs, replayed alternately, timed by events.

In: two calls whose tensors stay in place. Out: the time of each, replay by replay. A CUDA graph
leaves out the host's time, as a model's own CUDA graph does. Before each replay the caches are
flushed, as a model's other layers would do. Example: `InterleavedReplays(rule, other).samples(9)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], list[Any]]
# The size of the buffer that flushes the GPU's cache, relative to the cache.
FLUSH = 2


class CapturedCall:
    """A captured call; it is run once before, so that libraries have chosen their kernels."""

    def __init__(self, call: Call) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # torch's context manager collects garbage each time, which takes longer than a trial.
        with torch.cuda.stream(stream):
            self.graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.kept = call()
            finally:
                self.graph.capture_end()

    def replay(self) -> None:
        self.graph.replay()


class InterleavedReplays:
    """Alternating replays, each between two events."""

    def __init__(self, rule: CapturedCall, other: CapturedCall) -> None:
        self.rule, self.other = rule, other
        size = FLUSH * torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self.flushed = torch.empty(size, dtype=torch.int8, device="cuda")

    def samples(self, pairs: int) -> list[tuple[float, float]]:
        """Seconds of the rule and of the other; the host runs ahead, and waits once at the end."""
        found: list[dict[bool, tuple[torch.cuda.Event, torch.cuda.Event]]] = []
        for number in range(pairs):
            found.append({})
            for is_rule in (True, False) if number % 2 else (False, True):
                self.flushed.zero_()
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                (self.rule if is_rule else self.other).replay()
                end.record()
                found[-1][is_rule] = (begin, end)
        torch.cuda.synchronize()
        times = [{k: 1e-3 * a.elapsed_time(b) for k, (a, b) in pair.items()} for pair in found]
        return [(pair[True], pair[False]) for pair in times]
