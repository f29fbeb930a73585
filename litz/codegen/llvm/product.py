"""Matrix products: blocks of sums in registers, and what follows them while they are in the cache.

In: a `ScheduledKernel` with a `Blocking`. Out: LLVM IR. For each step of k a block reads one vector
row of the panel and one number a row of the left operand, spread over the lanes, and adds their
products to its sums. The finished sums go to a tile on the stack, from which the kernel's other
stores read them vector by vector, as if each had been reduced alone.

    for panel, chunk of rows:
        for block of 6 rows in the chunk:
            for k:  sums[r, v] += left[r, k] * right[panel, k, v]       6 x 4 vectors
            for r:  for v:  stores of the kernel with sums[r, v]
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.ops import computed_type
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.scope import I64
from litz.ir.expr import Expr
from litz.ir.product import Product, kernel_product
from litz.ir.scheduled import ScheduledKernel


class ProductEmitter(KernelEmitter):
    """Writes one kernel that is a product."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        product, blocking = kernel_product(self.kernel), self.choice.product
        assert product is not None and blocking is not None
        self.product: Product = product
        self.blocking = blocking
        self.vectors = blocking.width // self.choice.lanes
        self.vector = computed_type(product.node.dtype, self.choice.lanes)
        self.sums = [
            [stack_slot(self.values, self.vector, "sum") for _ in range(self.vectors)]
            for _ in range(blocking.block)
        ]
        size = Type(self.vector.element, self.choice.lanes * self.vectors * blocking.block)
        self.tile = stack_slot(self.values, size, "tile")

    def _task(self, task: Value) -> None:
        """A panel for a chunk of rows; panels pass by fastest."""
        b, by = self.b, self.blocking
        panel = b.emit(f"urem {task}, {by.panels}", I64)
        chunk = b.emit(f"udiv {task}, {by.panels}", I64)
        start = b.mul(chunk, by.chunk)
        stop = b.intrinsic("smin", b.add(start, by.chunk), by.rows)
        right = b.add(b.mul(panel, by.right_panel), by.right)
        first = b.mul(panel, by.width)
        row = self.scopes.open_loop(start, stop, by.block)
        count = b.intrinsic("smin", b.sub(stop, row), by.block)
        for rows in sorted({by.block, by.rows % by.block} - {0}):  # the last block may be smaller
            self.scopes.open_if(b.compare("eq", count, rows))
            self._sum(row, rows, right)
            self.scopes.close()
        self._finish(row, count, first)
        self.scopes.close()

    def _sum(self, row: Value, count: int, right: Value) -> None:
        """The sums of some rows and a panel, into the tile."""
        zero = Value("zeroinitializer", self.vector)
        for r in range(count):
            for slot in self.sums[r]:
                self.b.lines.append(f"  store {zero}, {slot}")
        by = self.blocking
        origin = self.b.add(self.b.mul(row, by.left_row), by.left)
        lefts = [self.b.add(origin, r * by.left_row) if r else origin for r in range(count)]
        # Several steps written out would be mixed, and the sums spilled.
        k = self.scopes.open_loop(self._number(0), self._number(by.depth), 1, rolled=True)
        self._step(k, lefts, right)
        self.scopes.close()
        for r in range(count):
            for v, slot in enumerate(self.sums[r]):
                value = self.b.emit(f"load {self.vector}, {slot}", self.vector)
                place = self._tile_at(self._number(r * self.vectors + v))
                self.b.lines.append(f"  store {value}, {place}")

    def _step(self, k: Value, lefts: list[Value], right: Value) -> None:
        """One step of the sum: a rank-one update of the block."""
        b, by, memory = self.b, self.blocking, self.values.memory
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

    # -- what follows the sums ---------------------------------------------------------------

    def _finish(self, row: Value, count: Value, first: Value) -> None:
        """The kernel's stores for each row of the block and each vector of the panel."""
        b, by, lanes = self.b, self.blocking, self.choice.lanes
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

    def _tile_at(self, number: Value) -> Value:
        pointer = Type("ptr", 1)
        return self.b.emit(f"getelementptr {self.vector}, {self.tile}, {number}", pointer)
