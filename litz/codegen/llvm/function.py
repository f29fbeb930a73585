"""The parts every kernel function has: its arguments, its scratch, its sizes, its error report.

In: a `ScheduledKernel`. Out: `FunctionEmitter`, the base of all emitters. `args` holds one pointer
a buffer, then one number a symbolic size, and last the error record. A known size is a constant in
the code; any other is read once, before the first loop.
"""

from __future__ import annotations

from functools import reduce

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.checks import REPORT_CHECK
from litz.codegen.llvm.frame import POINTER
from litz.codegen.llvm.ops import stored_type
from litz.codegen.llvm.scope import I64, Scopes
from litz.codegen.llvm.values import Tail, Values
from litz.ir.checks import MEMORY
from litz.ir.expr import Expr
from litz.ir.program import Buffer, read, written
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import is_multiple


class FunctionEmitter:
    """The beginning and the end of one function."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        self.scheduled, self.kernel, self.name = scheduled, scheduled.kernel, name
        self.choice = scheduled.choice
        self.b = Builder(self.choice.lanes, "f32")
        self.b.lines.append("entry:")
        self.scopes = Scopes(self.b)
        self.values = Values(self.b, self.scopes, self.choice.lanes)
        self.values.memory.asserts = self.choice.asserts
        self.values.memory.non_temporal = self.choice.non_temporal
        self.values.memory.isa = self.choice.isa
        self.values.memory.written = {s.buffer for p in self.kernel.phases for s in p.stores}
        self.frame = self.values.frame
        self.until = Value("%end", I64)  # the end of this call's tasks
        self.rows: list[tuple[Value, Value]] = []  # scratch: its pointer and its bytes
        self.steps_in: dict[tuple[Expr, int], Value] = {}

    # -- arguments and scratch ---------------------------------------------------------------

    def _arguments(self) -> None:
        b, values = self.b, self.values
        for k, symbol in enumerate(self.scheduled.sizes):
            slot = self._slot(len(self.scheduled.arguments) + k)
            kind = Type("double", 1) if symbol.dtype.is_float else I64
            self.scopes.bind(0, symbol, b.emit(f"load {kind}, {slot}", kind))
        flat = {buffer.name: buffer for buffer in (*written(self.kernel), *read(self.kernel))}
        for k in range(len(self.scheduled.arguments)):
            if f"b{k}" in flat:  # not if its only reads, at a stride of zero, are gone
                values.memory.pointers[flat[f"b{k}"]] = self._argument(k)
        self._place_scratch()
        values.memory.safe = b.emit("alloca i64, align 8", POINTER)
        b.lines.append(f"  store i64 0, {values.memory.safe}")
        self._check_memory()
        self._poison_scratch()

    def _place_scratch(self) -> None:
        """Memory for one row of each scratch buffer, or one row a lane if lanes are rows."""
        memory = self.values.memory
        copies = self.choice.lanes if self.choice.vector is not None else 1
        for row in self.kernel.scratch:
            memory.pointers[row] = self._row_memory(row, row.shape[0], copies)
            memory.local[row] = copies

    def _row_memory(self, row: Buffer, length: Expr, copies: int) -> Value:
        """Scratch, aligned so that a whole vector is one load."""
        size = self.b.mul(self._size(length), row.dtype.bytes * copies)
        if length.is_const:
            kind = stored_type(row.dtype, 1)
            found = self.frame.take("row", length.number * copies, kind)
        else:
            found = self.frame.allocate_bytes("row", size)
        self.rows.append((found, size))
        return found

    def _check_memory(self) -> None:
        """Test the allocations: without its memory, a kernel runs none of its tasks."""
        b, flags, self.frame.checked = self.b, [], True
        for memory, wanted in self.frame.heap:
            flags.append(b.emit(f"icmp eq {memory}, null", Type("i1", 1)))
            self.values.flag(flags[-1], MEMORY, wanted)
        if flags:
            missing = reduce(b.bit_or, flags)
            self.until = b.select(missing, Value("%begin", I64), self.until)

    def _poison_scratch(self) -> None:
        """With `debug_poison_memory`: fill scratch with NaN before it is written."""
        if not self.choice.poison or not self.rows:
            return
        b = self.b
        b.declares.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        # Without memory there are no tasks.
        self.scopes.open_if(b.compare("slt", Value("%begin", I64), self.until))
        for pointer, size in self.rows:
            b.lines.append(f"  call void @llvm.memset.p0.i64({pointer}, i8 -1, {size}, i1 false)")
        self.scopes.close()

    def _slot(self, k: int) -> Value:
        return self.b.emit(f"getelementptr ptr, ptr %args, i64 {k}", POINTER)

    def _argument(self, k: int) -> Value:
        return self.b.emit(f"load ptr, {self._slot(k)}", POINTER)

    def _report_errors(self) -> None:
        """After all tasks: report a failed check, if there was one."""
        b, noted = self.b, self.values.noted
        if noted is not None:
            site = b.emit(f"load volatile i64, {noted}", I64)
            self.scopes.open_if(b.compare("ne", site, 0))
            slot = self._slot(len(self.scheduled.arguments) + len(self.scheduled.sizes))
            b.declares.add(REPORT_CHECK)
            b.lines.append(f"  call void @litz_note({slot}, {noted})")
            self.scopes.close()
        self.frame.free()
        b.lines.append("  ret void")

    # -- sizes -------------------------------------------------------------------------------

    def _tail(self, n: Expr, rest: Value, stop: Value) -> Tail:
        """How many lanes the last, partial vector has."""
        return n.number % self.choice.lanes if n.is_const else self.b.sub(stop, rest)

    def _size(self, n: Expr) -> Value:
        """The value of a size: a constant, or an argument of the call."""
        return self._number(n.number) if n.is_const else self.values.value(n)

    def _multiple(self, n: Expr, end: Value, step: int) -> Value:
        """A size rounded down to whole steps; steps are powers of two."""
        if n.is_const:
            return self._number(n.number - n.number % step)
        if is_multiple(n, step):
            return end
        found = self.steps_in.get((n, step))
        if found is None:  # one register, so that LLVM knows equal bounds to be equal
            self.scopes.select(0)
            found = self.steps_in[n, step] = self.b.emit(f"and {end}, {-step}", I64)
            self.scopes.select(self.scopes.depth)
        return found

    def _number(self, value: int) -> Value:
        return self.b.constant(value, I64)
