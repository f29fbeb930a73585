"""Column reductions of arrays larger than any cache: whole rows stream by, one after the other.

In: a `ScheduledKernel` whose `Choice` asks for it. Out: LLVM IR. Reading a few columns at a time,
or a few rows, would walk memory in short pieces a row apart. That costs half of its speed, because
a processor prefetches along one line. The sums of few columns stay in registers, for which every
loop over them is unrolled; the sums of many stay in a cache. Sums of many rows are flushed now and
then, as in any other reduction. A `wide_sum` of f32 is summed in f64 and a maximum has no rounding
error, so neither is flushed. The window of a pool is a few rows, each tested for being inside.

    for task:                             a chunk of columns
        for block of rows:
            for row:  if it is inside:  for v in chunk:  sums[v] += x[row, v]     or four rows of x
            for v:    totals[v] += sums[v];  sums[v] = 0
        for v:  stores of the kernel with totals[v]
"""

from __future__ import annotations

from collections.abc import Callable

from litz.codegen.llvm.blocked_summation import blocked_summation_of
from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.reductions import Reduction
from litz.codegen.llvm.scope import I64, Scope
from litz.codegen.llvm.values import Tail
from litz.ir.expr import Expr, walk
from litz.ir.index import ONE
from litz.ir.ops import neutral
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import is_multiple

# Loops over at most this many vectors of columns are unrolled: the number of registers. Sums that
# get none live on the stack, at constant offsets.
MAX_UNROLLED_VECTORS = 32
# Code for one vector of columns, given its position in the chunk.
Work = Callable[[Value], None]


