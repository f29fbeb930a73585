"""Modules: all kernels of a graph in one LLVM module, with their driver and the math they use.

In: a plan and its scheduled kernels. Out: `Source`: IR text and, for each kernel, the name of its
function. Kernels of equal structure (identical layers) share one function.
"""

from __future__ import annotations

from litz.codegen.llvm import math
from litz.codegen.llvm.attention import AttentionEmitter
from litz.codegen.llvm.attention_row import RowEmitter
from litz.codegen.llvm.columns import ColumnEmitter
from litz.codegen.llvm.driver import (
    computed_numbers,
    driver_text,
    preparation,
    segments,
    table_layout,
)
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.product import ProductEmitter
from litz.codegen.llvm.row_product import RowProductEmitter
from litz.codegen.llvm.window import WindowEmitter
from litz.ir.product import product_phase
from litz.ir.program import Plan
from litz.ir.scheduled import ScheduledKernel
from litz.ir.source import Source
from litz.target import Target


def emit_module(plan: Plan, kernels: list[ScheduledKernel], target: Target) -> Source:
    """One function for each kernel that differs from all before it."""
    functions: dict[object, str] = {}
    names: list[str] = []
    texts: list[str] = []
    declares: set[str] = set()
    wanted: set[tuple[str, str, int]] = set()
    for scheduled in kernels:
        key = structure(scheduled)
        if key not in functions:
            functions[key] = f"litz_{len(functions)}_{_identifier(scheduled.kernel.name)}"
            emitter = emitter_of(scheduled)(scheduled, functions[key])
            texts.append(emitter.emit())
            declares |= emitter.b.declares
            wanted |= emitter.b.functions
        names.append(functions[key])
    library, needed = math.definitions(sorted(wanted), target.features)
    bits = target.vector_bytes * 8
    attributes = (
        f'attributes #0 = {{ nounwind "min-legal-vector-width"="{bits}" '
        f'"prefer-vector-width"="{bits}" }}'
    )
    attributes += '\n!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}'  # rolled loops
    computed = computed_numbers(kernels)
    layout = table_layout(plan, computed)
    driver = driver_text(plan, kernels, names, layout, target.threads)
    # The driver declares what its runtime part uses; nothing may be declared twice.
    outside = sorted(d for d in declares | needed if d not in driver)
    text = "\n".join([*outside, library, *texts, driver, attributes, ""])
    runs, first = tuple(segments(plan)), preparation(plan)
    return Source(text, tuple(names), tuple(functions.values()), runs, layout, first, computed)


def emitter_of(scheduled: ScheduledKernel) -> type[KernelEmitter]:
    """Who writes a kernel."""
    if scheduled.choice.product is not None:
        among_rows = product_phase(scheduled.kernel) is not None
        return RowProductEmitter if among_rows else ProductEmitter
    if scheduled.choice.attention is not None:
        return RowEmitter if scheduled.choice.attention.by_row else AttentionEmitter
    if scheduled.choice.sliding is not None:
        return WindowEmitter
    return ColumnEmitter if scheduled.choice.rows else KernelEmitter


def structure(scheduled: ScheduledKernel) -> object:
    """What a kernel's code depends on: everything but its name, origins and real buffers."""
    kernel = scheduled.kernel
    return (kernel.outer, kernel.phases, kernel.scratch, scheduled.choice)


def _identifier(name: str) -> str:
    """The words of a kernel's name without its number: deduplicated kernels share it."""
    words = name.partition("_")[2] or "kernel"
    return "".join(c if c.isalnum() else "_" for c in words)
