"""Reports: what one compile did, as values; `explain`, the CLI and logs print the same ones.

In: a `CallPlan`, and the results of the stages behind it. Out: `Report` for one graph,
`Explanation` for all graphs of a function. Example: `print(litz.explain(model, x))` names each
kernel with the lines it serves, each op left to ATen, and the reason for each refused fusion.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from litz.autotune import Tuning
from litz.config import Config
from litz.errors import InternalError
from litz.ir.call_plan import CallPlan, KernelCall
from litz.ir.program import Decision, Extern, Plan, buffer_bytes
from litz.ir.scheduled import ScheduledKernel
from litz.runtime import ON_THE_CPU
from litz.target import Target


@dataclass(frozen=True)
class Fallback:
    """A graph that runs as eager, and why."""

    kind: str
    reason: str


@dataclass(frozen=True)
class SizeSpecialization:
    """A graph with symbolic sizes that is compiled anew for each of them, and why."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Stages:
    """The results of the later stages for one graph."""

    target: Target
    plan: Plan
    scheduled: tuple[ScheduledKernel[Any], ...]
    source: Any  # of the target's own types
    binary: Any


@dataclass(frozen=True)
class Report:
    """One compiled graph: its call and, in the process that compiled it, the stages' results."""

    kind: str
    call: CallPlan
    config: Config
    seconds: dict[str, float] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    noted: tuple[Decision, ...] = ()  # by the passes
    stages: Stages | None = None

    @property
    def made(self) -> Stages:
        """The stages' results; a report of a call that was read from its text has none."""
        if self.stages is None:
            raise InternalError("the graph of this report was compiled in another process")
        return self.stages

    @property
    def plan(self) -> Plan:
        return self.made.plan

    @property
    def scheduled(self) -> tuple[ScheduledKernel[Any], ...]:
        return self.made.scheduled

    @property
    def source(self) -> Any:
        return self.made.source

    @property
    def kernels(self) -> tuple[KernelCall, ...]:
        return self.call.kernels

    @property
    def externs(self) -> list[Extern]:
        return self.call.calls

    @property
    def decisions(self) -> tuple[Decision, ...]:
        made = self.noted + self.call.decisions + self._graph_decisions()
        return made + self.tuning.decisions

    def _graph_decisions(self) -> tuple[Decision, ...]:
        """Choices about the whole graph that a flag asked for and the target refuses."""
        flags = self.config.triton
        if not (flags.cudagraphs or flags.require_cudagraphs):
            return ()
        reasons = [ON_THE_CPU]
        if self.call.recording is not None:
            reasons = self.call.recording.reasons
        where = f"{self.kind} graph"
        return tuple(Decision("refused", "triton.cudagraphs", where, r) for r in reasons)

    @property
    def aten_ops(self) -> Counter[str]:
        """How often each op was left to ATen."""
        return Counter(s.target for s in self.externs if not s.checks and not s.guards_folding)

    def __str__(self) -> str:
        call = self.call
        total = 1e3 * sum(s for name, s in self.seconds.items() if "." not in name)
        lines = [
            f"{self.kind} graph: {len(call.kernels)} kernels "
            f"({len(call.functions)} different), {len(self.externs)} ATen calls, "
            f"arena {call.arena_bytes / 1e6:.2f} MB "
            f"(without reuse {call.unplanned_bytes / 1e6:.2f} MB), {self._prepacked()}"
            f"compiled in {total:.0f} ms"
        ]
        lines += [_kernel_line(kernel) for kernel in call.kernels]
        lines += [f"  ATen  {count} x {op}" for op, count in self.aten_ops.most_common()]
        lines += [f"  opaque  {one.reason}" for one in call.opaque]
        titles = {"rewritten": "rewritten", "not fused": "refused", "not done": "unmet"}
        for title, action in titles.items():
            reasons = Counter(d.reason for d in self.decisions if d.action == action)
            lines += [f"  {title}  {n} x {reason}" for reason, n in reasons.most_common()]
        for finding in self.tuning.findings:
            lines += [f"  tuned  {finding.title}", *_indented(finding.table())]
        return "\n".join(lines)

    def _prepacked(self) -> str:
        """The bytes of prepacked weights: packed or folded copies that live from call to call."""
        prepack = self.call.prepack
        size = sum(map(buffer_bytes, prepack.makes)) if prepack is not None else 0
        return f"{size / 1e6:.2f} MB of prepacked weights, " if size else ""


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def _kernel_line(kernel: KernelCall) -> str:
    served = list(dict.fromkeys(o.line for o in kernel.origins if o.line))
    where = f"  for {', '.join(served[:3])}" + (" ..." if len(served) > 3 else "") if served else ""
    sides = f"reads {len(kernel.reads)}, writes {len(kernel.writes)}"
    how, *variants = kernel.summary
    line = f"  kernel  {kernel.name}: {how}, {sides}{where}"
    return "\n".join([line, *(f"    {variant}" for variant in variants)])


@dataclass
class Explanation:
    """All graphs of one function: compiled ones, and those that run as eager."""

    graphs: list[Report] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    by_size: list[SizeSpecialization] = field(default_factory=list)

    @property
    def kernels(self) -> int:
        """Kernels generated."""
        return sum(len(g.kernels) for g in self.graphs)

    @property
    def aten_ops(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for graph in self.graphs:
            total += graph.aten_ops
        return total

    def __str__(self) -> str:
        parts = [str(g) for g in self.graphs]
        parts += [f"{f.kind} graph runs as eager: {f.reason}" for f in self.fallbacks]
        parts += [f"{f.kind} graph is compiled for each size: {f.reason}" for f in self.by_size]
        return "\n".join(parts) or "nothing was compiled"


class _Unkept(list[Any]):
    """A list that stays empty: `append` drops its item."""

    def append(self, item: Any) -> None:
        pass


def discarding_explanation() -> Explanation:
    """An explanation that keeps nothing. A report holds every form of a graph and its machine code,
    so it must not live as long as the object that may compile the graph for one more size."""
    return Explanation(_Unkept(), _Unkept(), _Unkept())
