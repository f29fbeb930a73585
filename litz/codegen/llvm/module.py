"""Modules: all kernels of a graph in one LLVM module, with the math they use.

In: a plan and its scheduled kernels. Out: `Source`: IR text and, for each kernel, how its function
is called. Kernels of equal structure (identical layers) share one function.
"""

from __future__ import annotations

from dataclasses import replace

from litz.codegen.llvm import math
from litz.codegen.llvm.attention import AttentionEmitter
from litz.codegen.llvm.attention_row import RowEmitter
from litz.codegen.llvm.checks import CALLED
from litz.codegen.llvm.columns import ColumnEmitter
from litz.codegen.llvm.driver import launches_of
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.product import ProductEmitter
from litz.codegen.llvm.row_product import RowProductEmitter
from litz.codegen.llvm.window import WindowEmitter
from litz.ir.call_plan import KernelCall
from litz.ir.checks import sites_of
from litz.ir.product import product_phase
from litz.ir.program import Kernel, Plan, exprs_of, read, written
from litz.ir.scheduled import ScheduledKernel
from litz.ir.source import Source
from litz.ir.summary import summary
from litz.ir.verify import verify_emitted
from litz.target import CpuTarget


def emit_module(plan: Plan, kernels: list[ScheduledKernel], target: CpuTarget) -> Source:
    """One function for each kernel that differs from all before it. The driver is not part of the
    text yet: the call has to be planned first."""
    functions = _Functions()
    calls = tuple(
        _called(kernel, scheduled, functions)
        for kernel, scheduled in zip(plan.graph.kernels, kernels, strict=True)
    )
    library, needed = math.definitions(sorted(functions.wanted), target)
    bits = target.vector_bytes * 8
    attributes = (
        f'attributes #0 = {{ nounwind "min-legal-vector-width"="{bits}" '
        f'"prefer-vector-width"="{bits}" }}'
    )
    attributes += '\n!0 = distinct !{!0, !1}\n!1 = !{!"llvm.loop.unroll.disable"}'  # rolled loops
    sites = tuple(sites_of(e for kernel in kernels for e in exprs_of(kernel.kernel)))
    declared = functions.declares | needed
    texts = [text.replace(NAME, name) for text, name in functions.texts.items()]
    text = "\n".join([*sorted(declared), library, *texts, attributes, ""])
    names = tuple(functions.texts.values())
    return Source(text, calls, names, sites, declares=frozenset(declared))


def _called(kernel: Kernel, scheduled: ScheduledKernel, functions: _Functions) -> KernelCall:
    """Every way to run a kernel; one alone, if all of them come to the same."""
    ways = [v.scheduled for v in scheduled.variants] or [scheduled]
    names = [functions.name(way) for way in ways]
    if len({(name, way.choice) for name, way in zip(names, ways, strict=True)}) == 1:
        scheduled = replace(scheduled, variants=())
    launches = launches_of(scheduled, names)
    own = tuple(launch.function for launch in launches)
    checks = not functions.may_fail.isdisjoint(own)
    touched = tuple(read(kernel)), tuple(written(kernel))
    return KernelCall(
        kernel.name, launches, *touched, checks, kernel.origins, summary(scheduled, own)
    )


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
