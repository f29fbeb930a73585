"""Placement of intermediates in one arena.

In: an ordered `KernelGraph`. Out: `Plan` with a slot for every intermediate. Buffers whose size is
a multiple of the same symbolic size share a region, which counts in that unit. In each region, a
buffer takes the smallest free block that fits. In-place reuse: a kernel that reads a dying buffer
only where it writes takes over that buffer's memory, in the arena or from an ATen call.
"""

from __future__ import annotations

from bisect import bisect_left, insort
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
from litz.plan.order import byte_size, intermediates, never_written, unbacked_buffers

ALIGNMENT = 64
# Bytes after each intermediate that must not be written (`debug_poison_memory`).
REDZONE = 64
# Calls whose result is large and never aliases other memory.
FRESH_RESULT_OPS = (
    "aten.convolution.", "aten.mm.", "aten.addmm.", "mkldnn._convolution_pointwise.",
    "mkldnn._convolution_transpose_pointwise.",
)  # fmt: skip


class Arena:
    """Free blocks by offset and by size; adjacent blocks are merged."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []  # (offset, bytes), in order
        self.sizes: list[tuple[int, int]] = []  # (bytes, offset) of the same blocks, in order
        self.size = 0

    def take(self, size: int) -> Slot:
        """The smallest block that fits, or fresh bytes at the end."""
        size = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        fitting = bisect_left(self.sizes, (size, 0))
        if fitting == len(self.sizes):
            return self._grow(size)
        n, offset = self.sizes[fitting]
        self._remove(bisect_left(self.free, (offset, n)))
        if n > size:
            self._add(offset + size, n - size)
        return Slot(offset, size)

    def _grow(self, size: int) -> Slot:
        start = self.size
        if self.free and sum(self.free[-1]) == self.size:
            start, _ = self._remove(len(self.free) - 1)
        self.size = start + size
        return Slot(start, size)

    def give(self, slot: Slot) -> None:
        self._add(slot.offset, slot.bytes)

    def _remove(self, place: int) -> tuple[int, int]:
        offset, size = self.free.pop(place)
        del self.sizes[bisect_left(self.sizes, (size, offset))]
        return offset, size

    def _add(self, offset: int, size: int) -> None:
        place = bisect_left(self.free, (offset, size))
        if place < len(self.free) and self.free[place][0] == offset + size:
            size += self._remove(place)[1]
        if place and sum(self.free[place - 1]) == offset:
            place -= 1
            before = self._remove(place)
            offset, size = before[0], before[1] + size
        self.free.insert(place, (offset, size))
        insort(self.sizes, (size, offset))


def assign_slots(
    graph: KernelGraph, config: Config, call_allocated: frozenset[Buffer] = frozenset()
) -> Plan:
    """Walk the steps; free dying buffers, place new ones. No slot for buffers that are allocated by
    the call: those in `call_allocated`, those of unbacked size, those that are never written, and
    those that an op may keep: these live as long as Python references them, and their memory is
    never written again."""
    kept = {b for call in graph.externs for b in call.kept}
    call_allocated = (
        call_allocated
        | unbacked_buffers(graph)
        | (kept & intermediates(graph))
        | set(never_written(graph))
    )
    placed = intermediates(graph) - call_allocated
    last: dict[Buffer, int] = {}
    for k, step in enumerate(graph.body):
        for b in (*read(step), *written(step)):
            last[b] = k
    arenas: dict[Expr, Arena] = {ONE: Arena()}
    extern_owned, inplace_reuse = (_extern_owned(graph) | call_allocated) - kept, dict[str, str]()
    slots: dict[str, Slot] = {}
    for k, step in enumerate(graph.body):
        dying = [b for b in dict.fromkeys((*read(step), *written(step))) if last[b] == k]
        dying = [b for b in dying if b in placed or b in extern_owned]
        taken: set[Buffer] = set()
        read_at = _read_at(step) if config.inplace_buffers else {}
        for b in written(step):
            if b not in placed or b.name in slots or b.name in inplace_reuse:
                continue
            donor = _inplace_donor(step, b, [old for old in dying if old not in taken], read_at)
            if donor is not None and donor.name in slots:
                taken.add(donor)
                slots[b.name] = slots[donor.name]
            elif donor is not None and _same_layout(donor, b):
                taken.add(donor)
                inplace_reuse[b.name] = donor.name
                extern_owned.add(b)
            else:
                size, unit = content(to_poly(extent_bytes(b)))
                size += REDZONE if config.debug_poison_memory else 0
                slots[b.name] = replace(arenas.setdefault(unit, Arena()).take(size), unit=unit)
        if config.allow_buffer_reuse:
            for b in dying:
                if b not in taken and b.name in slots:
                    arenas[slots[b.name].unit].give(slots[b.name])
    total = sum(-(-byte_size(b) // ALIGNMENT) * ALIGNMENT for b in placed)
    regions = tuple((unit, arena.size) for unit, arena in arenas.items())
    size = sum(unit.hint * size for unit, size in regions)
    call_allocated_names = frozenset(b.name for b in call_allocated)
    return Plan(graph, slots, size, regions, total, inplace_reuse, call_allocated_names)


def _extern_owned(graph: KernelGraph) -> set[Buffer]:
    """Results of ATen calls that own their memory alone and that the caller does not see."""
    shown = {o.value.buffer for o in graph.outputs if isinstance(o.value, ViewArg)}
    calls = [s for s in graph.body[graph.prepack_steps :] if isinstance(s, Extern)]
    fresh = [s for s in calls if s.single and not s.into and s.target.startswith(FRESH_RESULT_OPS)]
    return {b for s in fresh for b in s.outputs if b is not None} - shown


def _same_layout(one: Buffer, other: Buffer) -> bool:
    return (one.shape, one.strides, one.dtype) == (other.shape, other.strides, other.dtype)


def _read_at(step: Kernel | Extern) -> dict[Buffer, set[Expr]]:
    """Where a kernel with a single pointwise phase reads its operands; empty for other steps."""
    if not isinstance(step, Kernel) or len(step.phases) != 1 or step.phases[0].is_reduction:
        return {}
    found: dict[Buffer, set[Expr]] = {}
    for node in loads(*exprs_of(step)):
        found.setdefault(node.buffer, set()).add(flat_index(node.buffer, node.index))
    return found


def _inplace_donor(
    step: Kernel | Extern, made: Buffer, dying: list[Buffer], read_at: dict[Buffer, set[Expr]]
) -> Buffer | None:
    """A dying operand, each element of which is read only where `made` is written."""
    if not isinstance(step, Kernel):
        return None
    place = next(flat_index(s.buffer, s.index) for s in step.stores if s.buffer == made)
    for old in dying:
        if old == made or old.dtype.bytes != made.dtype.bytes:
            continue
        if extent_bytes(old) is extent_bytes(made) and read_at.get(old) == {place}:
            return old
    return None
