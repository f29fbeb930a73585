"""Stores, and the part that loads and stores share: buffer addresses and bounds checks.

In: a value and a flat index. Out: the instructions that write it: one element, a contiguous vector,
a non-temporal vector, or a scatter. The last, partial vector of a loop is masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.ops import stored_type
from litz.ir.checks import BOUNDS
from litz.ir.dtypes import BOOL, DType
from litz.ir.expr import Expr
from litz.ir.index import coefficient
from litz.ir.program import Buffer
from litz.ir.verify import Place
from litz.isa import ISAS

if TYPE_CHECKING:
    from litz.codegen.llvm.values import Values


class Stores:
    """The buffers of one kernel. `pointers` has the address of each; `local` has scratch, with its
    number of copies side by side: one a lane if lanes are rows."""

    def __init__(self, values: Values) -> None:
        self.v = values
        self.pointers: dict[Buffer, Value] = {}
        self.local: dict[Buffer, int] = {}
        self.written: set[Buffer] = set()
        self.non_temporal: tuple[
            str, ...
        ] = ()  # buffers whose whole vectors are written with non-temporal stores
        self.isa = ""  # the instruction set
        self.safe: Value | None = None  # address of a zero that guarded scalars read instead
        self.asserts = False  # whether every access is checked against its buffer's bounds
        self.in_order = False  # whether LLVM must keep the order of vector loads
        # The stores emitted so far: (buffer, flat index), or (buffer, None) for all of a buffer.
        self.emitted: set[Place] = set()

    def store(self, buffer: Buffer, index: Expr, value: Value, dtype: DType) -> None:
        """Write a value: one element, a contiguous vector, or a scatter."""
        self.emitted.add((buffer, index))
        copies = self.local.get(buffer, 1)
        if copies > 1:
            place = self._inside(buffer, self.v.value(index), None)
            address = self._address(buffer, self.v.b.mul(place, copies))
            self._write(address, self._to_memory(dtype, self.v.broadcast(value)))
            return
        if not self.v.varies(index):
            place = self._inside(buffer, self.v.value(index), None)
            self._write(self._address(buffer, place), self._to_memory(dtype, value))
            return
        stored = self._to_memory(dtype, self.v.broadcast(value))
        found = coefficient(index, self.v.vector) if self.v.vector is not None else None
        if found is not None and found[0].is_const and found[0].attr == 1:
            assert self.v.base is not None
            place = self.v.b.add(self.v.value(found[1]), self.v.base)
            place = self._inside(buffer, place, self.v.mask, self.v.lanes)
            address = self._address(buffer, place)
            if self.v.mask is None and buffer.name in self.non_temporal:
                self._write_non_temporal(address, stored)
            else:
                self._masked_write("store", address, stored)
            return
        places = self._inside(buffer, self.v.lanewise(index), self.v.mask)
        self._masked_write("scatter", self._address(buffer, places), stored)

    def _first_lane(self, value: Value) -> Value:
        if value.type.lanes == 1:
            return value
        return self.v.b.emit(f"extractelement {value}, i64 0", Type(value.type.element, 1))

    def _to_memory(self, dtype: DType, value: Value) -> Value:
        return self.v.b.convert("zext", value, "i8") if dtype is BOOL else value

    def _write(self, address: Value, value: Value) -> None:
        self.v.b.lines.append(f"  store {value}, {address}, align {self._bytes(value)}")

    def _write_non_temporal(self, address: Value, value: Value) -> None:
        """A whole vector, aligned to its size, that bypasses the caches."""
        size = self._bytes(value) * value.type.lanes
        text = f"store {value}, {address}, align {size}, !nontemporal !{{i32 1}}"
        self.v.b.lines.append(f"  {text}")

    def fence(self) -> None:
        """Other threads see non-temporal stores in any order, unless a fence waits for them."""
        if self.non_temporal:
            symbol = ISAS[self.isa].nontemporal_fence
            self.v.b.declares.add(f"declare void @{symbol}()")
            self.v.b.lines.append(f"  call void @{symbol}()")

    def _bytes(self, value: Value) -> int:
        return max(value.type.bits // 8, 1)

    def _masked_write(self, kind: str, address: Value, value: Value) -> None:
        if kind == "store" and self.v.mask is None:
            self._write(address, value)
            return
        if self.v.lanes == 1:
            self._write(address, value)
            return
        if self.v.tail == 1:
            # One lane is a scalar store. LLVM 22 must not simplify it itself: it joins a masked
            # store of one known lane with the truncation before it and writes the wide element.
            self._write(self._first_lane(address), self._first_lane(value))
            return
        pointers = "p0" if kind == "store" else f"v{self.v.lanes}p0"
        symbol = f"llvm.masked.{kind}.{value.type.mangled}.{pointers}"
        align = Value(str(self._bytes(value)), Type("i32", 1))
        mask = self.v.mask or self.v.b.constant(1, Type("i1", self.v.lanes))
        self._masked_call(symbol, Type("void", 1), value, address, align, mask)

    def _masked_call(self, symbol: str, result: Type, *args: Value) -> Value:
        """The alignment must be an immediate: its parameter is declared as such."""
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

    def _inside(self, buffer: Buffer, place: Value, mask: Value | None, lanes: int = 1) -> Value:
        """With `debug_index_asserts`: note an access outside the buffer, and access element zero.

        `lanes` elements from `place` on are accessed, those that `mask` selects.
        """
        if not self.asserts:
            return place
        b, places = self.v.b, place
        if lanes > 1:
            level = self.v.scopes.selected
            broadcast = self.v.broadcast(place, level)
            self.v.scopes.select(level)
            places = b.add(broadcast, self.v.iota(1))
        limit = self._limit(buffer, places)
        outside = b.compare("uge", places, limit)
        if mask is not None:
            outside = b.bit_and(outside, mask)
        self.v.flag(outside, BOUNDS, places, limit)
        bad = b.any_lane(outside) if place.type.lanes == 1 else outside
        return b.select(bad, b.constant(0, place.type), place)

    def _limit(self, buffer: Buffer, places: Value) -> Value | int:
        """The number of elements of a buffer, in as many lanes as `places`."""
        count = buffer.shape[0]
        if count.is_const:
            return count.number
        level = self.v.scopes.selected
        limit = self.v.value(count)
        limit = self.v.broadcast(limit, 0) if places.type.lanes > 1 else limit
        self.v.scopes.select(level)
        return limit

    def _address(self, buffer: Buffer, place: Value) -> Value:
        element = stored_type(buffer.dtype, 1)
        pointer = self.pointers[buffer]
        where = Type("ptr", place.type.lanes)
        return self.v.b.emit(f"getelementptr inbounds {element}, {pointer}, {place}", where)

    def from_memory(self, dtype: DType, value: Value) -> Value:
        return self.v.b.compare("ne", value, 0) if dtype is BOOL else value
