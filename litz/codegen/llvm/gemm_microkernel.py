"""The GEMM microkernel: a function that sums one tile in registers.

In: a `ScheduledKernel` with a `GemmBlocking`. Out: LLVM IR of a function for some number of rows,
which leaves its sums in a tile in memory. For each step of k it reads one vector row of the panel
and one number a row of the left operand, broadcasts the number, and adds their products. It is a
function of its own so that all registers hold sums, none the values of the kernel around it.
Example: 6 rows by 4 vectors are 24 sums; `microkernel6` is called once for each block of rows, or
once for each of its k-blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from litz.codegen.llvm.builder import Value
from litz.codegen.llvm.dot_instructions import DotEmitter, dot_emitter_for
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.ops import computed_type
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.scope import I64, Scope
from litz.ir.expr import Expr, apply, axis, integer, load, rebuild, substitute, transform
from litz.ir.gemm import BlockedOperands, GemmParts, blocked_operands, gemm_of, stored_load
from litz.ir.index import coefficient, simplify, simplify_indices, simplify_values
from litz.ir.program import Buffer
from litz.ir.scheduled import ScheduledKernel

# Steps after which sums are added to the tile: a long sum then rounds no worse than a few short
# ones.
K_SUM_BLOCK = 256
KRange = tuple[Value, Value]  # the first step of a k-block and the end of its steps
# The same, as parameters of the microkernel.
K_BEGIN, K_END = Value("%first", I64), Value("%last", I64)


class GemmFunctionEmitter(KernelEmitter):
    """The part that a GEMM kernel and its microkernels share."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        gemm, blocking = gemm_of(self.kernel), self.choice.gemm
        assert gemm is not None and blocking is not None
        self.gemm: GemmParts = gemm
        self.by = blocking
        self.vectors = blocking.nr // self.choice.lanes
        self.vector = computed_type(gemm.node.dtype, self.choice.lanes)
        self.dot: DotEmitter | None = dot_emitter_for(gemm, blocking.group, self.choice.isa)
        self.tile: Value
        # The scratch rows of the left operand, if the kernel computes it.
        stored = stored_load(gemm.left)
        made = stored is not None and stored.buffer in self.kernel.scratch
        self.made = stored.buffer if stored is not None and made else None

    def _vector_at(self, tile: Value, number: Value) -> Value:
        return self.b.emit(f"getelementptr {self.vector}, {tile}, {number}", POINTER)


