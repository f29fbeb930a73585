"""Register transpose: a load that strides over the lanes becomes whole rows, then columns.

In: a load whose index moves by one along `transpose_axis`, which is not the axis in lanes. Out: for
a group of lanes and a block of `transpose_axis`, each lane reads one row of neighbours. The rows
are transposed into one vector of lanes a step, and kept in memory until that step is reached. Where
sixteen gathers would touch sixteen cache lines each, sixteen loads touch each line once. For
x.t() + y with i in lanes:

    rows:   lane i reads x[i, j .. j + 15]          16 vectors along j
    tile:   step j + k holds x[i .. i + 15, j + k]  16 vectors along i
"""

from __future__ import annotations

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.ops import stored_type
from litz.codegen.llvm.values import Tail, Values
from litz.ir.expr import Expr
from litz.ir.index import ONE, ZERO, coefficient
from litz.ir.program import Buffer
from litz.ir.sizes import is_polynomial


class TransposedLoad:
    """One transposed load of a kernel, block by block."""

    def __init__(self, values: Values, node: Expr, vector: Expr, transpose_axis: Expr) -> None:
        self.v, self.node, self.lanes = values, node, values.lanes
        by_lane = coefficient(node.index[0], vector)
        assert by_lane is not None
        by_step = coefficient(by_lane[1], transpose_axis)
        assert by_step is not None
        self.stride, self.rest = by_lane[0], by_step[1]
        self.kind = stored_type(node.dtype, self.lanes)
        self.memory = values.frame.take("tile", self.lanes, self.kind)

    def fill(self, base: Value, tail: Tail, first: Value, inside: Value | None) -> None:
        """Read and transpose the rows of a group of lanes from step `first` on. `inside` masks the
        steps of the last block; lanes after the last one read its row again."""
        rest, stride = self.v.value(self.rest), self.v.value(self.stride)
        self.v.scopes.select(self.v.scopes.depth)
        b = self.v.b
        origin = b.add(b.add(rest, first), b.mul(base, stride))
        if isinstance(tail, Value):
            last = b.sub(tail, 1)
            lanes = [b.intrinsic("smin", last, lane) for lane in range(self.lanes)]
        else:
            known = (tail or self.lanes) - 1
            lanes = [b.constant(min(k, known), base.type) for k in range(self.lanes)]
        rows = [self._row(b.add(origin, b.mul(lane, stride)), inside) for lane in lanes]
        for step, vector in enumerate(transpose_in_registers(self.v.b, rows)):
            place = self._at(self.v.b.constant(step, Type("i64", 1)))
            self.v.b.lines.append(f"  store {vector}, {place}, align {self._bytes}")

    def step(self, number: Value) -> Value:
        """The vector of lanes at a step of the block."""
        text = f"load {self.kind}, {self._at(number)}, align {self._bytes}"
        return self.v.memory.from_memory(self.node.dtype, self.v.b.emit(text, self.kind))

    @property
    def _bytes(self) -> int:
        return self.node.dtype.bytes * self.lanes

    def _at(self, number: Value) -> Value:
        return self.v.b.emit(
            f"getelementptr inbounds {self.kind}, {self.memory}, {number}", Type("ptr", 1)
        )

    def _row(self, place: Value, inside: Value | None) -> Value:
        return self.v.memory.load_contiguous(self.node, place, inside)


def transpose_in_registers(b: Builder, rows: list[Value]) -> list[Value]:
    """As many rows as lanes, as columns: at each stage, the off-diagonal quarters of ever larger
    squares are exchanged; a stage for each bit of a lane's number."""
    rows, apart = list(rows), 1
    while apart < len(rows):
        for low in range(len(rows)):
            if low & apart == 0:
                high = low + apart
                rows[low], rows[high] = _swapped(b, rows[low], rows[high], apart)
        apart *= 2
    return rows


def _swapped(b: Builder, low: Value, high: Value, apart: int) -> tuple[Value, Value]:
    """Exchange the lanes of `low` whose number has the bit `apart` with the lanes of `high` whose
    number has not."""
    n = low.type.lanes
    upper = [k if k & apart == 0 else n + k - apart for k in range(n)]
    lower = [k + apart if k & apart == 0 else n + k for k in range(n)]
    return _picked(b, low, high, upper), _picked(b, low, high, lower)


def _picked(b: Builder, low: Value, high: Value, lanes: list[int]) -> Value:
    numbers = ", ".join(f"i32 {k}" for k in lanes)
    return b.emit(f"shufflevector {low}, {high}, <{len(lanes)} x i32> <{numbers}>", low.type)


def is_transposable(node: Expr, vector: Expr, transpose_axis: Expr, written: set[Buffer]) -> bool:
    """Whether a load can be read by rows: it moves by one along `transpose_axis` and by a constant
    along the lanes, has no guard, and its buffer is not written meanwhile."""
    if node.guard is not None or node.buffer in written:
        return False
    by_lane = coefficient(node.index[0], vector)
    if by_lane is None or not is_polynomial(by_lane[0]) or by_lane[0] in (ZERO, ONE):
        return False
    by_step = coefficient(by_lane[1], transpose_axis)
    if by_step is None or by_step[0] is not ONE:
        return False
    # Another load inside the index may change from step to step.
    return vector not in by_step[1].axes and transpose_axis not in by_step[1].axes
