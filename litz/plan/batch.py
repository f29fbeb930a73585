"""Batches: independent kernels that run in one launch, shared by the threads.

In: a `KernelGraph` and, later, its `Plan`. Out: an order that brings independent kernels together,
and batches of them. Example: an optimizer updates two hundred parameters of different sizes; no
update depends on another, and all of them are one batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from litz.ir.expr import Expr
from litz.ir.lifetimes import cuts
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, Plan, read, written
from litz.plan.order import Step, byte_size, dependencies, intermediates

# A few numbers: they need not be read right after they were written.
SCALAR_BYTES = 64
# Kernels of one launch: their arguments are stored on the stack.
MAX_BATCH = 256


def order_by_level(graph: KernelGraph) -> KernelGraph:
    """Order each run of kernels by the number of others that they wait for.

        s0 = step0 + 1; p0 -= s0 * g0            s0 = step0 + 1; s1 = step1 + 1
        s1 = step1 + 1; p1 -= s1 * g1    ->      p0 -= s0 * g0;  p1 -= s1 * g1

    Only if kernels pass nothing but single numbers: a large value is best read right after it was
    written, and then freed sooner.
    """
    if any(byte_size(buffer) > SCALAR_BYTES for buffer in intermediates(graph)):
        return graph
    prepacked, body = graph.body[: graph.prepack_steps], graph.body[graph.prepack_steps :]
    levels = _levels(body)
    ordered: list[int] = []
    for is_kernel, run in groupby(range(len(body)), lambda k: isinstance(body[k], Kernel)):
        ordered += sorted(run, key=lambda k: levels[k] if is_kernel else 0)  # stable
    return replace(graph, body=(*prepacked, *(body[k] for k in ordered)))


def _levels(body: tuple[Step, ...]) -> list[int]:
    """For each step, the longest chain of steps that must run before it."""
    found: list[int] = []
    for before in dependencies(body):
        found.append(1 + max((found[k] for k in before), default=0))
    return found


def batches(plan: Plan) -> Iterator[tuple[int, ...]]:
    """Runs of consecutive kernels, by number, none of which touches memory another one writes."""
    together: list[int] = []
    reads, writes = _Footprint(plan), _Footprint(plan)
    number, cut = 0, cuts(plan)
    for position, step in enumerate(plan.graph.body):
        given, made = read(step), written(step)
        apart = isinstance(step, Extern) or position == plan.graph.prepack_steps or position in cut
        conflicts = writes.overlaps(given) or writes.overlaps(made) or reads.overlaps(made)
        if together and (apart or conflicts or len(together) == MAX_BATCH):
            yield tuple(together)
            together, reads, writes = [], _Footprint(plan), _Footprint(plan)
        if isinstance(step, Kernel):
            together.append(number)
            number += 1
            reads.add(given)
            writes.add(made)
    if together:
        yield tuple(together)


class _Footprint:
    """A set of memory: buffers by name, and blocks of the arena, which buffers may share."""

    def __init__(self, plan: Plan) -> None:
        self.slots, self.inplace_reuse = plan.slots, plan.inplace_reuse
        self.names: set[str] = set()
        self.blocks: list[tuple[Expr, int, int]] = []

    def add(self, buffers: list[Buffer]) -> None:
        for buffer in buffers:
            slot = self.slots.get(buffer.name)
            if slot is None:
                self.names.add(self._root(buffer.name))
            else:
                self.blocks.append((slot.unit, slot.offset, slot.offset + slot.bytes))

    def _root(self, name: str) -> str:
        """The ATen result whose memory a buffer reuses, or the buffer itself."""
        while name in self.inplace_reuse:
            name = self.inplace_reuse[name]
        return name

    def overlaps(self, buffers: list[Buffer]) -> bool:
        """Whether one of the buffers overlaps this memory."""
        return any(self._overlaps(b) for b in buffers)

    def _overlaps(self, buffer: Buffer) -> bool:
        slot = self.slots.get(buffer.name)
        if slot is None:
            return self._root(buffer.name) in self.names
        end = slot.offset + slot.bytes
        return any(
            unit is slot.unit and low < end and slot.offset < high
            for unit, low, high in self.blocks
        )
