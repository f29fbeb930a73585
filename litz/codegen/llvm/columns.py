"""Column reductions of arrays that no cache holds: rows pass by whole, sums wait in a cache.

In: a `ScheduledKernel` whose `Choice` says how many rows pass together. Out: LLVM IR. With sums in
registers, a few columns at a time, memory would be walked in short pieces a row apart, which costs
half of its speed. Sums of many rows are put aside now and then, as in any other reduction.

    for task:                             a chunk of columns
        for block of rows:
            for 4 rows:  for v in chunk:  sums[v] += x[r, v] + ... + x[r + 3, v]
            for v:       totals[v] += sums[v]
        for v:  stores of the kernel with totals[v]
"""

from __future__ import annotations

from collections.abc import Callable

from litz.codegen.llvm.builder import Value
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.reductions import Reduction
from litz.codegen.llvm.scope import I64, Scope
from litz.codegen.llvm.values import Tail
from litz.ir.expr import Expr, walk
from litz.ir.ops import neutral
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import is_multiple

# Rows after which sums are put aside; a multiple of those that pass together.
BLOCK = 32
# What is done for one vector of columns, given where it lies in its chunk.
Work = Callable[[Value], None]


class ColumnEmitter(KernelEmitter):
    """Writes one kernel that reduces along columns."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        (self.phase,) = self.kernel.phases
        (self.row,) = self.phase.inner
        nodes = (n for s in self.phase.stores for n in walk(s.value) if n.op == "reduce")
        lanes = self.choice.lanes
        self.reductions = [Reduction(self.values, n, 1, lanes) for n in dict.fromkeys(nodes)]
        self.sums = [self._array(r) for r in self.reductions]
        self.totals = [self._array(r) for r in self.reductions]

    def _array(self, reduction: Reduction) -> Value:
        """Stack memory for the sums of a chunk."""
        array = Value(f"%{self.b.fresh('sums')}", POINTER)
        vectors = -(-self.choice.chunk // self.choice.lanes)
        size = f"[{vectors} x {reduction.type}], align 64"
        self.scopes.stack[0].lines.insert(1, f"  {array.text} = alloca {size}")
        return array

    def _lanes_of_rows(self, task: Value) -> None:
        assert self.choice.vector is not None
        b, n, together = self.b, self._size(self.row.extent), self.choice.rows
        start = self._bind_tasks(task)[self.choice.vector]
        stop = b.intrinsic("smin", b.add(start, self.choice.chunk), self._size(self.columns.extent))
        self._for_columns(start, stop, lambda at: self._clear(self.totals, at))
        block = self.scopes.open_loop(self._number(0), n, BLOCK)
        self._for_columns(start, stop, lambda at: self._clear(self.sums, at))
        end = b.intrinsic("smin", b.add(block, BLOCK), n)
        row = self.scopes.open_loop(block, end, together, whole_steps=True)
        self._for_columns(start, stop, lambda at: self._add_rows(row, together, at))
        self.scopes.close()
        if not is_multiple(self.row.extent, together):  # only the last block has rows left
            whole = b.emit(f"and {b.sub(end, block)}, {-together}", I64)
            last = self.scopes.open_loop(b.add(block, whole), end, 1)
            self._for_columns(start, stop, lambda at: self._add_rows(last, 1, at))
            self.scopes.close()
        self._for_columns(start, stop, self._put_aside)
        self.scopes.close()
        self._for_columns(start, stop, self._finish)

    @property
    def columns(self) -> Expr:
        assert self.choice.vector is not None
        return self.choice.vector

    def _for_columns(self, start: Value, stop: Value, work: Work) -> None:
        """Do it for each vector of a chunk, the last one masked."""
        b, lanes = self.b, self.choice.lanes
        base = self.scopes.open_loop(start, stop, lanes, whole_steps=True)
        self._at(base, start, None, work)
        self.scopes.close()
        if not is_multiple(self.columns.extent, lanes):
            rest = b.add(start, b.emit(f"and {b.sub(stop, start)}, {-lanes}", I64))
            self.scopes.open_if(b.compare("slt", rest, stop))
            self._at(rest, start, self._tail(self.columns.extent, rest, stop), work)
            self.scopes.close()

    def _at(self, base: Value, start: Value, tail: Tail, work: Work) -> None:
        self.values.axis_level[self.columns] = self.values.row_level = self.scopes.depth
        self.values.set_vector(self.columns, base, tail)
        work(self.b.emit(f"udiv {self.b.sub(base, start)}, {self.choice.lanes}", I64))

    # -- work on one vector of columns -------------------------------------------------------

    def _place(self, array: Value, reduction: Reduction, at: Value) -> Value:
        return self.b.emit(f"getelementptr {reduction.type}, {array}, {at}", POINTER)

    def _clear(self, arrays: list[Value], at: Value) -> None:
        for reduction, array in zip(self.reductions, arrays, strict=True):
            start = neutral(reduction.spec.combine, reduction.dtype)
            value = self.b.constant(start, reduction.type)
            self.b.lines.append(f"  store {value}, {self._place(array, reduction, at)}")

    def _copied(self, reduction: Reduction, source: Value, target: Value) -> None:
        value = self.b.emit(f"load {reduction.type}, {source}", reduction.type)
        self.b.lines.append(f"  store {value}, {target}")

    def _add_rows(self, first: Value, count: int, at: Value) -> None:
        places = [self._place(s, r, at) for s, r in zip(self.sums, self.reductions, strict=True)]
        for place, reduction in zip(places, self.reductions, strict=True):
            self._copied(reduction, place, reduction.slots[0])
        for number in range(count):
            around = self.scopes.stack[-1]
            self.scopes.stack.append(Scope(around.lines, around.block))
            level = self.values.axis_level[self.row] = self.scopes.depth
            self.scopes.bind(level, self.row, self.b.add(first, number) if number else first)
            self._body(self.reductions, [], 0)
            self.scopes.stack.pop()
            self.scopes.select(self.scopes.depth)
        for place, reduction in zip(places, self.reductions, strict=True):
            self._copied(reduction, reduction.slots[0], place)

    def _put_aside(self, at: Value) -> None:
        for reduction, *arrays in zip(self.reductions, self.totals, self.sums, strict=True):
            kind, places = reduction.type, [self._place(a, reduction, at) for a in arrays]
            total, more = (self.b.emit(f"load {kind}, {place}", kind) for place in places)
            self.b.lines.append(f"  store {reduction.combined(total, more)}, {places[0]}")

    def _finish(self, at: Value) -> None:
        """A vector of totals takes the place of the reduction."""
        for reduction, array in zip(self.reductions, self.totals, strict=True):
            text = f"load {reduction.type}, {self._place(array, reduction, at)}"
            self.scopes.bind(self.scopes.depth, reduction.node, self.b.emit(text, reduction.type))
        self._stores(list(self.phase.completing))
