"""Attention's microkernel: a function that keeps a block of sums in registers.

In: the rows and vectors of the block, and the strides of its numbers. Out: LLVM IR of

    void @name(numbers, vectors, tile, steps, rescale)
        for k in 0..steps:  sums[r, v] += numbers[r * row + k * step] * vectors[k, v]
        tile[r, v] = sums[r, v]            or, rescaled: tile[r, v] * rescale[v] + sums[r, v]

It is a function of its own so that all registers hold sums, none the values of its caller.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.ops import convert, stored_type
from litz.codegen.llvm.scope import I64, Scopes
from litz.ir.dtypes import F32, F64, DType

POINTER = Type("ptr", 1)


class AttentionMicrokernel:
    """Writes one microkernel: `rows` by `vectors` sums of `vector` type, numbers of `dtype`."""

    def __init__(self, name: str, vector: Type, dtype: DType, rows: int, vectors: int) -> None:
        self.name, self.vector, self.dtype = name, vector, dtype
        self.rows, self.vectors = rows, vectors
        self.b = Builder(vector.lanes, "f32" if vector.element == "float" else "f64")
        self.b.lines.append("entry:")

    def emit(self, row: int, step: int, rescaled: bool) -> str:
        """The function, for numbers with strides of `row` elements a row and `step` a step."""
        b, scopes = self.b, Scopes(self.b)
        numbers, vectors, tile, rescale = (
            Value(f"%{n}", POINTER) for n in ("numbers", "vectors", "tile", "rescale")
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
                if rescaled:
                    before = b.emit(f"load {self.vector}, {place}", self.vector)
                    kept = self._get(rescale, Value(str(v), I64))
                    total = b.intrinsic("fma", before, kept, total)
                b.lines.append(f"  store {total}, {place}")
        b.lines.append("  ret void")
        taken = "ptr noalias %numbers, ptr noalias %vectors, ptr noalias %tile, i64 %steps"
        body = "\n".join(b.lines)
        head = f"define internal void @{self.name}({taken}, ptr noalias %rescale) noinline #0"
        return f"{head} {{\n{body}\n}}\n"

    def _at(self, memory: Value, place: Value) -> Value:
        return self.b.emit(f"getelementptr inbounds {self.vector}, {memory}, {place}", POINTER)

    def _get(self, memory: Value, place: Value) -> Value:
        return self.b.emit(f"load {self.vector}, {self._at(memory, place)}", self.vector)

    def _number(self, numbers: Value, place: Value) -> Value:
        """One number, broadcast to all lanes."""
        b, kind = self.b, stored_type(self.dtype, 1)
        address = b.emit(f"getelementptr inbounds {kind}, {numbers}, {place}", POINTER)
        read = b.emit(f"load {kind}, {address}", kind)
        read = convert(b, read, self.dtype, F32 if self.vector.element == "float" else F64)
        one = b.emit(f"insertelement {self.vector} poison, {read}, i64 0", self.vector)
        zeros = f"<{self.vector.lanes} x i32> zeroinitializer"
        return b.emit(f"shufflevector {one}, {self.vector} poison, {zeros}", self.vector)
