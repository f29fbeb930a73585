"""A GEMM among the phases of a row: earlier phases compute its left operand, later ones whole rows.

In: a `ScheduledKernel` with a `GemmBlocking`, one of whose phases is a GEMM. Out: LLVM IR. Scratch
holds as many rows as a task takes. The phases before the GEMM fill the rows of its left operand. A
thread whose next task is another panel of the same rows finds them there. If phases follow, a task
takes all panels, and its rows are finished while they are in the cache.

    for chunk of rows:
        for row:                 phases before the GEMM
        for panel:  for block:   sums, then the stores of the GEMM's own phase
        for row:                 phases after it
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Value
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.gemm import GemmEmitter
from litz.codegen.llvm.ops import stored_type
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.scope import I64
from litz.ir.expr import integer
from litz.ir.gemm import gemm_phase
from litz.ir.program import Buffer, Phase
from litz.ir.scheduled import ScheduledKernel


class RowGemmEmitter(GemmEmitter):
    """Writes one kernel of rows with a GEMM in it."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        place = gemm_phase(self.kernel)
        assert place is not None
        phases = self.kernel.phases
        self.prologue_phases, self.main_phase, self.epilogue_phases = (
            phases[:place],
            phases[place],
            phases[place + 1 :],
        )
        self.bases: dict[Buffer, Value] = {}  # scratch of the first row of a task
        self.first: Value  # the first row of a task
        # The chunk of rows that scratch holds now, if the next task may be of the same chunk.
        again = self.prologue_phases and not self.by.full_rows
        self.prologue_rows = stack_slot(self.values, I64, "rows") if again else None

    def _place_scratch(self) -> None:
        memory = self.values.memory
        for row in self.kernel.scratch:
            self.bases[row] = self._row_memory(row, row.shape[0], self.by.scratch_rows)
            memory.pointers[row], memory.local[row] = self.bases[row], 1

    def _arguments(self) -> None:
        super()._arguments()
        if self.prologue_rows is not None:
            self.b.lines.append(f"  store i64 -1, {self.prologue_rows}")

    # -- one task ----------------------------------------------------------------------------

    def _task(self, task: Value) -> None:
        b, by = self.b, self.by
        panels = 1 if by.full_rows else by.panels
        panel, around = self._digit(task, integer(panels)), task
        if panels > 1:
            around = b.emit(f"udiv {task}, {panels}", I64)
        chunk = self._digit(around, by.m_blocks)
        batch = b.emit(f"udiv {around}, {self._size(by.m_blocks).text}", I64)
        self._bind_axes(self.gemm.batch, batch)
        start, stop = self._rows_of(chunk)
        self.first = start
        self._emit_prologue(around, start, stop)
        if not by.full_rows:
            self._in_panel(batch, start, stop, panel)
            return
        panel = self.scopes.open_loop(self._number(0), self._number(by.panels), 1, rolled=True)
        self._in_panel(batch, start, stop, panel)
        self.scopes.close()
        self._by_rows(self.epilogue_phases, start, stop)

    def _emit_prologue(self, rows: Value, start: Value, stop: Value) -> None:
        """The phases before the GEMM, unless the previous task had the same rows."""
        b, made = self.b, self.prologue_rows
        if made is None:
            self._by_rows(self.prologue_phases, start, stop)
            return
        self.scopes.open_if(b.compare("ne", b.emit(f"load i64, {made}", I64), rows))
        b.lines.append(f"  store {rows}, {made}")
        self._by_rows(self.prologue_phases, start, stop)
        self.scopes.close()

    def _by_rows(self, phases: tuple[Phase, ...], start: Value, stop: Value) -> None:
        if not phases:
            return
        self._enter_row(self.scopes.open_loop(start, stop, 1, rolled=True))
        self.values.set_vector(None, None, None)
        self.values.row_level = self.scopes.depth
        for phase in phases:
            self._phase(phase, in_lanes=True)
        self.scopes.close()

    # -- rows in scratch ---------------------------------------------------------------------

    def _elementwise_phases(self) -> tuple[Phase, ...]:
        return (self.main_phase,)

    def _enter_row(self, row: Value) -> None:
        super()._enter_row(row)
        for buffer in self.bases:
            self.values.memory.pointers[buffer] = self._row_of(buffer, row)

    def _row_of(self, buffer: Buffer, row: Value) -> Value:
        """The scratch of one row of a task."""
        place = self.b.mul(self.b.sub(row, self.first), buffer.shape[0].number)
        kind = stored_type(buffer.dtype, 1)
        return self.b.emit(f"getelementptr {kind}, {self.bases[buffer]}, {place}", POINTER)

    def _operand(self, row: Value) -> str:
        return "" if self.made is None else f", {self._row_of(self.made, row)}"
