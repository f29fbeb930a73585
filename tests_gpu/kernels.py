"""Where the GPU's time goes: a call's kernels by kind, from torch's profiler.

In: a function to call. Out: `Split`: microseconds and kernels a call by kind (GEMM, attention,
convolution, generated, other), and the kernels that take longest. Example:
`print(split_of(lambda: model(x)))`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

# The first kind whose words are part of a kernel's name.
KINDS = {
    "generated": ("litz_", "triton_"),
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "conv": ("conv", "fprop", "dgrad", "wgrad", "nchw", "nhwc", "cudnn"),
    "gemm": ("gemm", "nvjet", "cutlass", "cublas", "splitk", "gemv"),
}
CALLS = 5


@dataclass(frozen=True)
class Split:
    """Per call: microseconds and kernels of each kind; the kernels by time."""

    time: dict[str, float]
    count: dict[str, float]
    kernels: list[tuple[str, float, float]]

    def __str__(self) -> str:
        parts = [f"{k} {self.time[k]:.0f} us in {self.count[k]:.0f}" for k in self.time]
        return f"{sum(self.time.values()):.0f} us: {', '.join(parts)}"

    def longest(self, most: int) -> str:
        """A line a kernel."""
        rows = sorted(self.kernels, key=lambda row: -row[1])[:most]
        return "\n".join(f"      {t:8.1f} us {n:5.0f} x {name[:90]}" for name, t, n in rows)


def kind_of(name: str) -> str:
    lower = name.lower()
    found = (k for k, words in KINDS.items() if any(w in lower for w in words))
    return next(found, "other")


def split_of(run: Callable[[], Any]) -> Split:
    """Run a few calls under the profiler."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(CALLS):
            run()
        torch.cuda.synchronize()
    time: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in seen.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        took = event.time_range.elapsed_us() / CALLS
        kind = kind_of(event.name)
        time[kind] += took
        count[kind] += 1 / CALLS
        rows[event.name][0] += took
        rows[event.name][1] += 1 / CALLS
    return Split(dict(time), dict(count), [(name, *row) for name, row in rows.items()])
