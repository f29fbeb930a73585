"""The sums of a block of a matrix product: a function that keeps them in registers.

In: a `ScheduledKernel` with a `Blocking`. Out: LLVM IR of a function for some number of rows, which
leaves its sums in a tile. For each step of k it reads one vector row of the panel and one number a
row of the left operand, spread over the lanes, and adds their products. It stands alone so that
whatever the rest of the kernel keeps in registers, here they hold sums. Example: 6 rows by 4
vectors are 24 sums; `sums6` of a kernel is called once for each block, or for each stretch of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from litz.codegen.llvm.builder import Value
from litz.codegen.llvm.dots import Dot, dot_for
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.ops import computed_type
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.scope import I64, Scope
from litz.ir.expr import Expr, apply, axis, integer, load, rebuild, substitute, transform
from litz.ir.index import coefficient, simplify, simplify_indices, simplify_values
from litz.ir.product import Blocks, Product, in_blocks, product_of, stored_load
from litz.ir.program import Buffer
from litz.ir.scheduled import ScheduledKernel

# Steps after which sums go to the tile: a long sum loses no more to rounding than a few short ones.
STEPS = 256
Span = tuple[Value, Value]  # first and last step of a stretch
# The same, as the function that sums has them.
FIRST, LAST = Value("%first", I64), Value("%last", I64)


class Block(KernelEmitter):
    """What both parts of a product know of it."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        product, blocking = product_of(self.kernel), self.choice.product
        assert product is not None and blocking is not None
        self.product: Product = product
        self.by = blocking
        self.vectors = blocking.width // self.choice.lanes
        self.vector = computed_type(product.node.dtype, self.choice.lanes)
        self.dot: Dot | None = dot_for(product, blocking.group, self.choice.isa)
        self.tile: Value
        # The left operand, if the kernel makes it: rows of scratch.
        stored = stored_load(product.left)
        made = stored is not None and stored.buffer in self.kernel.scratch
        self.made = stored.buffer if stored is not None and made else None

    def _vector_at(self, tile: Value, number: Value) -> Value:
        return self.b.emit(f"getelementptr {self.vector}, {tile}, {number}", POINTER)


