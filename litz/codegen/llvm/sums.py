"""Sums of numbers times vectors, in registers: the inner part of attention, as a function.

In: how many rows and vectors a block of sums has, and where its numbers lie. Out: LLVM IR of

    void @name(numbers, vectors, tile, steps, fade)
        for k in 0..steps:  sums[r, v] += numbers[r * row + k * step] * vectors[k, v]
        tile[r, v] = sums[r, v]                     or, faded: tile[r, v] * fade[v] + sums[r, v]

It stands alone so that whatever its caller keeps in registers, here they hold sums.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.ops import convert, stored_type
from litz.codegen.llvm.scope import I64, Scopes
from litz.ir.dtypes import F32, F64, DType

POINTER = Type("ptr", 1)


class Sums:
    """Writes one such function: `rows` by `vectors` sums of `vector` type, numbers of `dtype`."""

    def __init__(self, name: str, vector: Type, dtype: DType, rows: int, vectors: int) -> None:
        self.name, self.vector, self.dtype = name, vector, dtype
        self.rows, self.vectors = rows, vectors
        self.b = Builder(vector.lanes, "f32" if vector.element == "float" else "f64")
        self.b.lines.append("entry:")

    def emit(self, row: int, step: int, faded: bool) -> str:
        """The function, for numbers `row` apart from row to row and `step` from step to step."""
        b, scopes = self.b, Scopes(self.b)
        numbers, vectors, tile, fade = (
            Value(f"%{n}", POINTER) for n in ("numbers", "vectors", "tile", "fade")
        )
        sums = [
            [b.emit(f"alloca {self.vector}", POINTER) for _ in range(self.vectors)]
            for _ in range(self.rows)
        ]
        for slot in (s for line in sums for s in line):
            b.lines.append(f"  store {self.vector} zeroinitializer, {slot}")
        k = scopes.open_loop(Value("0", I64), Value("%steps", I64), 1, rolled=True)
        start = b.mul(k, self.vectors)
        column = [self._get(vectors, b.add(start, v)) for v in range(self.vectors)]
        for r, line in enumerate(sums):
            number = self._number(numbers, b.add(b.mul(k, step), r * row))
            for slot, vector in zip(line, column, strict=True):
                before = b.emit(f"load {self.vector}, {slot}", self.vector)
                b.lines.append(f"  store {b.intrinsic('fma', number, vector, before)}, {slot}")
        scopes.close()
        for r, line in enumerate(sums):
            for v, slot in enumerate(line):
                total = b.emit(f"load {self.vector}, {slot}", self.vector)
                place = self._at(tile, Value(str(r * self.vectors + v), I64))
                if faded:
                    before = b.emit(f"load {self.vector}, {place}", self.vector)
                    kept = self._get(fade, Value(str(v), I64))
                    total = b.intrinsic("fma", before, kept, total)
                b.lines.append(f"  store {total}, {place}")
        b.lines.append("  ret void")
        taken = "ptr noalias %numbers, ptr noalias %vectors, ptr noalias %tile, i64 %steps"
        body = "\n".join(b.lines)
        head = f"define internal void @{self.name}({taken}, ptr noalias %fade) noinline #0"
        return f"{head} {{\n{body}\n}}\n"

    def _at(self, memory: Value, place: Value) -> Value:
        return self.b.emit(f"getelementptr inbounds {self.vector}, {memory}, {place}", POINTER)

    def _get(self, memory: Value, place: Value) -> Value:
        return self.b.emit(f"load {self.vector}, {self._at(memory, place)}", self.vector)

    def _number(self, numbers: Value, place: Value) -> Value:
        """One number in every lane."""
        b, kind = self.b, stored_type(self.dtype, 1)
        address = b.emit(f"getelementptr inbounds {kind}, {numbers}, {place}", POINTER)
        read = b.emit(f"load {kind}, {address}", kind)
        read = convert(b, read, self.dtype, F32 if self.vector.element == "float" else F64)
        one = b.emit(f"insertelement {self.vector} poison, {read}, i64 0", self.vector)
        zeros = f"<{self.vector.lanes} x i32> zeroinitializer"
        return b.emit(f"shufflevector {one}, {self.vector} poison, {zeros}", self.vector)
