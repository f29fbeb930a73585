"""Matrix products: blocks of sums in registers, and what follows them while they are in the cache.

In: a `ScheduledKernel` with a `Blocking`. Out: LLVM IR. For each step of k a block reads one vector
row of the panel and one number a row of the left operand, spread over the lanes, and adds their
products to its sums. The finished sums go to a tile on the stack, from which the kernel's other
stores read them vector by vector, as if each had been reduced alone.

    for product of the batch, chunk of rows, panel:
        for block of 6 rows in the chunk:
            for k:  sums[r, v] += left[r, k] * right[panel, k, v]       a function: 6 x 4 vectors
            for r:  for v:  stores of the kernel with sums[r, v]

A long sum goes in stretches, each for all blocks of the chunk, so that its part of the panel is
read from the cache by all but the first; the tile then holds the whole chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from litz.codegen.llvm.block_sums import Block, Offsets, Span, Sums
from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.scope import I64
from litz.ir.expr import Expr, integer
from litz.ir.product import stride_of
from litz.ir.program import Phase
from litz.ir.scheduled import ScheduledKernel

# Rows of the blocks that end a product of unknown rows, beside whole ones: each is a function more
# to compile, and a block between two of them computes a row for nothing.
FEWER_ROWS = (1, 2, 4)


class ProductEmitter(Block):
    """Writes one kernel that is a product."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        wide = self.choice.lanes * self.vectors
        number = Type(self.vector.element, 1)
        self.tile = self.frame.take("tile", wide * (self.by.most or self.by.block), number)
        # What sums start from, or the zeros that lie outside of an image.
        self.zeros = self._reach() if self.product.taps else 0
        room = max(wide, -(-self.zeros // wide) * wide)
        self.start = self.frame.take("start", room, number)
        # The last block may have fewer rows; how many, perhaps only a call knows.
        rows, block = self.by.rows, self.by.block
        if rows.is_const:
            self.counts = sorted({block, rows.number % block} - {0})
        else:
            self.counts = sorted({block, *(n for n in FEWER_ROWS if n < block)})

    def emit(self) -> str:
        """The functions that sum, then the kernel."""
        parts = [
            Sums(self.scheduled, self._function(rows), rows, fewer + 1)
            for fewer, rows in self._ranges()
        ]
        if self.dot is not None and self.dot.offsets:
            parts.append(Offsets(self.scheduled, f"{self.name}.offsets"))
        texts = [part.emit() for part in parts]
        self.b.declares |= {d for part in parts for d in part.b.declares}
        self.b.functions |= {f for part in parts for f in part.b.functions}
        return "".join([*texts, super().emit()])

    def _reach(self) -> int:
        """From the first to the last number of a row of a tap."""
        step = stride_of(self.product.left, self.product.depth)
        assert step is not None, self.product.left
        return (self.by.depth.number - 1) * step + 1

    def _arguments(self) -> None:
        super()._arguments()
        if self.zeros:
            # Not where there are no tasks, which may be for want of this memory.
            self.scopes.open_if(self.b.compare("slt", Value("%begin", I64), self.until))
            place = self.scopes.open_loop(
                self._number(0), self._number(-(-self.zeros // self.choice.lanes)), 1
            )
            at = self.b.emit(f"getelementptr {self.vector}, {self.start}, {place}", POINTER)
            self.b.lines.append(f"  store {self.vector} zeroinitializer, {at}")
            self.scopes.close()
            self.scopes.close()

    def _function(self, rows: int) -> str:
        return f"{self.name}.sums{rows}"

    def _task(self, task: Value) -> None:
        """A panel for a chunk of rows; panels pass by fastest."""
        b, by = self.b, self.by
        panel = self._digit(task, integer(by.panels))
        around = b.emit(f"udiv {task}, {by.panels}", I64)
        chunk = self._digit(around, by.chunks)
        batch = b.emit(f"udiv {around}, {self._size(by.chunks).text}", I64)
        self._bind_axes(self.product.batch, batch)
        start, stop = self._rows_of(chunk)
        self._in_panel(batch, start, stop, panel)

    def _rows_of(self, chunk: Value) -> tuple[Value, Value]:
        """The first row of a chunk, and the one behind its last."""
        b, size = self.b, self._size(self.by.chunk)
        start = b.mul(chunk, size)
        return start, b.intrinsic("smin", b.add(start, size), self._size(self.by.rows))

    def _in_panel(self, batch: Value, start: Value, stop: Value, panel: Value) -> None:
        """The blocks of some rows in one panel."""
        b, by = self.b, self.by
        if self.dot is not None and self.dot.offsets:
            whole = self._number(0), self._size(by.steps)
            self._call(f"{self.name}.offsets", batch, start, panel, self.start, whole)
        first = b.mul(panel, by.width)
        if by.stretch:
            steps = self._size(by.steps)
            step = self.scopes.open_loop(self._number(0), steps, by.stretch, rolled=True)
            end = b.intrinsic("smin", b.add(step, by.stretch), steps)
            with self._block_of(start, stop) as (row, count, tile):
                self._sum(batch, row, count, panel, tile, (step, end))
            self.scopes.close()
            with self._block_of(start, stop) as (row, count, tile):
                self._finish(row, count, first, tile)
        else:
            with self._block_of(start, stop) as (row, count, tile):
                self._sum(batch, row, count, panel, tile)
                self._finish(row, count, first, tile)

    @contextmanager
    def _block_of(self, start: Value, stop: Value) -> Iterator[tuple[Value, Value, Value]]:
        """For each block of a chunk: its first row, how many it has, where its sums are."""
        b, by = self.b, self.by
        row = self.scopes.open_loop(start, stop, by.block)
        count = b.intrinsic("smin", b.sub(stop, row), by.block)
        waiting = b.mul(b.sub(row, start), self.vectors)
        yield row, count, self._vector_at(self.tile, waiting) if by.stretch else self.tile
        self.scopes.close()

    def _sum(
        self, batch: Value, row: Value, count: Value, panel: Value, tile: Value, *span: Span
    ) -> None:
        """The sums of a block, by the function for its number of rows."""
        for fewer, rows in self._ranges():
            some = self.b.sub(count, fewer + 1)  # one of the counts that this function is for
            self.scopes.open_if(self.b.compare("ult", some, rows - fewer))
            self._call(self._function(rows), batch, row, panel, tile, *span)
            self.scopes.close()

    def _ranges(self) -> list[tuple[int, int]]:
        """For each function, the most rows that are left to smaller ones, and its own."""
        if self.by.rows.is_const:
            return [(rows - 1, rows) for rows in self.counts]
        return list(pairwise([0, *self.counts]))

    def _call(
        self, name: str, batch: Value, row: Value, panel: Value, tile: Value, *span: Span
    ) -> None:
        given = f"ptr %args, {batch}, {row}, {panel}, {self.start}, {tile}"
        if self.by.stretch:
            given += "".join(f", {step}" for step in span[0])
        given += self._operand(row)
        self.b.lines.append(f"  call void @{name}({given})")

    def _operand(self, row: Value) -> str:
        """What the functions take besides: where the left operand of a block begins, if it is made
        here."""
        return ""

    # -- what follows the sums ---------------------------------------------------------------

    def _finish(self, row: Value, count: Value, first: Value, tile: Value) -> None:
        """The kernel's stores for each row of the block and each vector of the panel."""
        b, by, lanes = self.b, self.by, self.choice.lanes
        number = self.scopes.open_loop(self._number(0), count, 1)
        self._enter_row(b.add(row, number))
        self.values.row_level = self.scopes.depth + 1
        start = b.mul(number, self.vectors)
        left = b.sub(self._number(by.columns), first)
        wide = b.intrinsic("smin", left, by.width)
        v = self.scopes.open_loop(self._number(0), wide, lanes, whole_steps=True)
        place = b.add(start, b.emit(f"udiv {v}, {lanes}", I64))
        self._vector(b.add(first, v), self._vector_at(tile, place), None)
        self.scopes.close()
        tail = by.columns % lanes
        if tail:  # of the last panel alone
            self.scopes.open_if(b.compare("slt", left, by.width))
            whole = by.columns - tail
            inside = (whole - (by.panels - 1) * by.width) // lanes
            place = self._vector_at(tile, b.add(start, inside))
            self._vector(self._number(whole), place, tail)
            self.scopes.close()
        self.scopes.close()

    def _vector(self, column: Value, place: Value, tail: int | None) -> None:
        """One vector of sums takes the place of the reduction."""
        level = self.scopes.depth
        *others, last = self.product.columns
        self.values.axis_level[last] = level
        base = column
        if others:
            base = self.b.emit(f"urem {column}, {last.extent.number}", I64)
            around = self.b.emit(f"udiv {column}, {last.extent.number}", I64)
            self._bind_axes(tuple(others), around)
        self.values.set_vector(last, base, tail)
        sums = self.b.emit(f"load {self.vector}, {place}", self.vector)
        self.scopes.bind(level, self.product.node, sums)
        for phase in self._along():
            self._stores(list(phase.stores))

    def _along(self) -> tuple[Phase, ...]:
        """The phases that work on the elements of the product one by one."""
        return self.kernel.phases

    def _enter_row(self, row: Value) -> None:
        self._bind_axes(self.product.rows, row)

    def _bind_axes(self, axes: tuple[Expr, ...], number: Value) -> None:
        """Read axes off their number, the last one fastest."""
        level = self.scopes.depth
        for k, a in enumerate(reversed(axes)):
            last = k == len(axes) - 1
            digit = number if last else self._digit(number, a.extent)
            by = self._size(a.extent).text
            number = number if last else self.b.emit(f"udiv {number}, {by}", I64)
            self.values.axis_level[a] = level
            self.scopes.bind(level, a, digit)
