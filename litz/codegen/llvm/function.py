"""What every kernel function has: its arguments, its scratch, its sizes, and a place for errors.

In: a `ScheduledKernel`. Out: `FunctionEmitter`, on which the emitters build. `args` holds one
pointer a buffer, then one number a symbolic size, and last the error record. A size that is known
is a number in the code; any other is read here, once, before the first loop.
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.checks import NOTE
from litz.codegen.llvm.ops import stored_type
from litz.codegen.llvm.scope import I64, Scopes
from litz.codegen.llvm.values import Tail, Values
from litz.ir.expr import Expr
from litz.ir.program import Buffer, read, written
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import is_multiple

POINTER = Type("ptr", 1)
CACHE_LINE = 64


class FunctionEmitter:
    """The frame of one function."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        self.scheduled, self.kernel, self.name = scheduled, scheduled.kernel, name
        self.choice = scheduled.choice
        self.b = Builder(self.choice.lanes, "f32")
        self.b.lines.append("entry:")
        self.scopes = Scopes(self.b)
        self.values = Values(self.b, self.scopes, self.choice.lanes)
        self.values.memory.asserts = self.choice.asserts
        self.values.memory.past = self.choice.past
        self.values.memory.written = {s.buffer for p in self.kernel.phases for s in p.stores}
        self.heap: list[Value] = []  # to be freed at the end
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
            if f"b{k}" in flat:  # what is read at a stride of zero alone is gone
                values.memory.pointers[flat[f"b{k}"]] = self._argument(k)
        self._place_scratch()
        values.memory.safe = b.emit("alloca i64, align 8", POINTER)
        b.lines.append(f"  store i64 0, {values.memory.safe}")

    def _place_scratch(self) -> None:
        """Memory for one row of each; as many copies side by side as lanes if those are rows."""
        memory = self.values.memory
        copies = self.choice.lanes if self.choice.vector is not None else 1
        for row in self.kernel.scratch:
            if row.shape[0].is_const:
                found = self._stack_row(row, row.shape[0].number * copies)
            else:
                found = self._heap_row(row.shape[0], row.dtype.bytes * copies)
            memory.pointers[row], memory.local[row] = found, copies

    def _stack_row(self, row: Buffer, count: int) -> Value:
        """Scratch within a cache line's alignment, so that whole vectors load in one."""
        kind = stored_type(row.dtype, 1)
        return self.b.emit(f"alloca [{count} x {kind}], align {CACHE_LINE}", POINTER)

    def _heap_row(self, count: Expr, size: int) -> Value:
        """Scratch of as many elements as only a call knows: a stack may be too small for it."""
        b = self.b
        wanted = b.add(b.mul(self.values.value(count), size), CACHE_LINE)
        memory = b.extern("malloc", POINTER, wanted)
        self.heap.append(memory)
        b.declares |= {"declare void @free(ptr)", "declare ptr @llvm.ptrmask.p0.i64(ptr, i64)"}
        behind = b.emit(f"getelementptr i8, {memory}, i64 {CACHE_LINE - 1}", POINTER)
        return b.emit(
            f"call ptr @llvm.ptrmask.p0.i64({behind}, i64 {-CACHE_LINE})", POINTER
        )  # fmt: skip

    def _slot(self, k: int) -> Value:
        return self.b.emit(f"getelementptr ptr, ptr %args, i64 {k}", POINTER)

    def _argument(self, k: int) -> Value:
        return self.b.emit(f"load ptr, {self._slot(k)}", POINTER)

    def _report_errors(self) -> None:
        """Behind all tasks, and only if a check has failed."""
        b, noted = self.b, self.values.noted
        if noted is not None:
            site = b.emit(f"load volatile i64, {noted}", I64)
            self.scopes.open_if(b.compare("ne", site, 0))
            slot = self._slot(len(self.scheduled.arguments) + len(self.scheduled.sizes))
            b.declares.add(NOTE)
            b.lines.append(f"  call void @litz_note({slot}, {noted})")
            self.scopes.close()
        b.lines += [f"  call void @free({memory})" for memory in self.heap]
        b.lines.append("  ret void")

    # -- sizes -------------------------------------------------------------------------------

    def _tail(self, n: Expr, rest: Value, stop: Value) -> Tail:
        """How many lanes are left of the last vector."""
        return n.number % self.choice.lanes if n.is_const else self.b.sub(stop, rest)

    def _size(self, n: Expr) -> Value:
        """A size here: a number, or what the call says."""
        return self._number(n.number) if n.is_const else self.values.value(n)

    def _multiple(self, n: Expr, end: Value, step: int) -> Value:
        """The most whole steps in a size; steps are powers of two."""
        if n.is_const:
            return self._number(n.number - n.number % step)
        if is_multiple(n, step):
            return end
        found = self.steps_in.get((n, step))
        if found is None:  # one register, so that equal bounds are known to be equal
            self.scopes.select(0)
            found = self.steps_in[n, step] = self.b.emit(f"and {end}, {-step}", I64)
            self.scopes.select(self.scopes.depth)
        return found

    def _number(self, value: int) -> Value:
        return self.b.constant(value, I64)
