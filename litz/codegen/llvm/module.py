"""Modules: all kernels of a graph in one LLVM module, with their driver and the math they use.

In: a plan and its scheduled kernels. Out: `Source`: IR text and, for each kernel, the name of its
function. Kernels of equal structure (identical layers) share one function.
"""

from __future__ import annotations

from dataclasses import replace

from litz.codegen.llvm import math
from litz.codegen.llvm.attention import AttentionEmitter
from litz.codegen.llvm.attention_row import RowEmitter
from litz.codegen.llvm.checks import CALLED
from litz.codegen.llvm.columns import ColumnEmitter
from litz.codegen.llvm.driver import (
    Launch,
    computed_numbers,
    driver_text,
    launches_of,
    preparation,
    segments,
    table_layout,
)
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.product import ProductEmitter
from litz.codegen.llvm.row_product import RowProductEmitter
from litz.codegen.llvm.window import WindowEmitter
from litz.ir.checks import sites_of
from litz.ir.product import product_phase
from litz.ir.program import Plan, exprs_of
from litz.ir.scheduled import ScheduledKernel
from litz.ir.source import Source
from litz.ir.verify import verify_emitted
from litz.target import CpuTarget


def emit_module(plan: Plan, kernels: list[ScheduledKernel], target: CpuTarget) -> Source:
    """One function for each kernel that differs from all before it."""
    functions = _Functions()
    launches = [_launched(kernel, functions) for kernel in kernels]
    ways = tuple(tuple(way.function for way in each) for each in launches)
    names = tuple(each[0] for each in ways)
    library, needed = math.definitions(sorted(functions.wanted), target)
    bits = target.vector_bytes * 8
    attributes = (
        f'attributes #0 = {{ nounwind "min-legal-vector-width"="{bits}" '
        f'"prefer-vector-width"="{bits}" }}'
    )
    attributes += '\n!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}'  # rolled loops
    computed = computed_numbers(launches)
    layout = table_layout(plan, computed)
    sites = tuple(sites_of(e for kernel in kernels for e in exprs_of(kernel.kernel)))
    may_fail = frozenset(k for k, found in enumerate(ways) if functions.may_fail & {*found})
    driver = driver_text(plan, launches, layout, target.threads, may_fail)
    # The driver declares what its runtime part uses; nothing may be declared twice.
    outside = sorted(d for d in functions.declares | needed if d not in driver)
    texts = [text.replace(NAME, name) for text, name in functions.texts.items()]
    text = "\n".join([*outside, library, *texts, driver, attributes, ""])
    runs, first = tuple(segments(plan)), preparation(plan)
    all_names = tuple(functions.texts.values())
    return Source(
        text, names, all_names, runs, layout, first, computed, ways, sites, may_fail
    )  # fmt: skip


def _launched(kernel: ScheduledKernel, functions: _Functions) -> list[Launch]:
    """Every way to run a kernel; one alone, if all of them come to the same."""
    ways = [v.scheduled for v in kernel.variants] or [kernel]
    names = [functions.name(way) for way in ways]
    if len({(name, way.choice) for name, way in zip(names, ways, strict=True)}) == 1:
        kernel = replace(kernel, variants=())
    return launches_of(kernel, names)


# What a function, and those it calls, begin with until it has a name.
NAME = "litz_function"


class _Functions:
    """Each function once: kernels of equal structure share one, and so do those that differ in the
    names of their sizes alone, or in hints that changed nothing."""

    def __init__(self) -> None:
        self.known: dict[object, str] = {}
        self.texts: dict[str, str] = {}
        self.declares: set[str] = set()
        self.wanted: set[tuple[str, str, int]] = set()
        self.may_fail: set[str] = set()  # those with checks

    def name(self, scheduled: ScheduledKernel) -> str:
        key = scheduled.structure
        if key not in self.known:
            emitter = emitter_of(scheduled)(scheduled, NAME)
            text = emitter.emit()
            verify_emitted(scheduled.kernel, emitter.values.memory.emitted)
            fresh = f"litz_{len(self.texts)}_{_identifier(scheduled.kernel.name)}"
            self.known[key] = self.texts.setdefault(text, fresh)
            self.declares |= emitter.b.declares
            self.wanted |= emitter.b.functions
            if CALLED in text:
                self.may_fail.add(self.known[key])
        return self.known[key]


def emitter_of(scheduled: ScheduledKernel) -> type[KernelEmitter]:
    """Who writes a kernel."""
    if scheduled.choice.product is not None:
        among_rows = product_phase(scheduled.kernel) is not None
        return RowProductEmitter if among_rows else ProductEmitter
    if scheduled.choice.attention is not None:
        return RowEmitter if scheduled.choice.attention.by_row else AttentionEmitter
    if scheduled.choice.sliding is not None:
        return WindowEmitter
    return ColumnEmitter if scheduled.choice.by_rows else KernelEmitter


def _identifier(name: str) -> str:
    """The words of a kernel's name without its number: deduplicated kernels share it."""
    words = name.partition("_")[2] or "kernel"
    return "".join(c if c.isalnum() else "_" for c in words)
