"""Partitions: a graph in parts, some recorded as CUDA graphs, the others run unrecorded.

In: a `Plan` and the ranges of steps that its recording cut it into. Out: a `Body` that runs the
partitions in order, and a `Partition` for each. A partition takes the tensors that it reads from
outside, and gives those that are needed later. Intermediates in the arena need not be passed on,
since all partitions share one arena that never moves. An unbacked size is a number that one
partition gives to later ones, none of which is recorded. For
`y = softmax(x).cpu().to(x.device); return y * 2 + x.sum()`:

    partition 0 takes x gives t2, t3
    partition 1 takes t2 gives t4
    partition 2 takes t4, t3 gives t5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from litz.call.sizes import Unbacked, symbols_of
from litz.call.steps import CallContext, body_of
from litz.ir.call_plan import (
    OUTPUT,
    Allocate,
    Body,
    Free,
    KernelCall,
    Partition,
    Range,
    RunPartition,
    Step,
)
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.program import (
    Buffer,
    Extern,
    Kernel,
    KernelGraph,
    Output,
    Plan,
    ViewArg,
    read,
    written,
)
from litz.ir.sizes import roots, sizes_of, used_in


def partitions(
    plan: Plan,
    whole: Body,
    facts: CallContext,
    calls: Sequence[KernelCall],
    ranges: Sequence[Range],
) -> tuple[Body, tuple[Partition, ...]]:
    """The driver of a partitioned graph, and its partitions. `whole` is its body in one piece."""
    found = []
    for partition_plan in partition_plans(plan, ranges):
        body, _ = body_of(partition_plan.plan, _facts_of(facts, calls, partition_plan))
        found.append(
            Partition(
                body, partition_plan.recorded, partition_plan.kernels, partition_plan.parent_outputs
            )
        )
    return _driver(plan, whole, facts, found), tuple(found)


@dataclass(frozen=True)
class PartitionPlan:
    """A range of steps as a plan. `kernels` are the numbers of its kernels in the whole graph,
    `parent_outputs` the positions of inputs that an earlier recorded range computed."""

    plan: Plan
    recorded: bool
    kernels: frozenset[int]
    parent_outputs: tuple[int, ...] = ()

    @property
    def takes(self) -> tuple[Buffer, ...]:
        """The tensors that it takes."""
        return tuple(b for b in self.plan.graph.inputs if isinstance(b, Buffer))

    @property
    def gives(self) -> tuple[Buffer, ...]:
        """The tensors that it gives."""
        values = (o.value for o in self.plan.graph.outputs)
        return tuple(v.buffer for v in values if isinstance(v, ViewArg))


def partition_plans(plan: Plan, ranges: Sequence[Range]) -> list[PartitionPlan]:
    """A plan for each range."""
    graph = plan.graph
    shown = {o.value.buffer.name for o in graph.outputs if isinstance(o.value, ViewArg)}
    given = {b.name: b for b in graph.inputs if isinstance(b, Buffer)}
    constants = {b.name for b in graph.constants}
    recorded: set[str] = set()  # buffers in the memory of a recording
    found: list[PartitionPlan] = []
    first_kernel = 0
    for part in ranges:
        steps = graph.body[part.first : part.last]
        here = _outside(plan, steps, constants)
        later = _outside(plan, graph.body[part.last :], constants)
        takes = [b for name, b in here.items() if name in given]
        gives = [b for n, b in here.items() if n not in given and (n in later or n in shown)]
        count = sum(isinstance(s, Kernel) for s in steps)
        kernels = frozenset(range(first_kernel, first_kernel + count))
        parent_outputs = tuple(k for k, b in enumerate(takes) if b.name in recorded)
        small = _plan_of(plan, part, takes, gives)
        found.append(
            PartitionPlan(small, part.recorded, kernels, parent_outputs if part.recorded else ())
        )
        given |= {b.name: b for b in gives}
        recorded |= {b.name for b in gives if part.recorded}
        first_kernel += count
    return found


def _outside(plan: Plan, steps: tuple[Any, ...], constants: set[str]) -> dict[str, Buffer]:
    """The buffers outside the arena that steps touch, by name."""
    touched = (b for step in steps for b in (*read(step), *written(step)))
    return {b.name: b for b in touched if b.name not in plan.slots and b.name not in constants}


def _plan_of(plan: Plan, part: Range, takes: list[Buffer], gives: list[Buffer]) -> Plan:
    steps = plan.graph.body[part.first : part.last]
    made = {b.name for step in steps for b in written(step)} - {b.name for b in takes}
    inplace_reuse = {
        n: before for n, before in plan.inplace_reuse.items() if n in made and before in made
    }
    # No in-place reuse of another partition's result: such a buffer gets memory of its own.
    alone = {n for n in plan.inplace_reuse if n in made and n not in inplace_reuse}
    sizes, tells = _unbacked_across(plan, part)
    assert not (part.recorded and sizes), "a recording knows nothing of sizes that change"
    outputs = tuple(Output(ViewArg(b, b.shape, b.strides, ZERO)) for b in gives)
    numbers = tuple(Output(symbol) for symbol in tells)
    graph = KernelGraph((*sizes, *takes), plan.graph.constants, steps, (*numbers, *outputs))
    return replace(
        plan, graph=graph, inplace_reuse=inplace_reuse, call_allocated=plan.call_allocated | alone
    )


def _unbacked_across(plan: Plan, part: Range) -> tuple[list[Expr], list[Expr]]:
    """The unbacked sizes that this part takes from earlier ones, and those that it gives."""
    graph = plan.graph

    def known_after(steps: tuple[Any, ...]) -> set[Expr]:
        return {b.symbol for s in steps if isinstance(s, Extern) for b in s.binds}

    def used(steps: tuple[Any, ...]) -> set[Expr]:
        return {n for s in steps for n in used_in(s)} & graph.unbacked

    here, behind = graph.body[part.first : part.last], graph.body[part.last :]
    shown = {n for o in graph.outputs for n in roots(*sizes_of(o.value))}
    own = known_after(here)
    given, wanted = used(here) - own, own & (used(behind) | shown)
    return sorted(given, key=_name), sorted(wanted, key=_name)


def _name(symbol: Expr) -> str:
    return str(symbol.attr[0])


def _facts_of(
    facts: CallContext, calls: Sequence[KernelCall], partition_plan: PartitionPlan
) -> CallContext:
    """The context of one partition: its own segments and workspaces, and the numbers that it can
    compute. The driver has checked the inputs."""
    graph = partition_plan.plan.graph
    known = graph.unbacked.union(n for n in graph.inputs if isinstance(n, Expr))
    mine, all_names = (
        {name for k in numbers for one in calls[k].launches for name in one.arguments}
        for numbers in (partition_plan.kernels, range(len(calls)))
    )
    return replace(
        facts,
        computed={name: n for name, n in facts.computed.items() if roots(n) <= known},
        segments=tuple(_within(facts, partition_plan.kernels)),
        workspaces=tuple(b for b in facts.workspaces if b.name not in all_names - mine),
        config=replace(facts.config, size_asserts=False),
    )


def _within(facts: CallContext, kernels: frozenset[int]) -> list[Any]:
    """The segments of a partition, with kernels numbered from its own first one."""
    first = min(kernels, default=0)
    return [
        replace(s, batches=tuple(tuple(k - first for k in batch) for batch in s.batches))
        for s in facts.segments
        if kernels.issuperset(s.kernels)
    ]


def _driver(plan: Plan, whole: Body, facts: CallContext, parts: Sequence[Partition]) -> Body:
    """The partitions in order; a tensor that no later partition nor the caller needs is freed."""
    graph = plan.graph
    shown = [o.value.buffer for o in graph.outputs if isinstance(o.value, ViewArg)]
    dying = _dying(parts, {b.name for b in shown})
    unbacked = Unbacked(graph.unbacked)
    unbacked.wait_for(symbols_of(plan, facts.computed.values()), {})
    known = {b.name for b in (*graph.inputs, *graph.constants) if isinstance(b, Buffer)}
    steps: list[Step] = []
    for k, part in enumerate(parts):
        gives = tuple(_given(o.value) for o in part.body.outputs)
        made, _ = unbacked.known_after(n for n in gives if isinstance(n, Expr))
        steps.append(RunPartition(k, tuple(i.value for i in part.body.inputs), gives, made))
        steps += [Free(tuple(dying[k]))] if k in dying else []
        known |= {b.name for b in gives if isinstance(b, Buffer)}
    steps += [Allocate(b, OUTPUT) for b in dict.fromkeys(shown) if b.name not in known]
    return Body(whole.inputs, tuple(steps), graph.outputs)


def _given(value: Any) -> Buffer | Expr:
    return value.buffer if isinstance(value, ViewArg) else value


def _dying(parts: Sequence[Partition], shown: set[str]) -> dict[int, list[Buffer]]:
    last: dict[Buffer, int] = {}
    for k, part in enumerate(parts):
        gives = [o.value.buffer for o in part.body.outputs if isinstance(o.value, ViewArg)]
        last |= dict.fromkeys((*part.body.buffers, *gives), k)
    found: dict[int, list[Buffer]] = {}
    for buffer, k in last.items():
        if buffer.name not in shown:
            found.setdefault(k, []).append(buffer)
    return found
