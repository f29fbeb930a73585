"""Modules: all kernels of a graph in one LLVM module, with the math functions they use.

In: a plan and its scheduled kernels. Out: `Source`: IR text and, for each kernel, how its function
is called. Kernels of equal structure (identical layers) share one function.
"""

from __future__ import annotations

from dataclasses import replace

from litz.codegen.llvm import math
from litz.codegen.llvm.checks import CHECK_PREFIX
from litz.codegen.llvm.column_reductions import ColumnReductionEmitter
from litz.codegen.llvm.decode_attention import DecodeAttentionEmitter
from litz.codegen.llvm.depthwise import DepthwiseEmitter
from litz.codegen.llvm.driver import launches_of
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.flash_attention import FlashAttentionEmitter
from litz.codegen.llvm.gemm import GemmEmitter
from litz.codegen.llvm.row_gemm import RowGemmEmitter
from litz.ir.call_plan import KernelCall
from litz.ir.checks import sites_of
from litz.ir.gemm import gemm_phase
from litz.ir.program import Kernel, Plan, exprs_of, read, written
from litz.ir.scheduled import ScheduledKernel
from litz.ir.source import Source
from litz.ir.summary import summary
from litz.ir.verify import verify_emitted
from litz.target import CpuTarget


def emit_module(plan: Plan, kernels: list[ScheduledKernel], target: CpuTarget) -> Source:
    """One function for each kernel that differs from all before it. The driver is added later:
    the call has to be planned first."""
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
    """A kernel with all its variants; with one, if all of them come to the same."""
    versions = [v.scheduled for v in scheduled.variants] or [scheduled]
    names = [functions.name(version) for version in versions]
    if len({(name, version.choice) for name, version in zip(names, versions, strict=True)}) == 1:
        scheduled = replace(scheduled, variants=())
    launches = launches_of(scheduled, names)
    own = tuple(launch.function for launch in launches)
    checks = not functions.may_fail.isdisjoint(own)
    touched = tuple(read(kernel)), tuple(written(kernel))
    return KernelCall(
        kernel.name, launches, *touched, checks, kernel.origins, summary(scheduled, own)
    )


# The prefix of a function, and of the functions it calls, until it has a name.
NAME = "litz_function"


class _Functions:
    """Each function once. Kernels of equal structure share one; so do kernels that differ only in
    the names of their sizes, or in hints that changed nothing."""

    def __init__(self) -> None:
        self.known: dict[object, str] = {}
        self.texts: dict[str, str] = {}
        self.declares: set[str] = set()
        self.wanted: set[tuple[str, str, int]] = set()
        self.may_fail: set[str] = set()  # functions with checks

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
            if CHECK_PREFIX in text:
                self.may_fail.add(self.known[key])
        return self.known[key]


def emitter_of(scheduled: ScheduledKernel) -> type[KernelEmitter]:
    """The emitter for a kernel."""
    if scheduled.choice.gemm is not None:
        among_rows = gemm_phase(scheduled.kernel) is not None
        return RowGemmEmitter if among_rows else GemmEmitter
    if scheduled.choice.attention is not None:
        return (
            DecodeAttentionEmitter if scheduled.choice.attention.by_row else FlashAttentionEmitter
        )
    if scheduled.choice.depthwise is not None:
        return DepthwiseEmitter
    return ColumnReductionEmitter if scheduled.choice.row_by_row else KernelEmitter


def _identifier(name: str) -> str:
    """A kernel's name without its number, since equal kernels share the function."""
    words = name.partition("_")[2] or "kernel"
    return "".join(c if c.isalnum() else "_" for c in words)