class Sums(Block):
    """The function that sums a block of some rows into the tile. It stands alone so that whatever
    the rest of the kernel keeps in registers, here they hold sums."""

    def __init__(
        self, scheduled: ScheduledKernel, name: str, rows: int, surely: int | None = None
    ) -> None:
        super().__init__(scheduled, name)
        self.surely = rows if surely is None else surely  # rows that are always there
        self.tile = Value("%tile", POINTER)
        self.pointers: dict[Expr, tuple[Value, int]] = {}  # of rows in this tap, and their step
        self.blocks: Blocks = in_blocks(self.product, self.by.width, self.by.group)
        # Whether sums reach the tile but once, which then need not be there before.
        short = self.by.depth.is_const and self.by.depth.number * self.by.taps <= STEPS
        self.once = short and not self.by.rest and (self.dot is None or not self.dot.offsets)
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
        if by.stretch:
            self.scopes.open_if(b.compare("eq", FIRST, 0))
            self._begin()
            self.scopes.close()
        elif not self.once:
            self._begin()
        if self.product.taps:
            self._taps(lefts)
        else:
            self._steps(lefts)
        if by.rest:
            self._clear()
            with self._apart():
                self._step(self._size(by.steps), lefts, by.rest)
            self._add_to_tile()
        self._report_errors()
        body = "\n".join(b.lines)
        taken = "ptr %args, i64 %batch, i64 %row, i64 %panel, ptr %start, ptr noalias %tile"
        taken += f", {FIRST}, {LAST}" if by.stretch else ""
        taken += "" if self.made is None else ", ptr %left"
        return f"define internal void @{self.name}({taken}) noinline #0 {{\n{body}\n}}\n"

    def _steps(self, lefts: list[Expr]) -> None:
        """The whole steps of the sum, put aside from time to time."""
        by, b = self.by, self.b
        far = STEPS // by.group if self.dot is None else STEPS
        first, last = (FIRST, LAST) if by.stretch else (self._number(0), self._size(by.steps))
        block = self.scopes.open_loop(first, last, far, rolled=True)
        self._clear()
        end = b.intrinsic("smin", b.add(block, far), last)
        # Several steps written out would be mixed, and the sums spilled.
        step = self.scopes.open_loop(block, end, 1, rolled=True)
        self._step(step, lefts)
        self.scopes.close()
        self._add_to_tile()
        self.scopes.close()

    def _taps(self, lefts: list[Expr]) -> None:
        """A sum for each tap; those of short ones are put aside together."""
        by, b = self.by, self.b
        if by.depth.number > STEPS:
            tap = self.scopes.open_loop(self._number(0), self._number(by.taps), 1, rolled=True)
            self._bind(self.blocks.tap, tap)
            self._point(lefts)
            self._steps(lefts)
            self.scopes.close()
            return
        far = max(STEPS // by.depth.number, 1)
        first = self.scopes.open_loop(self._number(0), self._number(by.taps), far, rolled=True)
        self._clear()
        last = b.intrinsic("smin", b.add(first, far), by.taps)
        tap = self.scopes.open_loop(first, last, 1, rolled=True)
        self._bind(self.blocks.tap, tap)
        self._point(lefts)
        step = self.scopes.open_loop(self._number(0), self._size(by.steps), 1, rolled=True)
        self._step(step, lefts)
        self.scopes.close()
        self.scopes.close()
        self._add_to_tile()
        self.scopes.close()

    def _point(self, lefts: list[Expr]) -> None:
        """Where each row begins in this tap: outside, it is a row of zeros."""
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
        """The left operand in row r: what depends on the row alone is computed once."""
        row = axis(f"m{r}", self.by.rows)
        first = Value("%row", I64)
        here = self.b.add(first, r) if r else first
        if r >= self.surely:  # a row that may not be there reads the last one again
            last = self.b.sub(self._size(self.by.rows), 1)
            here = self.b.intrinsic("smin", here, last)
        self._bind(row, here)
        left = simplify_indices(substitute(self.blocks.left, {self.blocks.row: row}))
        if self.made is None:
            return left
        inside = axis(f"l{r}", self.by.block)
        self._bind(inside, self.b.sub(here, first))
        return self._among_rows(left, inside, self.made)

    def _place_scratch(self) -> None:
        """The kernel has it: what is read here begins with the first row of the block."""

    def _among_rows(self, left: Expr, number: Expr, made: Buffer) -> Expr:
        """s0[k]   ->   s0[number * depth + k], where rows of the block lie one after the other."""
        length = made.shape[0]
        rows = replace(made, shape=(integer(self.by.block * length.number),))
        self.values.memory.pointers[rows] = Value("%left", POINTER)

        def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
            node = rebuild(node, args)
            if node.op != "load" or node.buffer != made:
                return node
            place = apply("add", apply("mul", number, length), node.index[0])
            return load(rows, (simplify(place),), node.guard)

        return transform(left, change)

    def _places(self) -> Iterator[tuple[int, Value, Value]]:
        """Each sum: its column of vectors, its place in the tile, its slot."""
        for number, slot in enumerate(slot for row in self.sums for slot in row):
            yield number % self.vectors, self._vector_at(self.tile, self._number(number)), slot

    def _begin(self) -> None:
        """The tile before the first step."""
        for v, place, _ in self._places():
            self.b.lines.append(f"  store {self._start(v)}, {place}")

    def _start(self, v: int) -> Value:
        """What the sums of a vector of columns start from."""
        if self.dot is None or not self.dot.offsets:
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

    def _step(self, step: Value, lefts: list[Expr], part: int | None = None) -> None:
        """One step of the sum. The last step of groups may have but a part of one."""
        self._bind(self.blocks.step, step)
        if self.dot is not None or self.product.taps:
            self._update(lefts, self.blocks.right, part)
            return
        for number in range(self.by.group):
            at = {self.blocks.part: integer(number)}
            operands = [_written_out(n, at) for n in (*lefts, self.blocks.right)]
            self._update(operands[:-1], operands[-1], None)

    def _update(self, lefts: list[Expr], right: Expr, part: int | None) -> None:
        """A rank-one update of the block."""
        b = self.b
        panel = self._panel(right)
        for row, left in zip(self.sums, lefts, strict=True):
            spread = self._spread(left, part)
            for slot, column in zip(row, panel, strict=True):
                before = b.emit(f"load {self.vector}, {slot}", self.vector)
                after = self._added(before, spread, column)
                b.lines.append(f"  store {after}, {slot}")

    def _added(self, before: Value, spread: Value, column: Value) -> Value:
        if self.dot is None:
            return self.b.intrinsic("fma", spread, column, before)
        return self.dot.add(self.b, before, spread, column)

    def _panel(self, right: Expr) -> list[Value]:
        """The vectors of the panel at this step."""
        firsts = range(0, self.by.width, self.choice.lanes)
        if self.dot is not None:
            return [self.dot.column(self.values, self.blocks, first) for first in firsts]
        found = []
        for first in firsts:
            with self._apart():
                self.values.axis_level[self.blocks.inside] = self.scopes.depth
                self.values.set_vector(self.blocks.inside, self._number(first), None)
                found.append(self.values.lanewise(right))
        self.values.set_vector(None, None, None)
        return found

    def _spread(self, left: Expr, part: int | None) -> Value:
        """The left operand at this step, in every lane."""
        if self.dot is not None:
            return self.dot.spread(self.values, self.blocks, left, part)
        if self.product.taps:
            row, apart = self.pointers[left]
            place = self.b.mul(self.values.value(self.blocks.step), apart)
            return self.values.spread(self.values.memory.in_row(left, row, place))
        return self.values.spread(self.values.value(left))

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """The same lines go on, but what is computed here is known here alone."""
        around = self.scopes.stack[-1]
        self.scopes.stack.append(Scope(around.lines, around.block))
        yield
        self.scopes.stack.pop()
        self.scopes.select(self.scopes.depth)


def _written_out(operand: Expr, at: dict[Expr, Expr]) -> Expr:
    """The operand for one number of a group: what tells them apart is known."""
    return simplify_values(substitute(operand, at))


class Offsets(Sums):
    """The function that finds what sums of signed numbers have to start from, for one panel: the
    instruction takes the left ones without a sign, 128 too large."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name, 1)

    def _start(self, v: int) -> Value:
        return Value("zeroinitializer", self.vector)

    def _left(self, r: int) -> Expr:
        return self.blocks.left

    def _spread(self, left: Expr, part: int | None) -> Value:
        assert self.dot is not None
        return self.dot.excess(self.choice.lanes)

    def _total(self, before: Value, value: Value) -> Value:
        return self.b.sub(before, value)
