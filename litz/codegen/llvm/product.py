"""Matrix products: blocks of sums in registers, and what follows them while they are in the cache.

In: a `ScheduledKernel` with a `Blocking`. Out: LLVM IR. For each step of k a block reads one vector
row of the panel and one number a row of the left operand, spread over the lanes, and adds their
products to its sums. The finished sums go to a tile on the stack, from which the kernel's other
stores read them vector by vector, as if each had been reduced alone.

    for panel, chunk of rows:
        for block of 6 rows in the chunk:
            for k:  sums[r, v] += left[r, k] * right[panel, k, v]       a function: 6 x 4 vectors
            for r:  for v:  stores of the kernel with sums[r, v]
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.emit import POINTER, KernelEmitter
from litz.codegen.llvm.ops import computed_type
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.scope import I64
from litz.ir.expr import Expr
from litz.ir.product import Product, kernel_product
from litz.ir.scheduled import ScheduledKernel

# Steps after which sums go to the tile: a long sum loses no more to rounding than a few short ones.
STEPS = 256


class _Block(KernelEmitter):
    """What both parts of a product know of it."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        product, blocking = kernel_product(self.kernel), self.choice.product
        assert product is not None and blocking is not None
        self.product: Product = product
        self.by = blocking
        self.vectors = blocking.width // self.choice.lanes
        self.vector = computed_type(product.node.dtype, self.choice.lanes)
        self.tile: Value

    def _tile_at(self, number: Value) -> Value:
        return self.b.emit(f"getelementptr {self.vector}, {self.tile}, {number}", POINTER)


class _Sums(_Block):
    """The function that sums a block of some rows into the tile. It stands alone so that whatever
    the rest of the kernel keeps in registers, here they hold sums."""

    def __init__(self, scheduled: ScheduledKernel, name: str, rows: int) -> None:
        super().__init__(scheduled, name)
        self.tile = Value("%tile", POINTER)
        self.sums = [
            [stack_slot(self.values, self.vector, "sum") for _ in range(self.vectors)]
            for _ in range(rows)
        ]

    def emit(self) -> str:
        self._arguments()
        by, b, row = self.by, self.b, Value("%row", I64)
        origin = b.add(b.mul(row, by.left_row), by.left)
        lefts = [b.add(origin, r * by.left_row) if r else origin for r in range(len(self.sums))]
        self._clear(in_tile=True)
        block = self.scopes.open_loop(self._number(0), self._number(by.depth), STEPS, rolled=True)
        self._clear()
        end = b.intrinsic("smin", b.add(block, STEPS), by.depth)
        # Several steps written out would be mixed, and the sums spilled.
        k = self.scopes.open_loop(block, end, 1, rolled=True)
        self._step(k, lefts, Value("%right", I64))
        self.scopes.close()
        self._add_to_tile()
        self.scopes.close()
        self._report_errors()
        body = "\n".join(b.lines)
        taken = "ptr %args, i64 %row, i64 %right, ptr noalias %tile"
        return f"define internal void @{self.name}({taken}) noinline #0 {{\n{body}\n}}\n"

    def _clear(self, in_tile: bool = False) -> None:
        zero = Value("zeroinitializer", self.vector)
        for number, slot in enumerate(slot for row in self.sums for slot in row):
            where = self._tile_at(self._number(number)) if in_tile else slot
            self.b.lines.append(f"  store {zero}, {where}")

    def _add_to_tile(self) -> None:
        b = self.b
        for number, slot in enumerate(slot for row in self.sums for slot in row):
            value = b.emit(f"load {self.vector}, {slot}", self.vector)
            place = self._tile_at(self._number(number))
            before = b.emit(f"load {self.vector}, {place}", self.vector)
            total = b.emit(f"fadd {before}, {value.text}", self.vector)
            b.lines.append(f"  store {total}, {place}")

    def _step(self, k: Value, lefts: list[Value], right: Value) -> None:
        """One step of the sum: a rank-one update of the block."""
        b, by, memory = self.b, self.by, self.values.memory
        start = b.add(right, b.mul(k, by.right_depth))
        along = b.mul(k, by.left_depth)
        panel = []
        for v in range(self.vectors):
            place = b.add(start, v * self.choice.lanes) if v else start
            panel.append(memory.neighbours(self.product.right, place, None))
        for r, left in enumerate(lefts):
            number = memory.single(self.product.left, b.add(left, along))
            spread = self.values.spread(number)
            for slot, column in zip(self.sums[r], panel, strict=True):
                before = b.emit(f"load {self.vector}, {slot}", self.vector)
                after = b.intrinsic("fma", spread, column, before)
                b.lines.append(f"  store {after}, {slot}")


