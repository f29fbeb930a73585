"""Memory: loads and stores, as scalars, as vectors side by side, or lane by lane.

In: a load or store with a flat index. Out: the instructions that fit how the index moves along the
lanes: not at all (one scalar), by one (one vector), otherwise (a gather or scatter). The last,
partial vector of a loop and guarded loads are masked; a guarded scalar reads a zero of our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.ops import stored_type
from litz.ir.dtypes import BOOL, DType
from litz.ir.expr import Expr
from litz.ir.index import coefficient
from litz.ir.program import Buffer

if TYPE_CHECKING:
    from litz.codegen.llvm.values import Values

BOUNDS_ERROR = 4  # in the error flag: a kernel left a buffer, which is a bug of ours

# Bytes of the smallest element that processors gather.
NARROWEST_GATHER = 4


class Memory:
    """The buffers of one kernel. `pointers` is where each lies; `local` holds scratch, with the
    number of copies side by side: one a lane if lanes are rows."""

    def __init__(self, values: Values) -> None:
        self.v = values
        self.pointers: dict[Buffer, Value] = {}
        self.local: dict[Buffer, int] = {}
        self.written: set[Buffer] = set()
        self.past: tuple[str, ...] = ()  # buffers that whole vectors are written to past caches
        self.safe: Value | None = None  # a zero that guarded scalars read instead
        self.asserts = False  # whether every access is held against its buffer's bounds

    def load(self, node: Expr) -> Value:
        """Operands are emitted first, each in its own scope; then this node's is selected."""
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
        first = self.v.spread(self.v.b.add(rest, self.v.b.mul(self.v.base, stride)), level)
        self.v.scopes.select(level)
        return self._gather(node, self.v.b.add(first, self.v.iota(stride)), mask)

    def _row_load(self, node: Expr, copies: int, guard: Value | None, level: int) -> Value:
        """Scratch with a copy a lane: side by side where all lanes read one place."""
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
        holds = self.v.spread(guard, level)
        self.v.scopes.select(level)
        return b.select(holds, value, b.constant(0, value.type))

    def _uniform_load(self, node: Expr, place: Value, guard: Value | None, level: int) -> Value:
        """One address for all lanes. If the guard differs by lane: read if any may, keep where it
        holds."""
        if guard is None or guard.type.lanes == 1:
            return self._scalar_load(node, place, guard)
        mask = self._load_mask(node, level)
        assert mask is not None
        one = self._scalar_load(node, place, self.v.b.any_lane(mask))
        zero = self.v.b.constant(0, Type(one.type.element, self.v.lanes))
        spread = self.v.spread(one, level)
        self.v.scopes.select(level)
        return self.v.b.select(guard, spread, zero)

    def _load_mask(self, node: Expr, level: int) -> Value | None:
        if node.guard is None:
            return self.v.mask
        guard = self.v.lanewise(node.guard)
        self.v.scopes.select(level)
        return guard if self.v.mask is None else self.v.b.bit_and(guard, self.v.mask)

    def _inside(self, buffer: Buffer, place: Value, mask: Value | None, lanes: int = 1) -> Value:
        """With `debug_index_asserts`: note an access outside the buffer, and access element zero.

        `lanes` elements from `place` on are accessed, of those the ones that `mask` names.
        """
        if not self.asserts:
            return place
        b, places = self.v.b, place
        if lanes > 1:
            level = self.v.scopes.selected
            spread = self.v.spread(place, level)
            self.v.scopes.select(level)
            places = b.add(spread, self.v.iota(1))
        outside = b.compare("uge", places, buffer.shape[0].number)
        if mask is not None:
            outside = b.bit_and(outside, mask)
        self.v.flag(outside, BOUNDS_ERROR)
        bad = b.any_lane(outside) if place.type.lanes == 1 else outside
        return b.select(bad, b.constant(0, place.type), place)

    def _address(self, buffer: Buffer, place: Value) -> Value:
        element = stored_type(buffer.dtype, 1)
        pointer = self.pointers[buffer]
        where = Type("ptr", place.type.lanes)
        return self.v.b.emit(f"getelementptr inbounds {element}, {pointer}, {place}", where)

    def _loaded(self, node: Expr, address: Value, lanes: int) -> Value:
        kind = stored_type(node.dtype, lanes)
        text = f"load {kind}, {address}, align {node.dtype.bytes}"
        return self.from_memory(node.dtype, self.v.b.emit(text, kind))

    def from_memory(self, dtype: DType, value: Value) -> Value:
        return self.v.b.compare("ne", value, 0) if dtype is BOOL else value

    def _scalar_load(self, node: Expr, place: Value, guard: Value | None) -> Value:
        """A guarded scalar reads a zero of our own where it must not read the buffer."""
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

    def together(self, node: Expr, place: Value, kind: Type) -> Value:
        """The bits of some elements from a place on, as one value."""
        count = kind.bits * kind.lanes // (8 * node.dtype.bytes)
        self._inside(node.buffer, self.v.b.add(place, count - 1), None)
        address = self._address(node.buffer, self._inside(node.buffer, place, None))
        return self.v.b.emit(f"load {kind}, {address}, align {node.dtype.bytes}", kind)

    def neighbours(self, node: Expr, place: Value, mask: Value | None) -> Value:
        """As many elements from a place on as there are lanes, as they lie in memory."""
        place = self._inside(node.buffer, place, mask, self.v.lanes)
        address, kind = self._address(node.buffer, place), stored_type(node.dtype, self.v.lanes)
        if mask is None:
            return self.v.b.emit(f"load {kind}, {address}, align {node.dtype.bytes}", kind)
        return self._masked(node, address, mask)

    def strided(self, node: Expr, place: Value, step: int, mask: Value | None) -> Value:
        """As many elements from a place on as there are lanes, `step` apart."""
        places = self.v.b.add(self.v.spread(place), self.v.iota(step))
        address = self._address(node.buffer, self._inside(node.buffer, places, mask))
        return self._gathered(node, address, mask)

    def put(self, buffer: Buffer, place: Value, step: int, value: Value, count: int) -> None:
        """Write the first `count` lanes from a place on, `step` elements apart."""
        lanes = self.v.lanes
        self.v.set_vector(None, None, None if count == lanes else count)
        places = place if step == 1 else self.v.b.add(self.v.spread(place), self.v.iota(step))
        places = self._inside(buffer, places, self.v.mask, lanes if step == 1 else 1)
        kind = "store" if step == 1 else "scatter"
        self._masked_write(kind, self._address(buffer, places), value, buffer.dtype)
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
            # LLVM would write a branch a lane: a zero of our own is read where none may be.
            address, mask = self.v.b.select(mask, address, self._safe_lanes()), None
        symbol = f"llvm.masked.gather.{kind.mangled}.v{self.v.lanes}p0"
        align = Value(str(node.dtype.bytes), Type("i32", 1))
        inside = mask or self.v.b.constant(1, Type("i1", self.v.lanes))
        zero = Value("zeroinitializer", kind)
        return self.from_memory(
            node.dtype, self._masked_call(symbol, kind, address, align, inside, zero)
        )

    def _safe_lanes(self) -> Value:
        """The address of our own zero in every lane, made once at the function's entry."""
        assert self.safe is not None
        here = self.v.scopes.selected
        lanes = self.v.spread(self.safe, 0)
        self.v.scopes.select(here)
        return lanes

    def _masked_call(self, symbol: str, result: Type, *args: Value) -> Value:
        """The alignment must be an immediate: its operand is declared so."""
        types = ", ".join(
            f"{a.type} immarg" if a.type.element == "i32" and a.type.lanes == 1 else str(a.type)
            for a in args
        )
        self.v.b.declares.add(f"declare {result} @{symbol}({types})")
        text = f"call {result} @{symbol}({', '.join(map(str, args))})"
        if result.element == "void":
            self.v.b.lines.append(f"  {text}")
            return args[0]
        return self.v.b.emit(text, result)

    def store(self, buffer: Buffer, index: Expr, value: Value, dtype: DType) -> None:
        """Write a value here: one element, a vector side by side, or lane by lane."""
        copies = self.local.get(buffer, 1)
        if copies > 1:
            place = self._inside(buffer, self.v.value(index), None)
            address = self._address(buffer, self.v.b.mul(place, copies))
            self._write(address, self._to_memory(dtype, self.v.spread(value)))
            return
        if not self.v.varies(index):
            place = self._inside(buffer, self.v.value(index), None)
            self._write(self._address(buffer, place), self._to_memory(dtype, value))
            return
        stored = self._to_memory(dtype, self.v.spread(value))
        found = coefficient(index, self.v.vector) if self.v.vector is not None else None
        if found is not None and found[0].is_const and found[0].attr == 1:
            assert self.v.base is not None
            place = self.v.b.add(self.v.value(found[1]), self.v.base)
            place = self._inside(buffer, place, self.v.mask, self.v.lanes)
            address = self._address(buffer, place)
            if self.v.mask is None and buffer.name in self.past:
                self._write_past(address, stored)
            else:
                self._masked_write("store", address, stored, dtype)
            return
        places = self._inside(buffer, self.v.lanewise(index), self.v.mask)
        self._masked_write("scatter", self._address(buffer, places), stored, dtype)

    def _first_lane(self, value: Value) -> Value:
        if value.type.lanes == 1:
            return value
        return self.v.b.emit(f"extractelement {value}, i64 0", Type(value.type.element, 1))

    def _to_memory(self, dtype: DType, value: Value) -> Value:
        return self.v.b.convert("zext", value, "i8") if dtype is BOOL else value

    def _write(self, address: Value, value: Value) -> None:
        self.v.b.lines.append(f"  store {value}, {address}, align {self._bytes(value)}")

    def _write_past(self, address: Value, value: Value) -> None:
        """A whole vector, at a multiple of its size, that leaves the caches alone."""
        size = self._bytes(value) * value.type.lanes
        text = f"store {value}, {address}, align {size}, !nontemporal !{{i32 1}}"
        self.v.b.lines.append(f"  {text}")

    def fence(self) -> None:
        """Stores past the caches are seen by others in any order, unless they are waited for."""
        if self.past:
            self.v.b.declares.add("declare void @llvm.x86.sse.sfence()")
            self.v.b.lines.append("  call void @llvm.x86.sse.sfence()")

    def _bytes(self, value: Value) -> int:
        return max(value.type.bits // 8, 1)

    def _masked_write(self, kind: str, address: Value, value: Value, dtype: DType) -> None:
        if kind == "store" and self.v.mask is None:
            self._write(address, value)
            return
        if self.v.lanes == 1:
            self._write(address, value)
            return
        if self.v.tail == 1:
            # One lane is a scalar. LLVM 22 must not find that out by itself: it joins a masked
            # store of one known lane with the truncation before it and writes the wide element.
            self._write(self._first_lane(address), self._first_lane(value))
            return
        pointers = "p0" if kind == "store" else f"v{self.v.lanes}p0"
        symbol = f"llvm.masked.{kind}.{value.type.mangled}.{pointers}"
        align = Value(str(self._bytes(value)), Type("i32", 1))
        mask = self.v.mask or self.v.b.constant(1, Type("i1", self.v.lanes))
        self._masked_call(symbol, Type("void", 1), value, address, align, mask)
