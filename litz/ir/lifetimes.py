"""Lifetimes: which inputs die inside a call, and where runs of kernels are cut because of it.

In: a `Plan`. Out: steps of its body, by position. Example: a backward graph reads an activation in
its third step and never again; its memory is freed before the gradient of the fourth is allocated.
"""

from __future__ import annotations

from litz.ir.program import Buffer, Kernel, Plan, ViewArg, buffer_bytes, written

# Bytes of an input that are worth a line to free it, and to be freed before kernels go on.
LARGE_INPUT = 1 << 16
WORTH_A_CUT = 1 << 20


def dying_inputs(plan: Plan) -> dict[int, list[Buffer]]:
    """After each step, large inputs that nothing needs any more, as activations that were saved for
    a backward graph: whoever calls it has let go of them. Parameters live on."""
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
    """Steps before which a run of kernels ends, so that inputs are freed before memory for outputs
    is taken: a backward graph would else hold all activations and all gradients at once."""
    body, dying = plan.graph.body, dying_inputs(plan)
    shown = {o.value.buffer for o in plan.graph.outputs if isinstance(o.value, ViewArg)}
    made = [sum(buffer_bytes(b) for b in written(step) if b in shown) for step in body]
    to_come, freed = sum(made), 0
    found = set()
    for position, step in enumerate(body):
        if isinstance(step, Kernel) and min(freed, to_come) >= WORTH_A_CUT:
            found.add(position)
            freed = 0
        to_come -= made[position]
        freed += sum(map(buffer_bytes, dying.get(position, ())))
    return frozenset(found)
