"""Place intermediates in one arena.

In: an ordered `KernelGraph`. Out: `Plan` with a slot for every intermediate. What is so many bytes
times the same symbolic size has a region of its own, in which that size is the unit. In each, a
buffer takes the smallest free block that holds it; a kernel that reads a dying buffer only where it
writes takes that buffer's place outright, be it in the arena or memory that an ATen call brought.
"""

from __future__ import annotations

from dataclasses import replace

from litz.config import Config
from litz.ir.expr import Expr
from litz.ir.index import ONE, flat_index, to_poly
from litz.ir.program import (
    Buffer,
    Extern,
    Kernel,
    KernelGraph,
    Plan,
    Slot,
    ViewArg,
    exprs_of,
    loads,
    read,
    written,
)
from litz.ir.sizes import content, extent_bytes
from litz.plan.order import byte_size, intermediates, never_written, sized_late

ALIGNMENT = 64
# Bytes behind each intermediate that nobody may write (`debug_poison_memory`).
GUARD = 64
# Calls whose result is large and certainly shares memory with nothing.
FRESH = ("aten.convolution.", "mkldnn._convolution_pointwise.", "aten.mm.", "aten.addmm.",
         "mkldnn._convolution_transpose_pointwise.")  # fmt: skip


class Arena:
    """Free blocks by offset; neighbours grow together again."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []  # (offset, bytes), by offset
        self.size = 0

    def take(self, size: int) -> Slot:
        """The smallest block that fits, or fresh bytes at the end."""
        size = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        fitting = [(n, o) for o, n in self.free if n >= size]
        if not fitting:
            return self._grow(size)
        n, offset = min(fitting)
        self.free.remove((offset, n))
        if n > size:
            self._add(offset + size, n - size)
        return Slot(offset, size)

    def _grow(self, size: int) -> Slot:
        start = self.size
        if self.free and sum(self.free[-1]) == self.size:
            start, _ = self.free.pop()
        self.size = start + size
        return Slot(start, size)

    def give(self, slot: Slot) -> None:
        self._add(slot.offset, slot.bytes)

    def _add(self, offset: int, size: int) -> None:
        self.free.append((offset, size))
        self.free.sort()
        merged: list[tuple[int, int]] = []
        for o, n in self.free:
            if merged and sum(merged[-1]) == o:
                merged[-1] = (merged[-1][0], merged[-1][1] + n)
            else:
                merged.append((o, n))
        self.free = merged


def assign_slots(graph: KernelGraph, config: Config, lent: frozenset[Buffer] = frozenset()) -> Plan:
    """Walk the steps; give back what dies, place what is born. What is `lent` memory by the call
    has no slot; so it is with what is as large as a call of the graph tells, with what has no
    elements at all, and with what somebody may keep: that lives as long as Python says, and its
    memory is never written again."""
    kept = {b for call in graph.externs for b in call.kept}
    lent = lent | sized_late(graph) | (kept & intermediates(graph)) | set(never_written(graph))
    placed = intermediates(graph) - lent
    last: dict[Buffer, int] = {}
    for k, step in enumerate(graph.body):
        for b in (*read(step), *written(step)):
            last[b] = k
    arenas: dict[Expr, Arena] = {ONE: Arena()}
    brought, heirs = (_brought(graph) | lent) - kept, dict[str, str]()
    slots: dict[str, Slot] = {}
    for k, step in enumerate(graph.body):
        dying = [b for b in dict.fromkeys((*read(step), *written(step))) if last[b] == k]
        dying = [b for b in dying if b in placed or b in brought]
        taken: set[Buffer] = set()
        read_at = _read_at(step) if config.inplace_buffers else {}
        for b in written(step):
            if b not in placed or b.name in slots or b.name in heirs:
                continue
            heir = _replaced(step, b, [old for old in dying if old not in taken], read_at)
            if heir is not None and heir.name in slots:
                taken.add(heir)
                slots[b.name] = slots[heir.name]
            elif heir is not None and _same_layout(heir, b):
                taken.add(heir)
                heirs[b.name] = heir.name
                brought.add(b)
            else:
                size, unit = content(to_poly(extent_bytes(b)))
                size += GUARD if config.debug_poison_memory else 0
                slots[b.name] = replace(arenas.setdefault(unit, Arena()).take(size), unit=unit)
        if config.allow_buffer_reuse:
            for b in dying:
                if b not in taken and b.name in slots:
                    arenas[slots[b.name].unit].give(slots[b.name])
    total = sum(-(-byte_size(b) // ALIGNMENT) * ALIGNMENT for b in placed)
    regions = tuple((unit, arena.size) for unit, arena in arenas.items())
    size = sum(unit.hint * size for unit, size in regions)
    lent_names = frozenset(b.name for b in lent)
    return Plan(graph, slots, size, regions, total, heirs, lent_names)


def _brought(graph: KernelGraph) -> set[Buffer]:
    """Results of ATen calls, each alone in memory of its own, that the caller does not see."""
    shown = {o.value.buffer for o in graph.outputs if isinstance(o.value, ViewArg)}
    calls = [s for s in graph.body[graph.prepared :] if isinstance(s, Extern)]
    fresh = [s for s in calls if s.single and not s.into and s.target.startswith(FRESH)]
    return {b for s in fresh for b in s.outputs if b is not None} - shown


def _same_layout(one: Buffer, other: Buffer) -> bool:
    return (one.shape, one.strides, one.dtype) == (other.shape, other.strides, other.dtype)


def _read_at(step: Kernel | Extern) -> dict[Buffer, set[Expr]]:
    """Where a kernel that does everything at once reads its operands; nothing of any other step."""
    if not isinstance(step, Kernel) or len(step.phases) != 1 or step.phases[0].is_reduction:
        return {}
    found: dict[Buffer, set[Expr]] = {}
    for node in loads(*exprs_of(step)):
        found.setdefault(node.buffer, set()).add(flat_index(node.buffer, node.index))
    return found


def _replaced(
    step: Kernel | Extern, made: Buffer, dying: list[Buffer], read_at: dict[Buffer, set[Expr]]
) -> Buffer | None:
    """A dying operand whose every element is read only where `made` is then written."""
    if not isinstance(step, Kernel):
        return None
    place = next(flat_index(s.buffer, s.index) for s in step.stores if s.buffer == made)
    for old in dying:
        if old == made or old.dtype.bytes != made.dtype.bytes:
            continue
        if extent_bytes(old) is extent_bytes(made) and read_at.get(old) == {place}:
            return old
    return None
