"""Where a GPU's time goes, and its lower bound: kernels by kind, and the floor of a program.

In: a function to call. Out: `Split`: microseconds and kernels a call by kind, from torch's
profiler; `Peaks`: this GPU's measured bandwidth and flops; and the floor of a program, which is the
longer of its bytes and its multiplications at those peaks. Example:
`print(split_of(lambda: model(x)))`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from litz.bench.case import Program, tensors_in

# A kernel's kind is the first one with a word in the kernel's name.
KINDS = {
    "generated": ("litz_", "triton_"),
    "attention": ("flash", "fmha", "attention", "sdpa", "dot_do_o", "convert_dq"),
    "convolution": ("conv", "fprop", "dgrad", "wgrad", "nchw", "nhwc", "cudnn"),
    "gemm": ("gemm", "nvjet", "cutlass", "cublas", "splitk", "gemv"),
}
OTHER = "other"
CALLS = 5
# Peaks are measured with a square GEMM of bfloat16, and a copy larger than any cache.
SIDE, COPIED = 8192, 1 << 30
# How often a training step touches the bytes of each parameter: it reads and writes the parameter,
# its gradient and the two moments of AdamW.
STEP_TOUCHES = 8


@dataclass(frozen=True)
class Split:
    """Per call: microseconds and kernels of each kind; the kernels by time."""

    time: dict[str, float]
    count: dict[str, float]
    kernels: list[tuple[str, float, float]]

    @property
    def total(self) -> float:
        return sum(self.time.values())

    def __str__(self) -> str:
        parts = [f"{k} {self.time[k]:.0f} us in {self.count[k]:.0f}" for k in self.time]
        return f"{self.total:.0f} us: {', '.join(parts)}"

    def longest(self, most: int) -> str:
        """A line a kernel."""
        rows = sorted(self.kernels, key=lambda row: -row[1])[:most]
        return "\n".join(f"      {t:8.1f} us {n:5.0f} x {name[:90]}" for name, t, n in rows)


def kind_of(name: str) -> str:
    """The kind of a kernel with that name."""
    lower = name.lower()
    found = (k for k, words in KINDS.items() if any(w in lower for w in words))
    return next(found, OTHER)


def split_of(run: Callable[[], Any]) -> Split:
    """Profile a few calls."""
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(CALLS):
            run()
        torch.cuda.synchronize()
    spent: dict[str, float] = defaultdict(float)
    count: dict[str, float] = defaultdict(float)
    rows: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in seen.events() or ():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        took, kind = event.time_range.elapsed_us() / CALLS, kind_of(event.name)
        spent[kind] += took
        count[kind] += 1 / CALLS
        rows[event.name][0] += took
        rows[event.name][1] += 1 / CALLS
    kernels = [(name, took, many) for name, (took, many) in rows.items()]
    return Split(dict(spent), dict(count), kernels)


@dataclass(frozen=True)
class Peaks:
    """Bytes a second that are read or written, and multiplications and additions a second."""

    bytes: float
    flops: float


@cache
def peaks(device: str, side: int = SIDE, copied: int = COPIED) -> Peaks:
    """The best that a device does, by measurement: a copy, and a GEMM of bfloat16."""
    source = torch.empty(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in "ab")
    moving = _seconds(lambda: target.copy_(source), device)
    multiplying = _seconds(lambda: torch.mm(a, b), device)
    return Peaks(2 * copied / moving, 2 * side**3 / multiplying)


def _seconds(run: Callable[[], Any], device: str) -> float:
    times = []
    for _ in range(12):
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def synchronize(device: str) -> None:
    """Wait for a device; a CPU never has work in flight."""
    if device != "cpu":
        torch.cuda.synchronize()


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Of both GEMMs. torch's own formula needs as many heads of keys as of queries."""
    *heads, rows, width = query
    found: int = 2 * math.prod(heads) * rows * key[-2] * (width + value[-1])
    return found


def _backward_flops(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    """Of five GEMMs: the scores again, then gradients of values, weights, queries and keys."""
    *heads, rows, width = query
    found: int = 2 * math.prod(heads) * rows * key[-2] * (3 * width + 2 * value[-1])
    return found


aten = torch.ops.aten
ATTENTION: dict[Any, Any] = {
    aten._scaled_dot_product_flash_attention: _attention_flops,
    aten._scaled_dot_product_efficient_attention: _attention_flops,
    aten._scaled_dot_product_cudnn_attention: _attention_flops,
    aten._scaled_dot_product_flash_attention_backward: _backward_flops,
    aten._scaled_dot_product_efficient_attention_backward: _backward_flops,
    aten._scaled_dot_product_cudnn_attention_backward: _backward_flops,
}


def floor(program: Program, device: str, training: bool, at: Peaks) -> float:
    """A lower bound of the seconds of a program with as many multiplications and bytes."""
    assert isinstance(program.function, torch.nn.Module)
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counted:
        results = tensors_in(program())
    held = {*program.function.parameters(), *program.function.buffers(), *program.tensors}
    size = float(sum(t.nbytes for t in held))
    size = size * STEP_TOUCHES if training else size + sum(t.nbytes for t in results)
    return max(size / at.bytes, float(counted.get_total_flops()) / at.flops)