class ColumnReductionEmitter(KernelEmitter):
    """Writes one kernel that reduces along columns."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        self.phase, *self.behind = self.kernel.phases
        self.values.memory.in_order = True
        nodes = (n for s in self.phase.stores for n in walk(s.value) if n.op == "reduce")
        reduces = list(dict.fromkeys(nodes))
        blocked_summation = blocked_summation_of(reduces, self.phase, 1, lanes_are_rows=True)
        given = (1, self.choice.lanes, blocked_summation)
        self.reductions = [Reduction(self.values, n, *given) for n in reduces]
        # The innermost such axis is enough: each pass over it flushes all of its sums.
        self.flush_every = next(iter(blocked_summation.flush_every.items()), None)
        self.blocked = [r for r in self.reductions if r.is_blocked]
        self.sums = {r: self._array(r.type) for r in self.reductions}
        self.totals = {r: self._array(r.total_type) for r in self.blocked}

    def _array(self, kind: Type) -> Value:
        """Memory for the sums of a chunk."""
        return self.frame.take("sums", self.vectors, kind)

    @property
    def vectors(self) -> int:
        """Vectors of columns in a chunk."""
        return -(-self.choice.chunk // self.choice.lanes)

    @property
    def is_unrolled(self) -> bool:
        """Whether there is only one chunk, and a short one."""
        n = self.columns.extent
        whole = n.is_const and n.number <= self.choice.chunk
        registers = sum(r.type.bits // (8 * r.node.args[0].dtype.bytes) for r in self.reductions)
        return whole and self.vectors * registers <= MAX_UNROLLED_VECTORS

    def _vectorize_outer(self, task: Value) -> None:
        assert self.choice.vector is not None
        b = self.b
        start = self._bind_tasks(task)[self.choice.vector]
        stop = b.intrinsic("smin", b.add(start, self.choice.chunk), self._size(self.columns.extent))
        self._for_columns(start, stop, self._start)
        self._rows(start, stop, list(self.phase.inner))
        self._for_columns(start, stop, self._finish)

    def _rows(self, start: Value, stop: Value, axes: list[Expr]) -> None:
        """Loop over all rows; an axis whose sums are flushed is split into blocks."""
        if not axes:
            with self._where_inside(self.reductions, self.phase.inner):
                self._for_columns(start, stop, self._add_row)
            return
        row, *others = axes
        first, end = self._number(0), self._size(row.extent)
        along, every = self.flush_every or (ONE, ONE)
        blocks = self.blocked and row is along
        if blocks:
            far = self._far(every, 1)
            n, first = end, self.scopes.open_loop(first, end, far)
            end = self.b.intrinsic("smin", self.b.add(first, far), n)
        counter = self.scopes.open_loop(first, end, 1)
        level = self.values.axis_level[row] = self.scopes.depth
        self.scopes.bind(level, row, counter)
        self._rows(start, stop, others)
        self.scopes.close()
        if blocks:
            self._for_columns(start, stop, self._flush)
            self.scopes.close()

    @property
    def columns(self) -> Expr:
        assert self.choice.vector is not None
        return self.choice.vector

    def _for_columns(self, start: Value, stop: Value, work: Work) -> None:
        """Emit the work for each vector of a chunk, the last one masked."""
        if self.is_unrolled:
            self._for_each(work)
            return
        b, lanes = self.b, self.choice.lanes
        base = self.scopes.open_loop(start, stop, lanes, whole_steps=True)
        self._at(base, start, None, work)
        self.scopes.close()
        if not is_multiple(self.columns.extent, lanes):
            rest = b.add(start, b.emit(f"and {b.sub(stop, start)}, {-lanes}", I64))
            self.scopes.open_if(b.compare("slt", rest, stop))
            self._at(rest, start, self._tail(self.columns.extent, rest, stop), work)
            self.scopes.close()

    def _for_each(self, work: Work) -> None:
        """The same, unrolled: array offsets are then constants, and sums live in registers."""
        lanes, n = self.choice.lanes, self.columns.extent.number
        for k in range(self.vectors):
            around = self.scopes.stack[-1]
            self.scopes.stack.append(Scope(around.lines, around.block))
            self._place_lanes(self._number(k * lanes), n % lanes if n < (k + 1) * lanes else None)
            work(self._number(k))
            self.scopes.stack.pop()
            self.scopes.select(self.scopes.depth)

    def _place_lanes(self, base: Value, tail: Tail) -> None:
        self.values.axis_level[self.columns] = self.values.row_level = self.scopes.depth
        self.values.set_vector(self.columns, base, tail)

    def _at(self, base: Value, start: Value, tail: Tail, work: Work) -> None:
        self._place_lanes(base, tail)
        work(self.b.emit(f"udiv {self.b.sub(base, start)}, {self.choice.lanes}", I64))

    # -- work on one vector of columns -------------------------------------------------------

    def _place(self, array: Value, kind: Type, at: Value) -> Value:
        return self.b.emit(f"getelementptr {kind}, {array}, {at}", POINTER)

    def _start(self, at: Value) -> None:
        """Set all sums to their neutral values."""
        for reduction, array in self.sums.items():
            start = neutral(reduction.spec.combine, reduction.dtype)
            self._put(array, at, self.b.constant(start, reduction.type))
        for reduction, array in self.totals.items():
            self._put(array, at, self.b.constant(0, reduction.total_type))

    def _put(self, array: Value, at: Value, value: Value) -> None:
        self.b.lines.append(f"  store {value}, {self._place(array, value.type, at)}")

    def _get(self, array: Value, at: Value, kind: Type) -> Value:
        return self.b.emit(f"load {kind}, {self._place(array, kind, at)}", kind)

    def _add_row(self, at: Value) -> None:
        for reduction, array in self.sums.items():
            here = self._get(array, at, reduction.type)
            self.b.lines.append(f"  store {here}, {reduction.slots[0]}")
        self._body(self.reductions, [], 0)
        for reduction, array in self.sums.items():
            text = f"load {reduction.type}, {reduction.slots[0]}"
            self._put(array, at, self.b.emit(text, reduction.type))

    def _flush(self, at: Value) -> None:
        for reduction, array in self.totals.items():
            more = reduction.widened(self._get(self.sums[reduction], at, reduction.type))
            total = reduction.combined(self._get(array, at, reduction.total_type), more)
            self._put(array, at, total)
            self._put(self.sums[reduction], at, self.b.constant(0, reduction.type))

    def _finish(self, at: Value) -> None:
        """Bind the reductions to a vector of totals, then emit the kernel's stores."""
        for reduction, array in (self.sums | self.totals).items():
            kind = reduction.total_type if reduction.is_blocked else reduction.type
            total = self._get(array, at, kind)
            total = reduction.rounded(total if reduction.is_blocked else reduction.widened(total))
            self.scopes.bind(self.scopes.depth, reduction.node, total)
        for phase in (self.phase, *self.behind):
            self._stores(list(phase.completing if phase.inner else phase.stores))
