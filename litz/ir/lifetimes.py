"""Lifetimes: which inputs die inside a call, and where segments of kernels are cut because of it.

In: a `Plan`. Out: positions of steps in its body. Example: a backward graph reads an activation for
the last time in its third step; its memory is freed before the gradient of the fourth is allocated.
"""

from __future__ import annotations

from litz.ir.program import Buffer, Kernel, Plan, ViewArg, buffer_bytes, written

# The least bytes of an input that is freed at all, and of inputs that are worth cutting a segment.
LARGE_INPUT = 1 << 16
MIN_FREED_BYTES = 1 << 20


def dying_inputs(plan: Plan) -> dict[int, list[Buffer]]:
    """After each step, the large inputs that no later step needs, for example activations saved for
    a backward graph, which its caller no longer holds. Parameters live on."""
    graph = plan.graph
    shown = {o.value.buffer.name for o in graph.outputs if isinstance(o.value, ViewArg)}
    given = {b.name: b for b in graph.inputs if isinstance(b, Buffer) and b not in graph.static}
    found: dict[int, list[Buffer]] = {}
    for name, position in plan.last_use.items():
        buffer = given.get(name)
        if buffer is not None and name not in shown and buffer_bytes(buffer) >= LARGE_INPUT:
            found.setdefault(position, []).append(buffer)
    return found


def cuts(plan: Plan) -> frozenset[int]:
    """Steps before which a segment of kernels ends, so that inputs are freed before outputs are
    allocated: otherwise a backward graph would hold all activations and all gradients at once."""
    body, dying = plan.graph.body, dying_inputs(plan)
    shown = {o.value.buffer for o in plan.graph.outputs if isinstance(o.value, ViewArg)}
    made = [sum(buffer_bytes(b) for b in written(step) if b in shown) for step in body]
    to_come, freed = sum(made), 0
    found = set()
    for position, step in enumerate(body):
        if isinstance(step, Kernel) and min(freed, to_come) >= MIN_FREED_BYTES:
            found.add(position)
            freed = 0
        to_come -= made[position]
        freed += sum(map(buffer_bytes, dying.get(position, ())))
    return frozenset(found)
