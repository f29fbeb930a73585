"""Stage 8: everything that a call will do, as one frozen value.

In: a `Plan` and the launches of its kernels. Out: `CallPlan`: the checks of inputs, the layout of
the table, segments of kernels, and the steps of a call in order. The native driver, the Python
wrapper and the CUDA graphs are printed from that value.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from litz.call.opaque_operands import with_opaque_operands
from litz.call.partitions import partitions
from litz.call.recording import recording_of
from litz.call.segments import prepack_of, segments
from litz.call.steps import CallContext, body_of
from litz.config import Config
from litz.ir.call_plan import (
    Body,
    CallPlan,
    KernelCall,
    Partition,
    Recording,
    moves,
)
from litz.ir.expr import Expr
from litz.ir.lifetimes import cuts
from litz.ir.program import Buffer, Plan, Slot, read, written
from litz.ir.source import DeviceSource, Source
from litz.target import Target
from litz.trace import stage


@stage("call", "what a call does, as data")
def plan_call(
    plan: Plan, source: Source | DeviceSource, constants: dict[str, torch.Tensor], config: Config,
    target: Target, frozen: Collection[str] = (),
) -> CallPlan:  # fmt: skip
    """Lay out the table, cut the kernels into segments, and put the steps in order. `frozen` names
    the parameters that became constants."""
    plan, opaque = with_opaque_operands(plan)
    cut = frozenset[int]() if target.caching_allocator else cuts(plan)
    computed = computed_numbers(source.calls)
    table = table_of(plan, source.workspaces, computed, source.reserved)
    first, functions = source.reserved + len(table), source.functions if source.has_handles else ()
    handles = {name: first + 2 * k for k, name in enumerate(functions)}
    prepack = prepack_of(plan)
    runs = segments(plan, cut)
    facts = CallContext(
        table, computed, runs, cut, target.device, not target.caching_allocator, source.workspaces,
        source.counters, prepack, frozenset(frozen), constants, config,
    )  # fmt: skip
    body, used = body_of(plan, facts)
    recording = (
        recording_of(plan.graph, target.device, config) if target.supports_cudagraphs else None
    )
    recorded = _recorded(plan, body, facts, source.calls, recording)
    return CallPlan(
        target.device, source.calls, runs, body, used, prepack, table, computed, handles,
        _intermediates(plan), plan.regions, plan.arena_bytes, plan.unplanned_bytes, source.sites,
        opaque, recording, recorded.driver, recorded.partitions, plan.graph.decisions,
    )  # fmt: skip


@dataclass(frozen=True)
class _Recorded:
    driver: Body | None = None
    partitions: tuple[Partition, ...] = ()


def _recorded(
    plan: Plan, body: Body, facts: CallContext, calls: tuple[KernelCall, ...],
    recording: Recording | None,
) -> _Recorded:  # fmt: skip
    """The partitions of a graph that is recorded, but not whole."""
    if recording is None or not recording.recorded:
        return _Recorded()
    if recording.whole and not recording.returns_input_alias:
        return _Recorded()
    return _Recorded(*partitions(plan, body, facts, calls, recording.ranges))


def computed_numbers(calls: tuple[KernelCall, ...]) -> dict[str, Expr]:
    """The numbers that kernels need and a call computes: sizes, and the tasks and work of each
    launch."""
    launches = [launch for kernel in calls for launch in kernel.launches]
    found = {f"size {symbol.attr[0]}": symbol for one in launches for symbol in one.sizes}
    for k, launch in enumerate(launches):
        if not launch.tasks.is_const:
            found[f"tasks {k}"] = launch.tasks
        if not launch.work.is_const:
            found[f"work {k}"] = launch.work
    return found


def table_of(
    plan: Plan, workspaces: tuple[Buffer, ...], computed: dict[str, Expr], first: int
) -> dict[str, int]:
    """The table's entries: for each buffer outside the arena that a kernel or the caller touches,
    for each arena slot whose address depends on sizes, and for each number that a call computes."""
    buffers = dict.fromkeys(b.name for b in (*plan.outside, *workspaces))
    moving = [name for name, slot in plan.slots.items() if moves(slot)]
    return {name: first + k for k, name in enumerate((*buffers, *moving, *computed))}


def _intermediates(plan: Plan) -> tuple[tuple[Buffer, Slot], ...]:
    touched = {b.name: b for s in plan.graph.body for b in (*read(s), *written(s))}
    return tuple((touched[name], slot) for name, slot in plan.slots.items())


__all__ = ["plan_call"]
