"""Loads: scalar, contiguous vector, or gather; `stores` has the stores.

In: a load with a flat index. Out: the instructions that fit how the index moves along the lanes:
not at all (one scalar), by one (one vector), otherwise (a gather). The last, partial vector of a
loop and guarded loads are masked. A guarded scalar load reads a zero of the kernel's instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.ops import stored_type
from litz.codegen.llvm.stores import Stores
from litz.ir.expr import Expr
from litz.ir.index import coefficient
from litz.ir.program import Buffer

if TYPE_CHECKING:
    pass

# Bytes of the smallest element that gather instructions read.
NARROWEST_GATHER = 4


class Memory(Stores):
    """Loads from the buffers of one kernel, and stores into them."""

    def load(self, node: Expr) -> Value:
        """Emit the operands, each in its own scope, then the load in the scope of the node."""
        buffer, index, level = node.buffer, node.index[0], self.v.level(node)
        guard = None if node.guard is None else self.v.value(node.guard)
        copies = self.local.get(buffer, 1)
        if copies > 1:
            return self._row_load(node, copies, guard, level)
        if not self.v.varies(index):
            place = self.v.value(index)
            self.v.scopes.select(level)
            return self._uniform_load(node, place, guard, level)
        assert self.v.vector is not None and self.v.base is not None
        found = coefficient(index, self.v.vector)
        mask = self._load_mask(node, level)
        if found is None or not found[0].is_const or self.v.varies(found[1]):
            places = self.v.lanewise(index)
            self.v.scopes.select(level)
            return self._gather(node, places, mask)
        stride, rest = found[0].attr, self.v.value(found[1])
        self.v.scopes.select(level)
        if stride == 1:
            place = self._inside(buffer, self.v.b.add(rest, self.v.base), mask, self.v.lanes)
            return self._masked_load(node, self._address(buffer, place), mask)
        first = self.v.broadcast(self.v.b.add(rest, self.v.b.mul(self.v.base, stride)), level)
        self.v.scopes.select(level)
        return self._gather(node, self.v.b.add(first, self.v.iota(stride)), mask)

    def _row_load(self, node: Expr, copies: int, guard: Value | None, level: int) -> Value:
        """Scratch with a copy for each lane: a vector load if all lanes read one index."""
        b, index = self.v.b, node.index[0]
        if self.v.varies(index):
            places, mask = self.v.lanewise(index), self._load_mask(node, level)
            self.v.scopes.select(level)
            places = self._inside(node.buffer, places, mask)
            places = b.add(b.mul(places, copies), self.v.iota(1))
            return self._gathered(node, self._address(node.buffer, places), mask)
        place = self.v.value(index)
        self.v.scopes.select(level)
        if guard is None:
            place = self._inside(node.buffer, place, None)
            return self._loaded(node, self._address(node.buffer, b.mul(place, copies)), copies)
        wanted = guard if guard.type.lanes == 1 else self._load_mask(node, level)
        assert wanted is not None
        place = b.select(b.any_lane(wanted), place, b.constant(0, place.type))
        place = self._inside(node.buffer, place, None)
        value = self._loaded(node, self._address(node.buffer, b.mul(place, copies)), copies)
        holds = self.v.broadcast(guard, level)
        self.v.scopes.select(level)
        return b.select(holds, value, b.constant(0, value.type))

    def _uniform_load(self, node: Expr, place: Value, guard: Value | None, level: int) -> Value:
        """One address for all lanes. If the guard varies by lane: load if it holds in any lane, and
        keep the value where it does."""
        if guard is None or guard.type.lanes == 1:
            return self._scalar_load(node, place, guard)
        mask = self._load_mask(node, level)
        assert mask is not None
        one = self._scalar_load(node, place, self.v.b.any_lane(mask))
        zero = self.v.b.constant(0, Type(one.type.element, self.v.lanes))
        broadcast = self.v.broadcast(one, level)
        self.v.scopes.select(level)
        return self.v.b.select(guard, broadcast, zero)

    def _load_mask(self, node: Expr, level: int) -> Value | None:
        if node.guard is None:
            return self.v.mask
        guard = self.v.lanewise(node.guard)
        self.v.scopes.select(level)
        if self.v.value(node.guard) == self.v.b.constant(1, Type("i1", 1)):
            return self.v.mask  # a branch around this load has tested the guard
        return guard if self.v.mask is None else self.v.b.bit_and(guard, self.v.mask)

    def _loaded(self, node: Expr, address: Value, lanes: int) -> Value:
        kind = stored_type(node.dtype, lanes)
        order = "volatile " if self.in_order and lanes > 1 else ""
        text = f"load {order}{kind}, {address}, align {node.dtype.bytes}"
        return self.from_memory(node.dtype, self.v.b.emit(text, kind))

    def _scalar_load(self, node: Expr, place: Value, guard: Value | None) -> Value:
        """Where the guard is false, the kernel's own zero is read, not the buffer."""
        address = self._address(node.buffer, self._inside(node.buffer, place, guard))
        if guard is not None:
            assert self.safe is not None
            address = self.v.b.select(guard, address, self.safe)
        return self._loaded(node, address, 1)

    def _masked_load(self, node: Expr, address: Value, mask: Value | None) -> Value:
        if mask is None:
            return self._loaded(node, address, self.v.lanes)
        if self.v.lanes == 1:
            return self._lane_load(node, address, mask)
        return self.from_memory(node.dtype, self._masked(node, address, mask))

    def load_bits(self, node: Expr, place: Value, kind: Type) -> Value:
        """The bits of the elements from `place` on, as one value."""
        count = kind.bits * kind.lanes // (8 * node.dtype.bytes)
        self._inside(node.buffer, self.v.b.add(place, count - 1), None)
        address = self._address(node.buffer, self._inside(node.buffer, place, None))
        return self.v.b.emit(f"load {kind}, {address}, align {node.dtype.bytes}", kind)

    def row(
        self, node: Expr, place: Value, length: int, guard: Value | None, zeros: Value
    ) -> Value:
        """The address of `length` elements from `place` on, or of as many zeros where the guard is
        false."""
        self._inside(node.buffer, self.v.b.add(place, length - 1), guard)
        address = self._address(node.buffer, self._inside(node.buffer, place, guard))
        return address if guard is None else self.v.b.select(guard, address, zeros)

    def in_row(self, node: Expr, row: Value, place: Value) -> Value:
        """An element of a row whose address `row` gave."""
        kind = stored_type(node.dtype, 1)
        address = self.v.b.emit(f"getelementptr inbounds {kind}, {row}, {place}", Type("ptr", 1))
        return self._loaded(node, address, 1)

    def load_contiguous(self, node: Expr, place: Value, mask: Value | None) -> Value:
        """`lanes` elements from `place` on, in the stored type."""
        place = self._inside(node.buffer, place, mask, self.v.lanes)
        address, kind = self._address(node.buffer, place), stored_type(node.dtype, self.v.lanes)
        if mask is None:
            return self.v.b.emit(f"load {kind}, {address}, align {node.dtype.bytes}", kind)
        return self._masked(node, address, mask)

    def load_strided(self, node: Expr, place: Value, step: int, mask: Value | None) -> Value:
        """`lanes` elements from `place` on, `step` apart."""
        places = self.v.b.add(self.v.broadcast(place), self.v.iota(step))
        address = self._address(node.buffer, self._inside(node.buffer, places, mask))
        return self._gathered(node, address, mask)

    def store_strided(
        self, buffer: Buffer, place: Value, step: int, value: Value, count: int | Value
    ) -> None:
        """Write the first `count` lanes from `place` on, `step` elements apart."""
        self.emitted.add((buffer, None))
        lanes = self.v.lanes
        self.v.set_vector(None, None, None if count == lanes else count)
        places = place if step == 1 else self.v.b.add(self.v.broadcast(place), self.v.iota(step))
        places = self._inside(buffer, places, self.v.mask, lanes if step == 1 else 1)
        kind = "store" if step == 1 else "scatter"
        self._masked_write(kind, self._address(buffer, places), value)
        self.v.set_vector(None, None, None)

    def _masked(self, node: Expr, address: Value, mask: Value) -> Value:
        kind = stored_type(node.dtype, self.v.lanes)
        symbol = f"llvm.masked.load.{kind.mangled}.p0"
        align = Value(str(node.dtype.bytes), Type("i32", 1))
        zero = Value("zeroinitializer", kind)
        return self._masked_call(symbol, kind, address, align, mask, zero)

    def _lane_load(self, node: Expr, address: Value, mask: Value) -> Value:
        assert self.safe is not None
        return self._loaded(node, self.v.b.select(mask, address, self.safe), 1)

    def _gather(self, node: Expr, places: Value, mask: Value | None) -> Value:
        address = self._address(node.buffer, self._inside(node.buffer, places, mask))
        if self.v.lanes == 1:
            return self._masked_load(node, address, mask)
        return self._gathered(node, address, mask)

    def _gathered(self, node: Expr, address: Value, mask: Value | None) -> Value:
        kind = stored_type(node.dtype, self.v.lanes)
        if mask is not None and mask is not self.v.mask and node.dtype.bytes < NARROWEST_GATHER:
            # LLVM would write a branch a lane; lanes outside the mask read the kernel's own zero.
            address, mask = self.v.b.select(mask, address, self._safe_lanes()), None
        symbol = f"llvm.masked.gather.{kind.mangled}.v{self.v.lanes}p0"
        align = Value(str(node.dtype.bytes), Type("i32", 1))
        inside = mask or self.v.b.constant(1, Type("i1", self.v.lanes))
        zero = Value("zeroinitializer", kind)
        return self.from_memory(
            node.dtype, self._masked_call(symbol, kind, address, align, inside, zero)
        )

    def _safe_lanes(self) -> Value:
        """The address of the kernel's own zero in every lane, made once at the function's entry."""
        assert self.safe is not None
        here = self.v.scopes.selected
        lanes = self.v.broadcast(self.safe, 0)
        self.v.scopes.select(here)
        return lanes
