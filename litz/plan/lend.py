"""Lend large intermediates memory for as long as they live, where an arena would keep too much.

In: a `Plan`. Out: the same plan, or one whose largest intermediates lie outside the arena: a call
allocates them and gives them back. The arena stays from call to call, which saves the page faults
of fresh memory; but an ATen call brings its own result, and while that lives the arena's bytes lie
idle beside it. Example: a U-Net joins 116 MB once, in the middle; its convolutions bring 39 MB each
at both ends. Lent, the 116 MB are gone when those arrive: the peak is 176 MB instead of 194.
"""

from __future__ import annotations

from litz.config import Config
from litz.ir.program import Buffer, Extern, KernelGraph, Plan, written
from litz.plan.arena import assign_slots
from litz.plan.order import byte_size

# Smaller ones are not worth an allocation.
LARGE = 8 << 20
# What a call's peak has to shrink by: fresh memory costs time, a page at a time.
WORTH = 0.05


def lend(plan: Plan, config: Config) -> Plan:
    """Large intermediates outside the arena, if the peak shrinks enough."""
    graph = plan.graph
    brought = [b for s in graph.body if isinstance(s, Extern) and not s.into for b in s.writes]
    if not brought or not config.allow_buffer_reuse:
        return plan
    sizes = {b: byte_size(b) for step in graph.body for b in written(step)}
    # Memory of another device costs no page faults.
    large = {b for b, n in sizes.items() if b.name in plan.slots and n >= LARGE and b.on_host}
    if not large:
        return plan
    other = assign_slots(graph, config, frozenset(large))
    return other if _peak(other, sizes) <= (1 - WORTH) * _peak(plan, sizes) else plan


def _peak(plan: Plan, sizes: dict[Buffer, int]) -> int:
    """The arena, and the most that lies beside it at one time."""
    first, last = _lives(plan)
    ends: dict[int, int] = {}
    begins: dict[int, int] = {}
    names = {b.name: n for b, n in sizes.items()}
    for name, start in first.items():
        begins[start] = begins.get(start, 0) + names[name]
        ends[last[name]] = ends.get(last[name], 0) + names[name]
    alive = peak = 0
    for k in range(len(plan.graph.body)):
        alive += begins.get(k, 0)
        peak = max(peak, alive)
        alive -= ends.get(k, 0)
    return plan.arena_bytes + peak


def _lives(plan: Plan) -> tuple[dict[str, int], dict[str, int]]:
    """From when to when memory outside the arena is needed; heirs prolong the life of theirs."""
    graph, uses = plan.graph, plan.last_use
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for k, step in enumerate(graph.body[graph.prepared :], graph.prepared):
        for b in written(step):
            if b.name in plan.slots or _is_given(b, graph):
                continue
            name = b.name
            while name in plan.heirs:
                name = plan.heirs[name]
            first.setdefault(name, k)
            last[name] = max(last.get(name, k), uses[b.name])
    return first, last


def _is_given(buffer: Buffer, graph: KernelGraph) -> bool:
    return buffer in graph.inputs or buffer in graph.held
