"""Stage 7: scheduled kernels become source text for their target.

In: `ScheduledKernel`s. Out: `Source`, which is LLVM IR, on a CPU; `DeviceSource`, which is Triton,
on a GPU. `emit` writes the kernels; once the call is planned, `drive` writes the native functions
that launch them.
"""

from __future__ import annotations

from typing import Any

from litz.codegen.llvm import driver
from litz.codegen.llvm.module import emit_module
from litz.codegen.triton import launch
from litz.codegen.triton.module import emit_kernels
from litz.ir.call_plan import CallPlan
from litz.ir.program import Plan
from litz.ir.scheduled import ScheduledKernel
from litz.ir.source import DeviceSource, Source
from litz.target import Target
from litz.trace import stage


@stage("codegen", "LLVM IR or Triton text")
def emit(plan: Plan, kernels: list[ScheduledKernel[Any]], target: Target) -> Source | DeviceSource:
    """All kernels of a graph."""
    if target.kind == "cuda":
        return emit_kernels(plan, kernels, target.unique_names, target.names_nodes)
    return emit_module(plan, kernels, target)


@stage("drive", "the native functions that launch kernels")
def drive(source: Source | DeviceSource, call: CallPlan, target: Target) -> Source | DeviceSource:
    """The source with its driver, as a call needs it."""
    if isinstance(source, DeviceSource):
        return launch.with_driver(source, call)
    return driver.with_driver(source, call, target)
