"""Stage 7: scheduled kernels become source text for their target.

In: `ScheduledKernel`s. Out: `Source`: LLVM IR on CPU.
"""

from __future__ import annotations

from litz.codegen.llvm.module import emit_module
from litz.ir.program import Plan
from litz.ir.scheduled import ScheduledKernel
from litz.ir.source import Source
from litz.target import Target
from litz.trace import stage


@stage("codegen", "LLVM IR text")
def emit(plan: Plan, kernels: list[ScheduledKernel], target: Target) -> Source:
    """All kernels of a graph in one module, with the driver that launches them."""
    return emit_module(plan, kernels, target)
