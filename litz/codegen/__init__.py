"""Stage 7: scheduled kernels become source text for their target.

In: `ScheduledKernel`s. Out: `Source`, which is LLVM IR, on a CPU; `DeviceSource`, which is Triton,
on a GPU.
"""

from __future__ import annotations

from litz.codegen.llvm.module import emit_module
from litz.codegen.triton.module import emit_kernels
from litz.ir.program import Plan
from litz.ir.scheduled import Choice, ScheduledKernel, Tiling
from litz.ir.source import DeviceSource, Source
from litz.target import CpuTarget, GpuTarget
from litz.trace import stage


@stage("codegen", "LLVM IR")
def emit_llvm(plan: Plan, kernels: list[ScheduledKernel[Choice]], target: CpuTarget) -> Source:
    """All kernels of a graph, with the driver that launches them."""
    return emit_module(plan, kernels, target)


@stage("codegen", "Triton text")
def emit_triton(
    plan: Plan, kernels: list[ScheduledKernel[Tiling]], target: GpuTarget
) -> DeviceSource:
    """All kernels of a graph, with the native functions that launch them."""
    return emit_kernels(plan, kernels, target.unique_names, target.names_nodes)