class GemmMicrokernel(GemmFunctionEmitter):
    """The function that sums a block of rows into the tile."""

    def __init__(
        self, scheduled: ScheduledKernel, name: str, rows: int, min_rows: int | None = None
    ) -> None:
        super().__init__(scheduled, name)
        self.min_rows = rows if min_rows is None else min_rows  # rows that always exist
        self.tile = Value("%tile", POINTER)
        self.pointers: dict[Expr, tuple[Value, int]] = {}  # each row in this tap, and its stride
        self.blocks: BlockedOperands = blocked_operands(self.gemm, self.by.nr, self.by.group)
        # Whether sums are written to the tile only once, so that it needs no initial values.
        short = self.by.depth.is_const and self.by.depth.number * self.by.taps <= K_SUM_BLOCK
        self.once = (
            short and not self.by.rest and (self.dot is None or not self.dot.needs_compensation)
        )
        self.sums = [
            [stack_slot(self.values, self.vector, "sum") for _ in range(self.vectors)]
            for _ in range(rows)
        ]

    def emit(self) -> str:
        self._arguments()
        by, b = self.by, self.b
        self._bind(self.blocks.batch, Value("%batch", I64))
        self._bind(self.blocks.panel, Value("%panel", I64))
        lefts = [self._left(r) for r in range(len(self.sums))]
        if by.k_block:
            self.scopes.open_if(b.compare("eq", K_BEGIN, 0))
            self._init_tile()
            self.scopes.close()
        elif not self.once:
            self._init_tile()
        if self.gemm.taps:
            self._taps(lefts)
        else:
            self._k_loop(lefts)
        if by.rest:
            self._clear()
            with self._fresh_scope():
                self._k_step(self._size(by.steps), lefts, by.rest)
            self._add_to_tile()
        self._report_errors()
        body = "\n".join(b.lines)
        taken = "ptr %args, i64 %batch, i64 %row, i64 %panel, ptr %start, ptr noalias %tile"
        taken += f", {K_BEGIN}, {K_END}" if by.k_block else ""
        taken += "" if self.made is None else ", ptr %left"
        return f"define internal void @{self.name}({taken}) noinline #0 {{\n{body}\n}}\n"

    def _k_loop(self, lefts: list[Expr]) -> None:
        """The whole steps of the sum, added to the tile every `K_SUM_BLOCK` steps."""
        by, b = self.by, self.b
        far = K_SUM_BLOCK // by.group if self.dot is None else K_SUM_BLOCK
        first, last = (K_BEGIN, K_END) if by.k_block else (self._number(0), self._size(by.steps))
        block = self.scopes.open_loop(first, last, far, rolled=True)
        self._clear()
        end = b.intrinsic("smin", b.add(block, far), last)
        # LLVM would interleave unrolled steps, and spill the sums.
        step = self.scopes.open_loop(block, end, 1, rolled=True)
        self._k_step(step, lefts)
        self.scopes.close()
        self._add_to_tile()
        self.scopes.close()

    def _taps(self, lefts: list[Expr]) -> None:
        """A sum for each tap; short ones are added to the tile several at a time."""
        by, b = self.by, self.b
        if by.depth.number > K_SUM_BLOCK:
            tap = self.scopes.open_loop(self._number(0), self._number(by.taps), 1, rolled=True)
            self._bind(self.blocks.tap, tap)
            self._point_at_tap(lefts)
            self._k_loop(lefts)
            self.scopes.close()
            return
        far = max(K_SUM_BLOCK // by.depth.number, 1)
        first = self.scopes.open_loop(self._number(0), self._number(by.taps), far, rolled=True)
        self._clear()
        last = b.intrinsic("smin", b.add(first, far), by.taps)
        tap = self.scopes.open_loop(first, last, 1, rolled=True)
        self._bind(self.blocks.tap, tap)
        self._point_at_tap(lefts)
        step = self.scopes.open_loop(self._number(0), self._size(by.steps), 1, rolled=True)
        self._k_step(step, lefts)
        self.scopes.close()
        self.scopes.close()
        self._add_to_tile()
        self.scopes.close()

    def _point_at_tap(self, lefts: list[Expr]) -> None:
        """Set the pointer of each row in this tap: outside of the image, to a row of zeros."""
        self.pointers = {}
        for left in lefts:
            found = coefficient(left.index[0], self.blocks.step)
            assert found is not None and found[0].is_const, left
            place = self.values.value(found[1])
            guard = None if left.guard is None else self.values.value(left.guard)
            self.scopes.select(self.scopes.depth)
            length = (self.by.depth.number - 1) * found[0].number + 1
            row = self.values.memory.row(left, place, length, guard, Value("%start", POINTER))
            self.pointers[left] = row, found[0].number

    def _bind(self, variable: Expr, value: Value) -> None:
        self.values.axis_level[variable] = self.scopes.depth
        self.scopes.bind(self.scopes.depth, variable, value)

    def _left(self, r: int) -> Expr:
        """The left operand in row r; its part that depends on the row alone is computed once."""
        row = axis(f"m{r}", self.by.rows)
        first = Value("%row", I64)
        here = self.b.add(first, r) if r else first
        if r >= self.min_rows:  # a row that may not exist reads the last one instead
            last = self.b.sub(self._size(self.by.rows), 1)
            here = self.b.intrinsic("smin", here, last)
        self._bind(row, here)
        left = simplify_indices(substitute(self.blocks.left, {self.blocks.row: row}))
        if self.made is None:
            return left
        inside = axis(f"l{r}", self.by.mr)
        self._bind(inside, self.b.sub(here, first))
        return self._among_rows(left, inside, self.made)

    def _place_scratch(self) -> None:
        """None: scratch is the kernel's, and `%left` points at the first row of the block."""

    def _among_rows(self, left: Expr, number: Expr, made: Buffer) -> Expr:
        """s0[k]   ->   s0[number * depth + k], where the rows of the block are contiguous."""
        length = made.shape[0]
        rows = replace(made, shape=(integer(self.by.mr * length.number),))
        self.values.memory.pointers[rows] = Value("%left", POINTER)

        def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
            node = rebuild(node, args)
            if node.op != "load" or node.buffer != made:
                return node
            place = apply("add", apply("mul", number, length), node.index[0])
            return load(rows, (simplify(place),), node.guard)

        return transform(left, change)

    def _places(self) -> Iterator[tuple[int, Value, Value]]:
        """For each sum: its column of vectors, its place in the tile, its slot."""
        for number, slot in enumerate(slot for row in self.sums for slot in row):
            yield number % self.vectors, self._vector_at(self.tile, self._number(number)), slot

    def _init_tile(self) -> None:
        """Set the tile to the initial sums."""
        for v, place, _ in self._places():
            self.b.lines.append(f"  store {self._start(v)}, {place}")

    def _start(self, v: int) -> Value:
        """The initial sums of a vector of columns."""
        if self.dot is None or not self.dot.needs_compensation:
            return Value("zeroinitializer", self.vector)
        at = self.b.emit(f"getelementptr {self.vector}, ptr %start, i64 {v}", POINTER)
        return self.b.emit(f"load {self.vector}, {at}", self.vector)

    def _clear(self) -> None:
        for slot in (slot for row in self.sums for slot in row):
            self.b.lines.append(f"  store {Value('zeroinitializer', self.vector)}, {slot}")

    def _add_to_tile(self) -> None:
        b = self.b
        for _, place, slot in self._places():
            value = b.emit(f"load {self.vector}, {slot}", self.vector)
            if not self.once:
                value = self._total(b.emit(f"load {self.vector}, {place}", self.vector), value)
            b.lines.append(f"  store {value}, {place}")

    def _total(self, before: Value, value: Value) -> Value:
        return self.b.add(before, value)

    def _k_step(self, step: Value, lefts: list[Expr], part: int | None = None) -> None:
        """One step of the sum; with `part`, the last one, whose group is only a part."""
        self._bind(self.blocks.step, step)
        if self.dot is not None or self.gemm.taps:
            self._rank_one_update(lefts, self.blocks.right, part)
            return
        for number in range(self.by.group):
            at = {self.blocks.part: integer(number)}
            operands = [_unrolled(n, at) for n in (*lefts, self.blocks.right)]
            self._rank_one_update(operands[:-1], operands[-1], None)

    def _rank_one_update(self, lefts: list[Expr], right: Expr, part: int | None) -> None:
        """A rank-one update of the tile."""
        b = self.b
        panel = self._panel(right)
        for row, left in zip(self.sums, lefts, strict=True):
            broadcast = self._broadcast(left, part)
            for slot, column in zip(row, panel, strict=True):
                before = b.emit(f"load {self.vector}, {slot}", self.vector)
                after = self._added(before, broadcast, column)
                b.lines.append(f"  store {after}, {slot}")

    def _added(self, before: Value, broadcast: Value, column: Value) -> Value:
        if self.dot is None:
            return self.b.intrinsic("fma", broadcast, column, before)
        return self.dot.add(self.b, before, broadcast, column)

    def _panel(self, right: Expr) -> list[Value]:
        """The vectors of the panel at this step."""
        firsts = range(0, self.by.nr, self.choice.lanes)
        if self.dot is not None:
            return [self.dot.column(self.values, self.blocks, first) for first in firsts]
        found = []
        for first in firsts:
            with self._fresh_scope():
                self.values.axis_level[self.blocks.inside] = self.scopes.depth
                self.values.set_vector(self.blocks.inside, self._number(first), None)
                found.append(self.values.lanewise(right))
        self.values.set_vector(None, None, None)
        return found

    def _broadcast(self, left: Expr, part: int | None) -> Value:
        """The left operand at this step, broadcast to all lanes."""
        if self.dot is not None:
            return self.dot.broadcast(self.values, self.blocks, left, part)
        if self.gemm.taps:
            row, apart = self.pointers[left]
            place = self.b.mul(self.values.value(self.blocks.step), apart)
            return self.values.broadcast(self.values.memory.in_row(left, row, place))
        return self.values.broadcast(self.values.value(left))

    @contextmanager
    def _fresh_scope(self) -> Iterator[None]:
        """Continue the same lines, with values that are known here only."""
        around = self.scopes.stack[-1]
        self.scopes.stack.append(Scope(around.lines, around.block))
        yield
        self.scopes.stack.pop()
        self.scopes.select(self.scopes.depth)


def _unrolled(operand: Expr, at: dict[Expr, Expr]) -> Expr:
    """The operand for one number of a group, whose `part` is now known."""
    return simplify_values(substitute(operand, at))


class S8S8Compensation(GemmMicrokernel):
    """The function that computes the initial sums of one panel for s8 x s8 -> s32. The instruction
    takes the left operand as unsigned, 128 too large: initial sums are -128 times column sums."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name, 1)

    def _start(self, v: int) -> Value:
        return Value("zeroinitializer", self.vector)

    def _left(self, r: int) -> Expr:
        return self.blocks.left

    def _broadcast(self, left: Expr, part: int | None) -> Value:
        assert self.dot is not None
        return self.dot.sign_excess(self.choice.lanes)

    def _total(self, before: Value, value: Value) -> Value:
        return self.b.sub(before, value)