class ProductEmitter(_Block):
    """Writes one kernel that is a product."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        size = Type(self.vector.element, self.choice.lanes * self.vectors * self.by.block)
        self.tile = stack_slot(self.values, size, "tile")
        # The last block may have fewer rows.
        self.counts = sorted({self.by.block, self.by.rows % self.by.block} - {0})

    def emit(self) -> str:
        """The functions that sum, then the kernel."""
        parts = [_Sums(self.scheduled, self._function(rows), rows) for rows in self.counts]
        texts = [part.emit() for part in parts]
        self.b.declares |= {d for part in parts for d in part.b.declares}
        return "".join([*texts, super().emit()])

    def _function(self, rows: int) -> str:
        return f"{self.name}.sums{rows}"

    def _task(self, task: Value) -> None:
        """A panel for a chunk of rows; panels pass by fastest."""
        b, by = self.b, self.by
        panel = b.emit(f"urem {task}, {by.panels}", I64)
        chunk = b.emit(f"udiv {task}, {by.panels}", I64)
        start = b.mul(chunk, by.chunk)
        stop = b.intrinsic("smin", b.add(start, by.chunk), by.rows)
        right = b.add(b.mul(panel, by.right_panel), by.right)
        row = self.scopes.open_loop(start, stop, by.block)
        count = b.intrinsic("smin", b.sub(stop, row), by.block)
        for rows in self.counts:
            self.scopes.open_if(b.compare("eq", count, rows))
            given = f"ptr %args, {row}, {right}, {self.tile}"
            b.lines.append(f"  call void @{self._function(rows)}({given})")
            self.scopes.close()
        self._finish(row, count, b.mul(panel, by.width))
        self.scopes.close()

    # -- what follows the sums ---------------------------------------------------------------

    def _finish(self, row: Value, count: Value, first: Value) -> None:
        """The kernel's stores for each row of the block and each vector of the panel."""
        b, by, lanes = self.b, self.by, self.choice.lanes
        number = self.scopes.open_loop(self._number(0), count, 1)
        self._bind_axes(self.product.rows, b.add(row, number))
        self.values.row_level = self.scopes.depth + 1
        start = b.mul(number, self.vectors)
        left = b.sub(self._number(by.columns), first)
        wide = b.intrinsic("smin", left, by.width)
        v = self.scopes.open_loop(self._number(0), wide, lanes, whole_steps=True)
        self._vector(b.add(first, v), b.add(start, b.emit(f"udiv {v}, {lanes}", I64)), None)
        self.scopes.close()
        tail = by.columns % lanes
        if tail:  # of the last panel alone
            self.scopes.open_if(b.compare("slt", left, by.width))
            whole = by.columns - tail
            inside = (whole - (by.panels - 1) * by.width) // lanes
            self._vector(self._number(whole), b.add(start, inside), tail)
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
        sums = self.b.emit(f"load {self.vector}, {self._tile_at(place)}", self.vector)
        self.scopes.bind(level, self.product.node, sums)
        for phase in self.kernel.phases:
            self._stores(list(phase.stores))

    def _bind_axes(self, axes: tuple[Expr, ...], number: Value) -> None:
        """Read axes off their number, the last one fastest."""
        level = self.scopes.depth
        for k, a in enumerate(reversed(axes)):
            last = k == len(axes) - 1
            digit = number if last else self._digit(number, a.extent.number)
            number = number if last else self.b.emit(f"udiv {number}, {a.extent.number}", I64)
            self.values.axis_level[a] = level
            self.scopes.bind(level, a, digit)
