"""One kernel built by hand, compiled and run: below every stage but schedule, codegen and build.

In: a `Kernel` and a tensor for each of its buffers. Out: the tensors as they are left. Each lies in
a larger one whose other elements must stay as they are, so a store outside its buffer is seen.
Example: `run(pointwise((i,), {y: load(x, (i,))}), {x: torch.ones(8), y: None})`.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.call import plan_call
from litz.config import Config
from litz.ir.aten import torch_dtype
from litz.ir.dtypes import DType
from litz.ir.expr import Expr, integer
from litz.ir.program import Buffer, Kernel, KernelGraph, Phase, Plan, Store
from litz.ir.scheduled import ScheduledKernel
from litz.target import host
from litz.trace import Trace
from tests.toolchain import build, drive, emit, link, schedule

MARGIN = 16  # elements on either side of a buffer


def buffer(name: str, dtype: DType, *shape: int) -> Buffer:
    """Row-major."""
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    sizes = tuple(integer(n) for n in shape)
    return Buffer(name, dtype, sizes, tuple(integer(s) for s in strides[: len(shape)]))


def pointwise(axes: tuple[Expr, ...], values: dict[Buffer, Expr]) -> Kernel:
    """A kernel of one phase that stores each value at the point."""
    stores = tuple(Store(b, axes, value) for b, value in values.items())
    return Kernel("k0_test", axes, (Phase((), False, stores),), ())


def run(
    kernel: Kernel, given: dict[Buffer, torch.Tensor | None], config: Config | None = None
) -> tuple[dict[str, torch.Tensor], ScheduledKernel]:
    """Results by name (None asks for one), and the schedule that made them."""
    config = config or Config()
    placed = {b: _placed(b, value) for b, value in given.items()}
    target = host(config.cpp.threads, config.cpp.simdlen)
    plan = Plan(KernelGraph(tuple(placed), (), (kernel,), ()))
    scheduled = [schedule(kernel, target, config)]
    kernels = emit(plan, scheduled, target)
    call = plan_call(plan, kernels, {}, config, target)
    binary = build(drive(kernels, call, target), target, config, Trace())
    before = {b: whole.clone() for b, (whole, _) in placed.items()}
    link(call, binary, {}, config)([window for _, window in placed.values()])
    for b, (whole, window) in placed.items():
        assert _margins(whole, window).equal(_margins(before[b], window)), f"{b} is written outside"
    return {b.name: window.clone() for b, (_, window) in placed.items()}, scheduled[0]


def _placed(b: Buffer, value: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    shape = [n.number for n in b.shape]
    count = 1
    for n in shape:
        count *= n
    whole = torch.full((count + 2 * MARGIN,), 1, dtype=torch_dtype(b.dtype))
    window = whole[MARGIN : MARGIN + count].view(shape)
    if value is not None:
        window.copy_(value)
    return whole, window


def _margins(whole: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    return torch.cat([whole[:MARGIN], whole[MARGIN + window.numel() :]])


def tensor(values: Any, dtype: DType) -> torch.Tensor:
    return torch.as_tensor(values).to(torch_dtype(dtype))
