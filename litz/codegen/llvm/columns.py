"""Column reductions of arrays that no cache holds: rows pass by whole, one after the other.

In: a `ScheduledKernel` whose `Choice` says so. Out: LLVM IR. With a few columns at a time, or a few
rows, memory would be walked in short pieces a row apart, which costs half of its speed: a
processor reads ahead along one line. Sums of few columns stay in registers, for which every loop
over them is written out; those of many wait in a cache. Sums of many rows are put aside now and
then, as in any other reduction; a `wide_sum` of f32 is one of f64 anyway, and extremes need none of
it. A window of a pool is a few rows, which are tested one by one.

    for task:                             a chunk of columns
        for block of rows:
            for row:  if it is inside:  for v in chunk:  sums[v] += x[row, v]     or four rows of x
            for v:    totals[v] += sums[v];  sums[v] = 0
        for v:  stores of the kernel with totals[v]
"""

from __future__ import annotations

from collections.abc import Callable

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.reductions import Reduction
from litz.codegen.llvm.runs import runs_of
from litz.codegen.llvm.scope import I64, Scope
from litz.codegen.llvm.values import Tail
from litz.ir.expr import Expr, walk
from litz.ir.index import ONE
from litz.ir.ops import neutral
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import is_multiple

# Vectors of columns up to which loops over them are written out: as many as there are registers.
# Beyond these, some sums live on the stack, and yet are not looked up by a counter.
WRITTEN_OUT = 32
# What is done for one vector of columns, given where it lies in its chunk.
Work = Callable[[Value], None]


class ColumnEmitter(KernelEmitter):
    """Writes one kernel that reduces along columns."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        self.phase, *self.behind = self.kernel.phases
        self.values.memory.in_order = True
        nodes = (n for s in self.phase.stores for n in walk(s.value) if n.op == "reduce")
        reduces = list(dict.fromkeys(nodes))
        runs = runs_of(reduces, self.phase, 1, apart=True)
        given = (1, self.choice.lanes, runs)
        self.reductions = [Reduction(self.values, n, *given) for n in reduces]
        # The innermost such axis is enough: each of its passes puts all of its sums aside.
        self.aside = next(iter(runs.aside.items()), None)
        self.blocked = [r for r in self.reductions if r.gathers]
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
    def written_out(self) -> bool:
        """Whether there is but one chunk, and a short one."""
        n = self.columns.extent
        whole = n.is_const and n.number <= self.choice.chunk
        registers = sum(r.type.bits // (8 * r.node.args[0].dtype.bytes) for r in self.reductions)
        return whole and self.vectors * registers <= WRITTEN_OUT

    def _lanes_of_rows(self, task: Value) -> None:
        assert self.choice.vector is not None
        b = self.b
        start = self._bind_tasks(task)[self.choice.vector]
        stop = b.intrinsic("smin", b.add(start, self.choice.chunk), self._size(self.columns.extent))
        self._for_columns(start, stop, self._start)
        self._rows(start, stop, list(self.phase.inner))
        self._for_columns(start, stop, self._finish)

    def _rows(self, start: Value, stop: Value, axes: list[Expr]) -> None:
        """Every row; of an axis whose sums are put aside, in blocks."""
        if not axes:
            with self._where_inside(self.reductions, self.phase.inner):
                self._for_columns(start, stop, self._add_row)
            return
        row, *others = axes
        first, end = self._number(0), self._size(row.extent)
        along, every = self.aside or (ONE, ONE)
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
            self._for_columns(start, stop, self._put_aside)
            self.scopes.close()

    @property
    def columns(self) -> Expr:
        assert self.choice.vector is not None
        return self.choice.vector

    def _for_columns(self, start: Value, stop: Value, work: Work) -> None:
        """Do it for each vector of a chunk, the last one masked."""
        if self.written_out:
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
        """The same, written out: places in arrays are then numbers, and LLVM has registers."""
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
        """Nothing is there yet."""
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

    def _put_aside(self, at: Value) -> None:
        for reduction, array in self.totals.items():
            more = reduction.widened(self._get(self.sums[reduction], at, reduction.type))
            total = reduction.combined(self._get(array, at, reduction.total_type), more)
            self._put(array, at, total)
            self._put(self.sums[reduction], at, self.b.constant(0, reduction.type))

    def _finish(self, at: Value) -> None:
        """A vector of totals takes the place of the reduction."""
        for reduction, array in (self.sums | self.totals).items():
            kind = reduction.total_type if reduction.gathers else reduction.type
            total = self._get(array, at, kind)
            total = reduction.rounded(total if reduction.gathers else reduction.widened(total))
            self.scopes.bind(self.scopes.depth, reduction.node, total)
        for phase in (self.phase, *self.behind):
            self._stores(list(phase.completing if phase.inner else phase.stores))
