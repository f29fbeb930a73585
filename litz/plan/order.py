"""The order of steps with low peak memory.

In: `KernelGraph`. Out: the same steps, reordered if that lowers the peak. A greedy walk takes, of
the steps that are ready, the one that leaves the fewest bytes alive; the given order wins ties.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import replace

from litz.ir.expr import Expr
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, ViewArg, read, written
from litz.ir.sizes import extent_bytes, of_buffer, used_in

Step = Kernel | Extern
# With more steps, the walk costs more than a lower peak is worth.
MAX_ORDERED_STEPS = 2000


def order_steps(graph: KernelGraph) -> KernelGraph:
    """The better of the given order and the greedy one."""
    if len(graph.body) > MAX_ORDERED_STEPS or len(graph.body) < 3:
        return graph
    greedy = graph.body[: graph.prepack_steps] + _greedy(graph)
    if peak_bytes(greedy, graph) < peak_bytes(graph.body, graph):
        return replace(graph, body=greedy)
    return graph


def byte_size(buffer: Buffer) -> int:
    """The size in bytes; an estimate for symbolic sizes."""
    return extent_bytes(buffer).hint


def intermediates(graph: KernelGraph) -> set[Buffer]:
    """Buffers that exist only while the graph runs."""
    outside = {b for b in (*graph.inputs, *graph.constants) if isinstance(b, Buffer)}
    outside |= {o.value.buffer for o in graph.outputs if isinstance(o.value, ViewArg)}
    made = {b for step in graph.body if writes_into_given_memory(step) for b in written(step)}
    return made - outside - set(graph.prepacked)


def unbacked_buffers(graph: KernelGraph) -> frozenset[Buffer]:
    """Intermediates of unbacked size: an arena that is laid out before the first step has no place
    for them."""
    if not graph.unbacked:
        return frozenset()
    return frozenset(b for b in intermediates(graph) if graph.unbacked & of_buffer(b))


def never_written(graph: KernelGraph) -> list[Buffer]:
    """Empty buffers that an ATen call reads: no loop writes them, but the call needs tensors."""
    known = {b for b in (*graph.inputs, *graph.constants) if isinstance(b, Buffer)}
    known.update(o.value.buffer for o in graph.outputs if isinstance(o.value, ViewArg))
    known.update(b for step in graph.body for b in written(step))
    return [b for step in graph.body for b in read(step) if b not in known]


def writes_into_given_memory(step: Step) -> bool:
    """An ATen op without an out= form allocates its results; all other steps get memory."""
    return isinstance(step, Kernel) or step.into


def peak_bytes(body: tuple[Step, ...], graph: KernelGraph) -> int:
    """The most bytes of intermediates alive at one time."""
    counted = intermediates(graph)
    last = {b: k for k, step in enumerate(body) for b in (*read(step), *written(step))}
    alive = peak = 0
    born: set[Buffer] = set()
    for k, step in enumerate(body):
        made = {b for b in written(step) if b in counted} - born
        born |= made
        alive += sum(byte_size(b) for b in made)
        peak = max(peak, alive)
        used = {b for b in (*read(step), *written(step)) if b in counted and last[b] == k}
        alive -= sum(byte_size(b) for b in used)
    return peak


def dependencies(body: tuple[Step, ...]) -> list[set[int]]:
    """For each step, the steps that must run before it: producers of its operands, readers of
    buffers that it updates and, for a call with a side effect, the previous such call."""
    makers: dict[Buffer, list[int]] = defaultdict(list)
    readers: dict[Buffer, list[int]] = defaultdict(list)
    result: list[set[int]] = []
    last_effect: int | None = None
    binders: dict[Expr, list[int]] = defaultdict(list)  # the calls that bind or check a size
    for k, step in enumerate(body):
        before: set[int] = set()
        if isinstance(step, Extern):
            for binding in step.binds:
                binders[binding.symbol].append(k)
        if binders:
            used = used_in(step)
            before.update(j for n in used for j in binders.get(n, ()))
            for n in used if isinstance(step, Extern) and step.checks else ():
                binders[n].append(k)
        if isinstance(step, Extern) and step.has_effect:
            before.update(() if last_effect is None else (last_effect,))
            last_effect = k
        for b in read(step):
            before.update(makers[b])
        for b in written(step):
            before.update(readers[b])
            before.update(makers[b])
        before.discard(k)
        result.append(before)
        for b in read(step):
            readers[b].append(k)
        for b in written(step):
            makers[b].append(k)
    return result


def _greedy(graph: KernelGraph) -> tuple[Step, ...]:
    body = graph.body[graph.prepack_steps :]
    counted = intermediates(graph)
    waits = [set(d) for d in dependencies(body)]
    followers: dict[int, list[int]] = defaultdict(list)
    for k, before in enumerate(waits):
        for j in before:
            followers[j].append(k)
    uses: dict[Buffer, int] = defaultdict(int)
    for step in body:
        for b in read(step):
            uses[b] += 1

    def growth(k: int) -> int:
        made = sum(byte_size(b) for b in written(body[k]) if b in counted)
        freed = sum(byte_size(b) for b in read(body[k]) if b in counted and uses[b] == 1)
        return made - freed

    ready = [(growth(k), k) for k, before in enumerate(waits) if not before]
    heapq.heapify(ready)
    order: list[Step] = []
    while ready:
        noted, k = heapq.heappop(ready)
        if growth(k) != noted:  # another step freed a shared operand: push it again
            heapq.heappush(ready, (growth(k), k))
            continue
        order.append(body[k])
        for b in read(body[k]):
            uses[b] -= 1
        for j in followers[k]:
            waits[j].discard(k)
            if not waits[j]:
                heapq.heappush(ready, (growth(j), j))
    return tuple(order)
