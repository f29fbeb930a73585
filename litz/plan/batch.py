"""Which kernels may run at the same time: side by side in one launch, shared out over the threads.

In: a `KernelGraph` and, later, its `Plan`. Out: an order that brings independent kernels together,
and the batches of them. Example: an optimizer updates two hundred parameters of different sizes;
no update waits for another, and all of them are one batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from litz.ir.expr import Expr
from litz.ir.lifetimes import cuts
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, Plan, read, written
from litz.plan.order import Step, byte_size, dependencies, intermediates

# A number, or a few: as good a while later as right after it was written.
SMALL = 64
# Kernels of one launch: their arguments lie side by side on the stack.
MOST = 256


def gather_levels(graph: KernelGraph) -> KernelGraph:
    """Order each run of kernels by how many others they wait for.

        s0 = step0 + 1; p0 -= s0 * g0            s0 = step0 + 1; s1 = step1 + 1
        s1 = step1 + 1; p1 -= s1 * g1    ->      p0 -= s0 * g0;  p1 -= s1 * g1

    Only where what passes between kernels are single numbers: a large value is read best right
    after it was written, and makes room sooner.
    """
    if any(byte_size(buffer) > SMALL for buffer in intermediates(graph)):
        return graph
    held, body = graph.body[: graph.prepared], graph.body[graph.prepared :]
    levels = _levels(body)
    ordered: list[int] = []
    for is_kernel, run in groupby(range(len(body)), lambda k: isinstance(body[k], Kernel)):
        ordered += sorted(run, key=lambda k: levels[k] if is_kernel else 0)  # stable
    return replace(graph, body=(*held, *(body[k] for k in ordered)))


def _levels(body: tuple[Step, ...]) -> list[int]:
    """For each step, the longest chain of steps that must run before it."""
    found: list[int] = []
    for before in dependencies(body):
        found.append(1 + max((found[k] for k in before), default=0))
    return found


def batches(plan: Plan) -> Iterator[tuple[int, ...]]:
    """Runs of neighbouring kernels, by number, of which none touches what another one writes."""
    together: list[int] = []
    reads, writes = _Places(plan), _Places(plan)
    number, cut = 0, cuts(plan)
    for position, step in enumerate(plan.graph.body):
        given, made = read(step), written(step)
        apart = isinstance(step, Extern) or position == plan.graph.prepared or position in cut
        meets = writes.meet(given) or writes.meet(made) or reads.meet(made)
        if together and (apart or meets or len(together) == MOST):
            yield tuple(together)
            together, reads, writes = [], _Places(plan), _Places(plan)
        if isinstance(step, Kernel):
            together.append(number)
            number += 1
            reads.add(given)
            writes.add(made)
    if together:
        yield tuple(together)


class _Places:
    """Memory: buffers by name, and blocks of the arena, of which several buffers may share one."""

    def __init__(self, plan: Plan) -> None:
        self.slots, self.heirs = plan.slots, plan.heirs
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
        """The result of ATen's whose memory a buffer has inherited, or itself."""
        while name in self.heirs:
            name = self.heirs[name]
        return name

    def meet(self, buffers: list[Buffer]) -> bool:
        """Whether one of the buffers lies where one of these does."""
        return any(self._meets(b) for b in buffers)

    def _meets(self, buffer: Buffer) -> bool:
        slot = self.slots.get(buffer.name)
        if slot is None:
            return self._root(buffer.name) in self.names
        end = slot.offset + slot.bytes
        return any(
            unit is slot.unit and low < end and slot.offset < high
            for unit, low, high in self.blocks
        )
