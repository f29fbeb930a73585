"""Reports: what one compile did, as values; `explain`, the CLI and logs print the same ones.

In: the results of the stages. Out: `Report` for one graph, `Explanation` for all graphs of a
function. Example: `print(litz.explain(model, x))` names each kernel with the lines it serves, each
op left to ATen, and why what did not fuse did not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from litz.autotune import Tuning
from litz.config import Config
from litz.ir.program import HOST, Decision, Extern, Kernel, Plan, buffer_bytes, read, written
from litz.ir.scheduled import ScheduledKernel
from litz.runtime import ON_THE_CPU, policy_of
from litz.target import Target


@dataclass(frozen=True)
class Fallback:
    """A graph that runs as eager, and why."""

    kind: str
    reason: str


@dataclass(frozen=True)
class BySizes:
    """A graph with symbolic sizes that is compiled anew for each of them, and why."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Report:
    """One compiled graph."""

    kind: str
    target: Target
    plan: Plan
    scheduled: tuple[ScheduledKernel[Any], ...]
    source: Any  # of the target's own types
    binary: Any
    config: Config
    seconds: dict[str, float]
    tuning: Tuning = field(default_factory=Tuning)
    noted: tuple[Decision, ...] = ()  # by the passes

    @property
    def kernels(self) -> list[Kernel]:
        return self.plan.graph.kernels

    @property
    def externs(self) -> list[Extern]:
        return self.plan.graph.externs

    @property
    def decisions(self) -> tuple[Decision, ...]:
        made = self.noted + self.plan.graph.decisions + self._graph_decisions()
        return made + self.tuning.decisions

    def _graph_decisions(self) -> tuple[Decision, ...]:
        """Choices about the whole graph that a flag asked for and the target refuses."""
        flags = self.config.triton
        if not (flags.cudagraphs or flags.require_cudagraphs):
            return ()
        reasons = [ON_THE_CPU]
        if self.target.records:
            reasons = policy_of(self.plan.graph, self._device(), self.config).reasons
        where = f"{self.kind} graph"
        return tuple(Decision("refused", "triton.cudagraphs", where, r) for r in reasons)

    def _device(self) -> str:
        return next((b.device for b in self.plan.outside if not b.on_host), HOST)

    @property
    def aten_ops(self) -> Counter[str]:
        """How often each op was left to ATen."""
        return Counter(s.target for s in self.externs if not s.checks and not s.asks)

    def __str__(self) -> str:
        total = 1e3 * sum(s for name, s in self.seconds.items() if "." not in name)
        lines = [
            f"{self.kind} graph: {len(self.kernels)} kernels "
            f"({len(self.source.functions)} different), {len(self.externs)} ATen calls, "
            f"arena {self.plan.arena_bytes / 1e6:.2f} MB "
            f"(without reuse {self.plan.unplanned_bytes / 1e6:.2f} MB), {self._held()}"
            f"compiled in {total:.0f} ms"
        ]
        ways = getattr(self.source, "ways", ()) or ((),) * len(self.kernels)
        rows = zip(self.kernels, self.scheduled, ways, strict=True)
        lines += [_kernel_line(*row) for row in rows]
        lines += [f"  ATen  {count} x {op}" for op, count in self.aten_ops.most_common()]
        titles = {"rewritten": "rewritten", "not fused": "refused", "not done": "unmet"}
        for title, action in titles.items():
            reasons = Counter(d.reason for d in self.decisions if d.action == action)
            lines += [f"  {title}  {n} x {reason}" for reason, n in reasons.most_common()]
        for finding in self.tuning.findings:
            lines += [f"  tuned  {finding.title}", *_indented(finding.table())]
        return "\n".join(lines)

    def _held(self) -> str:
        """Copies of parameters, packed or folded, that live from call to call."""
        size = sum(map(buffer_bytes, self.plan.graph.held))
        return f"{size / 1e6:.2f} MB made of parameters and kept, " if size else ""


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


def _kernel_line(
    kernel: Kernel, scheduled: ScheduledKernel[Any], functions: tuple[str, ...] = ()
) -> str:
    axes = " x ".join(str(a.extent) for a in scheduled.kernel.outer) or "1"
    how = scheduled.choice.how
    served = list(dict.fromkeys(o.line for o in kernel.origins if o.line))
    where = f"  for {', '.join(served[:3])}" + (" ..." if len(served) > 3 else "") if served else ""
    sides = f"reads {len(read(kernel))}, writes {len(written(kernel))}"
    count = f"{len(kernel.phases)} phases"
    line = f"  kernel  {kernel.name}: rows {axes}, {count}, {how}, {sides}{where}"
    return "\n".join([line, *(_variant_lines(scheduled, functions) if len(functions) > 1 else ())])


def _variant_lines(scheduled: ScheduledKernel[Any], functions: tuple[str, ...]) -> Iterator[str]:
    """What of multi_kernel_hints a kernel runs, and from when on."""
    for variant, function in zip(scheduled.variants, functions, strict=True):
        when = f"from {scheduled.measure} = {variant.begins}"
        yield f"    {when}: {function}, {variant.scheduled.choice.how} (multi_kernel_hints)"


@dataclass
class Explanation:
    """All graphs of one function: compiled ones, and those that run as eager."""

    graphs: list[Report] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    by_size: list[BySizes] = field(default_factory=list)

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
    """Takes everything and keeps nothing."""

    def append(self, item: Any) -> None:
        pass


def unread() -> Explanation:
    """One that nobody will read. A report holds all forms of a graph, and its machine code: it must
    not live as long as whoever compiles the graph for one more size."""
    return Explanation(_Unkept(), _Unkept(), _Unkept())
