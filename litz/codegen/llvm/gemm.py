"""GEMM kernels: tiles of sums in registers, and the epilogue while they are in the cache.

In: a `ScheduledKernel` with a `GemmBlocking`. Out: LLVM IR. For each step of k the microkernel
reads one vector row of the panel and one number a row of the left operand, broadcasts the number,
and adds their products to its sums. The finished sums go to a tile on the stack. The kernel's other
stores read them from there vector by vector, as if each had been reduced alone.

    for GEMM of the batch, chunk of rows, panel:
        for block of 6 rows in the chunk:
            for k:  sums[r, v] += left[r, k] * right[panel, k, v]       microkernel: 6 x 4 vectors
            for r:  for v:  stores of the kernel with sums[r, v]

With K-blocking (`k_block`), all blocks of the chunk take one range of k before the next: all but
the first then find that part of the panel in the cache, and the tile holds the whole chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.gemm_microkernel import (
    GemmFunctionEmitter,
    GemmMicrokernel,
    KRange,
    S8S8Compensation,
)
from litz.codegen.llvm.scope import I64
from litz.ir.expr import Expr, integer
from litz.ir.gemm import stride_of
from litz.ir.program import Phase
from litz.ir.scheduled import ScheduledKernel

# Besides whole blocks, the row counts of microkernels for the last block, if the rows are unknown.
# Each is one more function to compile; a count between two of them computes some rows for nothing.
TAIL_MR = (1, 2, 4)


class GemmEmitter(GemmFunctionEmitter):
    """Writes one GEMM kernel."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        wide = self.choice.lanes * self.vectors
        number = Type(self.vector.element, 1)
        self.tile = self.frame.take("tile", wide * (self.by.partial_rows or self.by.mr), number)
        # The initial values of the sums; with taps, the zeros that are read outside of an image.
        self.zeros = self._reach() if self.gemm.taps else 0
        room = max(wide, -(-self.zeros // wide) * wide)
        self.start = self.frame.take("start", room, number)
        # The last block may have fewer rows; their number may be known only at the call.
        rows, block = self.by.rows, self.by.mr
        if rows.is_const:
            self.counts = sorted({block, rows.number % block} - {0})
        else:
            self.counts = sorted({block, *(n for n in TAIL_MR if n < block)})

    def emit(self) -> str:
        """The microkernels, then the kernel."""
        parts = [
            GemmMicrokernel(self.scheduled, self._microkernel_name(rows), rows, fewer + 1)
            for fewer, rows in self._ranges()
        ]
        if self.dot is not None and self.dot.needs_compensation:
            parts.append(S8S8Compensation(self.scheduled, f"{self.name}.compensation"))
        texts = [part.emit() for part in parts]
        self.b.declares |= {d for part in parts for d in part.b.declares}
        self.b.functions |= {f for part in parts for f in part.b.functions}
        return "".join([*texts, super().emit()])

    def _reach(self) -> int:
        """The elements from the first to the last number of a tap's row, both included."""
        step = stride_of(self.gemm.left, self.gemm.depth)
        assert step is not None, self.gemm.left
        return (self.by.depth.number - 1) * step + 1

    def _arguments(self) -> None:
        super()._arguments()
        if self.zeros:
            # Not without tasks: there are none if this memory could not be allocated.
            self.scopes.open_if(self.b.compare("slt", Value("%begin", I64), self.until))
            place = self.scopes.open_loop(
                self._number(0), self._number(-(-self.zeros // self.choice.lanes)), 1
            )
            at = self.b.emit(f"getelementptr {self.vector}, {self.start}, {place}", POINTER)
            self.b.lines.append(f"  store {self.vector} zeroinitializer, {at}")
            self.scopes.close()
            self.scopes.close()

    def _microkernel_name(self, rows: int) -> str:
        return f"{self.name}.microkernel{rows}"

    def _task(self, task: Value) -> None:
        """One panel for one chunk of rows; the panel varies fastest."""
        b, by = self.b, self.by
        panel = self._digit(task, integer(by.panels))
        around = b.emit(f"udiv {task}, {by.panels}", I64)
        chunk = self._digit(around, by.m_blocks)
        batch = b.emit(f"udiv {around}, {self._size(by.m_blocks).text}", I64)
        self._bind_axes(self.gemm.batch, batch)
        start, stop = self._rows_of(chunk)
        self._in_panel(batch, start, stop, panel)

    def _rows_of(self, chunk: Value) -> tuple[Value, Value]:
        """The first row of a chunk, and the end of its rows."""
        b, size = self.b, self._size(self.by.mc)
        start = b.mul(chunk, size)
        return start, b.intrinsic("smin", b.add(start, size), self._size(self.by.rows))

    def _in_panel(self, batch: Value, start: Value, stop: Value, panel: Value) -> None:
        """The blocks of a chunk in one panel."""
        b, by = self.b, self.by
        if self.dot is not None and self.dot.needs_compensation:
            whole = self._number(0), self._size(by.steps)
            self._call(f"{self.name}.compensation", batch, start, panel, self.start, whole)
        first = b.mul(panel, by.nr)
        if by.k_block:
            steps = self._size(by.steps)
            step = self.scopes.open_loop(self._number(0), steps, by.k_block, rolled=True)
            end = b.intrinsic("smin", b.add(step, by.k_block), steps)
            with self._block_of(start, stop) as (row, count, tile):
                self._call_microkernel(batch, row, count, panel, tile, (step, end))
            self.scopes.close()
            with self._block_of(start, stop) as (row, count, tile):
                self._emit_epilogue(row, count, first, tile)
        else:
            with self._block_of(start, stop) as (row, count, tile):
                self._call_microkernel(batch, row, count, panel, tile)
                self._emit_epilogue(row, count, first, tile)

    @contextmanager
    def _block_of(self, start: Value, stop: Value) -> Iterator[tuple[Value, Value, Value]]:
        """For each block of a chunk: its first row, its row count, the place of its sums."""
        b, by = self.b, self.by
        row = self.scopes.open_loop(start, stop, by.mr)
        count = b.intrinsic("smin", b.sub(stop, row), by.mr)
        waiting = b.mul(b.sub(row, start), self.vectors)
        yield row, count, self._vector_at(self.tile, waiting) if by.k_block else self.tile
        self.scopes.close()

    def _call_microkernel(
        self, batch: Value, row: Value, count: Value, panel: Value, tile: Value, *k_range: KRange
    ) -> None:
        """The sums of a block, by the microkernel for its row count."""
        for fewer, rows in self._ranges():
            some = self.b.sub(count, fewer + 1)  # 0 .. rows - fewer - 1 if this one is to run
            self.scopes.open_if(self.b.compare("ult", some, rows - fewer))
            self._call(self._microkernel_name(rows), batch, row, panel, tile, *k_range)
            self.scopes.close()

    def _ranges(self) -> list[tuple[int, int]]:
        """For each microkernel: the most rows that a smaller one takes, and its own rows."""
        if self.by.rows.is_const:
            return [(rows - 1, rows) for rows in self.counts]
        return list(pairwise([0, *self.counts]))

    def _call(
        self, name: str, batch: Value, row: Value, panel: Value, tile: Value, *k_range: KRange
    ) -> None:
        given = f"ptr %args, {batch}, {row}, {panel}, {self.start}, {tile}"
        if self.by.k_block:
            given += "".join(f", {step}" for step in k_range[0])
        given += self._operand(row)
        self.b.lines.append(f"  call void @{name}({given})")

    def _operand(self, row: Value) -> str:
        """A further argument of the microkernels: the first row of the left operand, if the kernel
        computes that operand."""
        return ""

    # -- epilogue ----------------------------------------------------------------------------

    def _emit_epilogue(self, row: Value, count: Value, first: Value, tile: Value) -> None:
        """The kernel's stores for each row of the block and each vector of the panel."""
        b, by, lanes = self.b, self.by, self.choice.lanes
        number = self.scopes.open_loop(self._number(0), count, 1)
        self._enter_row(b.add(row, number))
        self.values.row_level = self.scopes.depth + 1
        start = b.mul(number, self.vectors)
        left = b.sub(self._number(by.columns), first)
        wide = b.intrinsic("smin", left, by.nr)
        v = self.scopes.open_loop(self._number(0), wide, lanes, whole_steps=True)
        place = b.add(start, b.emit(f"udiv {v}, {lanes}", I64))
        self._vector(b.add(first, v), self._vector_at(tile, place), None)
        self.scopes.close()
        tail = by.columns % lanes
        if tail:  # in the last panel only
            self.scopes.open_if(b.compare("slt", left, by.nr))
            whole = by.columns - tail
            inside = (whole - (by.panels - 1) * by.nr) // lanes
            place = self._vector_at(tile, b.add(start, inside))
            self._vector(self._number(whole), place, tail)
            self.scopes.close()
        self.scopes.close()

    def _vector(self, column: Value, place: Value, tail: int | None) -> None:
        """Bind the reduction to one vector of sums, then emit the stores."""
        level = self.scopes.depth
        *others, last = self.gemm.columns
        self.values.axis_level[last] = level
        base = column
        if others:
            base = self.b.emit(f"urem {column}, {last.extent.number}", I64)
            around = self.b.emit(f"udiv {column}, {last.extent.number}", I64)
            self._bind_axes(tuple(others), around)
        self.values.set_vector(last, base, tail)
        sums = self.b.emit(f"load {self.vector}, {place}", self.vector)
        self.scopes.bind(level, self.gemm.node, sums)
        for phase in self._elementwise_phases():
            self._stores(list(phase.stores))

    def _elementwise_phases(self) -> tuple[Phase, ...]:
        """The phases that work on single elements of the GEMM's result."""
        return self.kernel.phases

    def _enter_row(self, row: Value) -> None:
        self._bind_axes(self.gemm.rows, row)

    def _bind_axes(self, axes: tuple[Expr, ...], number: Value) -> None:
        """Compute axes from their common number, the last one fastest."""
        level = self.scopes.depth
        for k, a in enumerate(reversed(axes)):
            last = k == len(axes) - 1
            digit = number if last else self._digit(number, a.extent)
            by = self._size(a.extent).text
            number = number if last else self.b.emit(f"udiv {number}, {by}", I64)
            self.values.axis_level[a] = level
            self.scopes.bind(level, a, digit)
