"""A tile of attention: what a task keeps on the stack, how queries come in and means go out.

In: a `ScheduledKernel` with a `Streaming`. Out: `TileEmitter`, the part of the emitter that does
not stream. Query rows are in lanes: vector v of queries[d] holds element d of sixteen rows, so rows
are turned on the way in and on the way out, in squares of as many rows as lanes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.emit import POINTER, KernelEmitter
from litz.codegen.llvm.ops import computed_type, convert
from litz.codegen.llvm.scope import I64
from litz.codegen.llvm.tiles import transposed
from litz.ir.attention import Attention, kernel_attention, steps_along
from litz.ir.expr import Expr
from litz.ir.scheduled import ScheduledKernel, Streaming


class TileEmitter(KernelEmitter):
    """The memory of a tile, and its ways in and out."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        found, by = kernel_attention(self.kernel), self.choice.attention
        assert found is not None and by is not None
        self.a: Attention = found
        self.by: Streaming = by
        self.dtype = found.dot.dtype
        self.vector = computed_type(self.dtype, by.lanes)
        (self.store,) = self.kernel.stores
        self.heads = tuple(
            x for x in self.kernel.outer if x is not found.row and x is not found.width
        )
        self.queries = self._memory("queries", by.depth * by.vectors)
        self.weights = self._memory("weights", by.block * by.vectors)
        self.mixed = self._memory("mixed", by.width * by.vectors)
        self.top = self._memory("top", by.vectors)
        self.total = self._memory("total", by.vectors)
        self.fade = self._memory("fade", by.vectors)

    # -- memory ------------------------------------------------------------------------------

    def _memory(self, name: str, vectors: int) -> Value:
        """Vectors on the stack."""
        slot = Value(f"%{self.b.fresh(name)}", POINTER)
        size = f"[{vectors} x {self.vector}], align 64"
        self.scopes.stack[0].lines.insert(1, f"  {slot.text} = alloca {size}")
        return slot

    def _at(self, memory: Value, number: Value | int) -> Value:
        place = number if isinstance(number, Value) else self._number(number)
        return self.b.emit(f"getelementptr inbounds {self.vector}, {memory}, {place}", POINTER)

    def _get(self, memory: Value, number: Value | int) -> Value:
        return self.b.emit(f"load {self.vector}, {self._at(memory, number)}", self.vector)

    def _put(self, memory: Value, number: Value | int, value: Value) -> None:
        self.b.lines.append(f"  store {value}, {self._at(memory, number)}")

    def _clear(self) -> None:
        """Rows that have seen nothing yet."""
        b, by = self.b, self.by
        zero = b.constant(0.0, self.vector)
        for v in range(by.vectors):
            self._put(self.top, v, b.constant(-math.inf, self.vector))
            self._put(self.total, v, zero)
        end = self._number(by.width * by.vectors)
        place = self.scopes.open_loop(self._number(0), end, 1)
        self._put(self.mixed, place, zero)
        self.scopes.close()

    # -- places ------------------------------------------------------------------------------

    def _bind_heads(self, number: Value) -> None:
        """Read the axes of heads off their number, the last one fastest."""
        level = self.scopes.depth
        for k, x in enumerate(reversed(self.heads)):
            last = k == len(self.heads) - 1
            digit = number if last else self._digit(number, x.extent.number)
            number = number if last else self.b.emit(f"udiv {number}, {x.extent.number}", I64)
            self.values.axis_level[x] = level
            self.scopes.bind(level, x, digit)

    def _walked(self, index: Expr, *axes: Expr) -> tuple[Value, list[int]]:
        """Where a head's part begins, in elements, and the steps along axes from there."""
        found = steps_along(index, axes)
        assert found is not None  # `attention_in` has looked
        return self.values.value(found[1]), found[0]

    def _mask(self, count: int) -> Value | None:
        """The first lanes; None if that is all."""
        if count == self.by.lanes:
            return None
        bits = ", ".join(f"i1 {int(k < count)}" for k in range(self.by.lanes))
        return Value(f"<{bits}>", Type("i1", self.by.lanes))

    def _vectors(self) -> Iterator[tuple[Value, int]]:
        """Loops over the vectors of a tile: each, and how many of its lanes are rows."""
        by = self.by
        tail = by.rows % by.lanes if by.rows < by.tile else 0
        whole = by.vectors - (tail > 0)
        if whole:
            yield self.scopes.open_loop(self._number(0), self._number(whole), 1, rolled=True), 0
            self.scopes.close()
        if tail:
            yield self._number(whole), tail

    def _squares(self, n: int) -> Iterator[tuple[Value, int]]:
        """Loops over columns, as many as lanes at a time: the first, and how many there are."""
        whole = n - n % self.by.lanes
        if whole:
            yield (
                self.scopes.open_loop(
                    self._number(0), self._number(whole), self.by.lanes, rolled=True
                ),
                self.by.lanes,
            )
            self.scopes.close()
        if whole < n:
            yield self._number(whole), n - whole

    # -- rows in and out ---------------------------------------------------------------------

    def _read_queries(self, first: Value) -> None:
        """queries[d, row], from wherever the rows lie."""
        b, by, query = self.b, self.by, self.a.query
        base, (step, along) = self._walked(query.index[0], self.a.row, self.a.depth)
        for v, tail in self._vectors():
            rows = tail or by.lanes
            origin = b.add(base, b.mul(b.add(first, b.mul(v, by.lanes)), step))
            for d, wide in self._squares(by.depth):
                start = b.add(origin, b.mul(d, along))
                lines = []
                for r in range(by.lanes):  # lanes behind the last row read it again
                    place = b.add(start, min(r, rows - 1) * step)
                    lines.append(self._line(query, place, along, wide))
                place = b.add(b.mul(d, by.vectors), v)
                for k, vector in enumerate(transposed(b, lines)[:wide]):
                    self._put(self.queries, b.add(place, k * by.vectors), vector)

    def _line(self, node: Expr, place: Value, along: int, wide: int) -> Value:
        """Neighbours along a row, as they are computed with."""
        memory, mask = self.values.memory, self._mask(wide)
        if along == 1:
            read = memory.neighbours(node, place, mask)
        else:
            read = memory.strided(node, place, along, mask)
        return convert(self.b, read, node.dtype, self.dtype)

    def _write_means(self, first: Value) -> None:
        """out[row, e] = mixed[e, row] / total[row]"""
        b, by, a = self.b, self.by, self.a
        base, (step, along) = self._walked(self.store.index[0], a.row, a.width)
        for v, tail in self._vectors():
            share = b.div(b.constant(1.0, self.vector), self._total(v))
            origin = b.add(base, b.mul(b.add(first, b.mul(v, by.lanes)), step))
            for e, wide in self._squares(by.width):
                place = b.add(b.mul(e, by.vectors), v)
                lines = [
                    b.mul(self._get(self.mixed, b.add(place, min(k, wide - 1) * by.vectors)), share)
                    for k in range(by.lanes)
                ]
                start = b.add(origin, b.mul(e, along))
                for r, line in enumerate(transposed(b, lines)[: tail or by.lanes]):
                    value = convert(b, line, self.dtype, self.store.buffer.dtype)
                    row = b.add(start, r * step)
                    self.values.memory.put(self.store.buffer, row, along, value, wide)

    def _total(self, v: Value) -> Value:
        """What a row's weights add up to. One that has none divides by one if it shall give zeros,
        and zero by zero if not."""
        b, total = self.b, self._get(self.total, v)
        if not self.a.zeros:
            return total
        nothing = b.compare("oeq", self._get(self.top, v), -math.inf)
        return b.select(nothing, b.constant(1.0, self.vector), total)
