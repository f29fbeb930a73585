"""Coverage of a hunt: ops, texts of the vocabulary, fusions, loop forms, call modes, flags.

In: programs and the reports of their compiles. Out: `Coverage`, counts that processes send and that
add up, and the rows that were not reached. All of it is read off values that the compiler has
anyway: kernels, their schedules and the decisions about them. Example:

    reached(program, notes).rows(LOOPS)["a scan"]       # 3 kernels have one
    reached(program, notes).missing(LOOPS)              # ["attention", ...]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from litz.fuzz.generate import OPTIONS
from litz.fuzz.program import Program
from litz.fuzz.vocabulary import FAMILIES, MUTATIONS
from litz.ir.expr import Expr, walk
from litz.ir.program import Buffer, Decision, Output, ViewArg, exprs_of
from litz.ir.scheduled import Choice, GemmBlocking, ScheduledKernel
from litz.lower.registry import RULES
from litz.report import Explanation, Report

KERNEL, ATEN = "op in a kernel", "op left to ATen"
TEXT, FUSION, LOOPS, GRAPHS = "vocabulary", "fusion", "loops", "graphs"
PROGRAMS, FLAGS = "programs", "flags"

Form = Callable[[ScheduledKernel[Choice]], bool]


def _nodes(made: ScheduledKernel[Choice]) -> Iterator[Expr]:
    return walk(*exprs_of(made.kernel))


def _has(op: str) -> Form:
    return lambda made: any(node.op == op for node in _nodes(made))


def _stores(*modes: str) -> Form:
    return lambda made: any(store.mode in modes for store in made.kernel.stores)


def _lanes(least: int, most: int) -> Form:
    return lambda made: least <= made.choice.lanes <= most


def _reads_indirectly(made: ScheduledKernel[Choice]) -> bool:
    loads = [n for n in _nodes(made) if n.op == "load"]
    return any(below.op == "load" for n in loads for i in n.index for below in walk(i))


def _has_gemm_epilogue(made: ScheduledKernel[Choice]) -> bool:
    return made.choice.gemm is not None and len(made.kernel.phases) > 1


def _blocks(holds: Callable[[GemmBlocking], object]) -> Form:
    return lambda made: made.choice.gemm is not None and bool(holds(made.choice.gemm))


# Forms of a scheduled kernel, by name.
FORMS: dict[str, Form] = {
    "one lane": _lanes(1, 1),
    "2 to 4 lanes": _lanes(2, 4),
    "5 to 8 lanes": _lanes(5, 8),
    "9 lanes and more": _lanes(9, 999),
    "lanes along an outer axis": lambda m: m.choice.vector is not None,
    "transposed in registers": lambda m: m.choice.transpose_axis is not None,
    "whole rows pass by": lambda m: m.choice.row_by_row,
    "a reduction unrolled": lambda m: m.choice.unroll > 1,
    "no outer axis": lambda m: not m.kernel.outer,
    "three outer axes and more": lambda m: len(m.kernel.outer) > 2,
    "several phases": lambda m: len(m.kernel.phases) > 1,
    "a reduction": _has("reduce"),
    "reductions over several axes": lambda m: any(
        p.is_reduction and len(p.inner) > 1 for p in m.kernel.phases
    ),
    "sums inside a nest": lambda m: any(p.summed for p in m.kernel.phases),
    "a scan": _has("scan"),
    "a scatter that sets": _stores("put"),
    "a scatter that adds": _stores("add"),
    "a scatter of the least or largest": _stores("min", "max"),
    "a guarded load": lambda m: any(n.op == "load" and n.guard is not None for n in _nodes(m)),
    "a read where data says": _reads_indirectly,
    "an index that is checked": _has("check_index"),
    "random bits": _has("random_bits"),
    "scratch": lambda m: bool(m.kernel.scratch),
    "several tasks": lambda m: m.tasks > 1,
    "non-temporal stores": lambda m: bool(m.choice.non_temporal),
    "ways to run by size": lambda m: bool(m.variants),
    "a matrix product": _blocks(lambda _: True),
    "a product with an epilogue": _has_gemm_epilogue,
    "a product with rows finished whole": _blocks(lambda b: b.full_rows),
    "a product of several": _blocks(lambda b: b.batches.hint > 1),
    "a k-blocked gemm": _blocks(lambda b: b.k_block),
    "a product of neighbours in groups": _blocks(lambda b: b.group > 1),
    "attention": lambda m: m.choice.attention is not None,
    "a depthwise convolution": lambda m: m.choice.depthwise is not None,
    "sizes that only a call knows": lambda m: bool(m.sizes),
}
# Forms of a decision: its action, and a part of its reason.
FUSIONS: dict[str, tuple[str, str]] = {
    "a producer inlined": ("inlined", "computed at"),
    "loops share rows": ("fused", "saves"),
    "loops store into the same rows": ("fused", "stores into the same rows"),
    "small loops side by side": ("fused", "both are small"),
    "aggressive fusion": ("fused", "aggressive_fusion"),
    "a reduction in pieces": ("rewritten", "rows are reduced in"),
    "a softmax in one pass": ("rewritten", "online_softmax"),
    "mean and variance in pieces": ("rewritten", "mean and variance in"),
    "stored in pieces": ("rewritten", "each computes what lies in it alone"),
    "neighbours written out": ("rewritten", "written out once for each"),
}
GRAPH_KINDS = (
    "inference", "forward", "backward", "symbolic sizes", "sizes that are numbers",
    "compiled for each size", "with kernels alone", "with ATen calls", "an arena",
    "prepacked weights", "inputs updated", "results that share memory",
    "refused, to run as eager",
)  # fmt: skip
CALL_MODES = (
    "called once", "called 2 times", "called 3 times", "called 4 times", "gradients", "threads",
    "sizes found out by torch", "parameters", "mutation", "a size of 0", "a size of 1",
    "several results", "inputs that share memory",
)  # fmt: skip

LISTED: dict[str, tuple[str, ...]] = {
    LOOPS: tuple(FORMS), FUSION: tuple(FUSIONS), GRAPHS: GRAPH_KINDS, PROGRAMS: CALL_MODES,
}  # fmt: skip


@dataclass
class Coverage:
    """How often each row of each table was reached."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, table: str, row: str, count: int = 1) -> None:
        self.counts[table, row] += count

    def __iadd__(self, other: Coverage) -> Coverage:
        self.counts.update(other.counts)
        return self

    def rows(self, table: str) -> dict[str, int]:
        """The counts of one table, the most frequent row first."""
        found = Counter({row: n for (kind, row), n in self.counts.items() if kind == table})
        return dict(found.most_common())

    def missing(self, table: str) -> list[str]:
        """The rows that were not reached, in the order of the table."""
        return [row for row in known(table) if not self.counts[table, row]]


