"""Large intermediates are allocated per call where an arena would keep too much memory.

In: a `Plan`. Out: the same plan, or one whose largest intermediates are outside the arena: each
call allocates and frees them. The arena persists from call to call, which saves the page faults of
fresh memory; but an ATen call allocates its own result, and while that lives the arena's bytes are
idle. Example: a U-Net concatenates 116 MB once, in the middle; its convolutions allocate 39 MB each
at both ends. Allocated per call, the 116 MB are freed by then: the peak is 176 MB instead of 194.
"""

from __future__ import annotations

from litz.config import Config
from litz.ir.program import Buffer, Extern, Plan, written
from litz.plan.arena import assign_slots
from litz.plan.order import byte_size

# Smaller intermediates are not worth an allocation.
MIN_CALL_ALLOCATED_BYTES = 8 << 20
# The least saving of a call's peak: fresh memory costs page faults.
MIN_PEAK_SAVING = 0.05


def allocate_large_per_call(plan: Plan, config: Config) -> Plan:
    """Move large intermediates out of the arena, if that lowers the peak enough."""
    graph = plan.graph
    extern_owned = [b for s in graph.body if isinstance(s, Extern) and not s.into for b in s.writes]
    if not extern_owned or not config.allow_buffer_reuse:
        return plan
    sizes = {b: byte_size(b) for step in graph.body for b in written(step)}
    # Device memory has no page faults.
    large = {
        b
        for b, n in sizes.items()
        if b.name in plan.slots and n >= MIN_CALL_ALLOCATED_BYTES and b.on_host
    }
    if not large:
        return plan
    other = assign_slots(graph, config, frozenset(large))
    return other if _peak(other, sizes) <= (1 - MIN_PEAK_SAVING) * _peak(plan, sizes) else plan


def _peak(plan: Plan, sizes: dict[Buffer, int]) -> int:
    """The arena, plus the most memory outside it at one time."""
    first, last = _live_ranges(plan)
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


def _live_ranges(plan: Plan) -> tuple[dict[str, int], dict[str, int]]:
    """The first and last use of memory outside the arena; in-place reuse prolongs its life."""
    graph, uses = plan.graph, plan.last_use
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    given = {*graph.inputs, *graph.prepacked}
    for k, step in enumerate(graph.body[graph.prepack_steps :], graph.prepack_steps):
        for b in written(step):
            if b.name in plan.slots or b in given:
                continue
            name = b.name
            while name in plan.inplace_reuse:
                name = plan.inplace_reuse[name]
            first.setdefault(name, k)
            last[name] = max(last.get(name, k), uses[b.name])
    return first, last
