"""Stage 7: scheduled kernels become source text for their target.

In: `ScheduledKernel`s. Out: `Source`, which is LLVM IR, on a CPU; `DeviceSource`, which is Triton,
on a GPU. `emit` writes the kernels; once the call is planned, `drive` writes the native functions
that launch them.
"""

from __future__ import annotations

from litz.codegen.llvm import driver
from litz.codegen.llvm.module import emit_module
from litz.codegen.triton import launch
from litz.codegen.triton.module import emit_kernels
from litz.ir.call_plan import CallPlan
from litz.ir.program import Plan
from litz.ir.scheduled import Choice, ScheduledKernel, Tiling
from litz.ir.source import DeviceSource, Source
from litz.target import CpuTarget, GpuTarget
from litz.trace import stage


@stage("codegen", "LLVM IR")
def emit_llvm(plan: Plan, kernels: list[ScheduledKernel[Choice]], target: CpuTarget) -> Source:
    """All kernels of a graph."""
    return emit_module(plan, kernels, target)


@stage("drive", "the native functions that launch kernels")
def drive_llvm(source: Source, call: CallPlan, target: CpuTarget) -> Source:
    """The module with its driver, as a call needs it."""
    return driver.with_driver(source, call, target)


@stage("codegen", "Triton text")
def emit_triton(
    plan: Plan, kernels: list[ScheduledKernel[Tiling]], target: GpuTarget
) -> DeviceSource:
    """All kernels of a graph."""
    return emit_kernels(plan, kernels, target.unique_names, target.names_nodes)


@stage("drive", "the native functions that launch kernels")
def drive_triton(source: DeviceSource, call: CallPlan, target: GpuTarget) -> DeviceSource:
    """The kernels with the native functions that launch them."""
    return launch.with_driver(source, call)