def known(table: str) -> list[str]:
    """All rows that a table can have; for ops, those with a lowering rule."""
    if table == KERNEL:
        views = "litz.lower.view"  # index maps, which have no kernels of their own
        return sorted({_packet(str(op)) for op, r in RULES.items() if r.__module__ != views})
    if table == TEXT:
        return [text for family in (*FAMILIES, MUTATIONS) for text in family.texts]
    if table == FLAGS:
        return [f"{name} = {v!r}" for name, (usual, *rest) in OPTIONS.items()
                for v in dict.fromkeys(rest) if v != usual]  # fmt: skip
    return list(LISTED.get(table, ()))


def reached(program: Program, notes: Explanation) -> Coverage:
    """The rows reached by one program and its compiles."""
    found = Coverage()
    for row in _call_modes(program):
        found.add(PROGRAMS, row)
    for step in program.steps:
        if step.drawn:
            found.add(TEXT, step.drawn)
    for name, value in program.options.items():
        found.add(FLAGS, f"{name} = {value!r}")
    for report in notes.graphs:
        _add_report(found, report)
    if notes.fallbacks:
        found.add(GRAPHS, "refused, to run as eager", len(notes.fallbacks))
    if notes.by_size:
        found.add(GRAPHS, "compiled for each size", len(notes.by_size))
    return found


def _add_report(found: Coverage, report: Report) -> None:
    for kernel in report.kernels:
        for op in {_packet(o.op) for o in kernel.origins}:
            found.add(KERNEL, op)
    for target, count in report.aten_ops.items():
        found.add(ATEN, _packet(target), count)
    for decision in report.decisions:
        for name in _fusions(decision):
            found.add(FUSION, name)
        if decision.action == "refused":
            found.add(FUSION, f"refused: {_without_sizes(decision.reason)}")
    for made in report.scheduled:
        if isinstance(made.choice, Choice):
            for name in _forms(made):  # type: ignore[arg-type]
                found.add(LOOPS, name)
    for row in _graph_rows(report):
        found.add(GRAPHS, row)


def _forms(made: ScheduledKernel[Choice]) -> list[str]:
    return [name for name, holds in FORMS.items() if holds(made)]


def _fusions(decision: Decision) -> list[str]:
    return [
        name
        for name, (action, part) in FUSIONS.items()
        if decision.action == action and part in decision.reason
    ]


def _without_sizes(reason: str) -> str:
    """The reason without names, numbers and text in brackets."""
    plain = re.sub(r"\(.*\)|: .*| at .*", "", reason)
    words = ["#" if re.search(r"[\d*]", word) else word for word in plain.split()]
    return re.sub(r"#( #)+", "#", " ".join(words))


def _graph_rows(report: Report) -> Iterator[str]:
    graph = report.plan.graph
    yield report.kind
    is_symbolic = any(isinstance(item, Expr) for item in graph.inputs)
    yield "symbolic sizes" if is_symbolic else "sizes that are numbers"
    yield "with ATen calls" if graph.externs else "with kernels alone"
    if report.plan.slots:
        yield "an arena"
    if graph.prepacked:
        yield "prepacked weights"
    if any(b in graph.inputs for step in graph.body for b in step.writes):
        yield "inputs updated"
    shown = [b.name for o in graph.outputs if (b := _buffer(o)) is not None]
    if len(shown) > len(set(shown)):
        yield "results that share memory"


def _buffer(output: Output) -> Buffer | None:
    return output.value.buffer if isinstance(output.value, ViewArg) else None


def _call_modes(program: Program) -> Iterator[str]:
    calls, call_mode = program.calls, program.call_mode
    yield "called once" if calls == 1 else f"called {calls} times"
    sizes = {n for i in program.inputs for shape in i.shapes for n in shape}
    holds = {
        "gradients": call_mode.gradients,
        "threads": call_mode.threads > 1,
        "sizes found out by torch": call_mode.automatic,
        "parameters": bool(program.parameters),
        "mutation": any(not step.name for step in program.steps),
        "a size of 0": 0 in sizes,
        "a size of 1": 1 in sizes,
        "several results": len(program.outputs) > 1,
        "inputs that share memory": any(i.base for i in program.inputs),
    }
    yield from (name for name, is_so in holds.items() if is_so)


def _packet(op: str) -> str:
    """aten.add.Tensor is aten.add."""
    return ".".join(op.split(".")[:2])
