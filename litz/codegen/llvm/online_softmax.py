"""Online softmax: the part that both attention emitters share.

In: a `ScheduledKernel` with an `AttentionTiling`. Out: `OnlineSoftmaxEmitter`, the base of
`query_tile.py` (many rows, in lanes) and `decode_attention.py` (one row, its columns in lanes). It
has the kernel's memory, its index arithmetic and its exponential.
"""

from __future__ import annotations

import math

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.math.exponential import exp_of
from litz.codegen.llvm.ops import computed_type, convert
from litz.codegen.llvm.scope import I64
from litz.ir.attention import AttentionParts, attention_of, steps_along
from litz.ir.expr import Expr
from litz.ir.scheduled import AttentionTiling, ScheduledKernel

# Below this, exponentials are zero: 2^n for the least n has an exponent field of zero.
# A row's largest weight is one, and beside it they are nothing.
EXP_UNDERFLOW = {"f32": -127 * math.log(2), "f64": -1023 * math.log(2)}


class OnlineSoftmaxEmitter(KernelEmitter):
    """The shared part of an attention kernel."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        found, by = attention_of(self.kernel), self.choice.attention
        assert found is not None and by is not None
        self.a: AttentionParts = found
        self.by: AttentionTiling = by
        self.dtype = found.dot.dtype
        self.vector = computed_type(self.dtype, by.lanes)
        self.store, *self.sums = self.kernel.stores
        apart = (found.width,) if by.by_row else (found.width, found.row)
        self.heads = tuple(x for x in self.kernel.outer if x not in apart)

    # -- memory ------------------------------------------------------------------------------

    def _memory(self, name: str, vectors: int) -> Value:
        """Memory for some vectors."""
        return self.frame.take(name, vectors, self.vector)

    def _at(self, memory: Value, number: Value | int) -> Value:
        place = number if isinstance(number, Value) else self._number(number)
        return self.b.emit(f"getelementptr inbounds {self.vector}, {memory}, {place}", POINTER)

    def _get(self, memory: Value, number: Value | int) -> Value:
        return self.b.emit(f"load {self.vector}, {self._at(memory, number)}", self.vector)

    def _put(self, memory: Value, number: Value | int, value: Value) -> None:
        self.b.lines.append(f"  store {value}, {self._at(memory, number)}")

    # -- index arithmetic --------------------------------------------------------------------

    def _bind_heads(self, number: Value) -> None:
        """Compute the axes of heads from their common number, the last one fastest."""
        level = self.scopes.depth
        for k, x in enumerate(reversed(self.heads)):
            last = k == len(self.heads) - 1
            digit = number if last else self._digit(number, x.extent)
            by = self._size(x.extent).text
            number = number if last else self.b.emit(f"udiv {number}, {by}", I64)
            self.values.axis_level[x] = level
            self.scopes.bind(level, x, digit)

    def _base_and_strides(self, index: Expr, *axes: Expr) -> tuple[Value, list[int]]:
        """The first element of a head's part, and the strides along axes from there."""
        found = steps_along(index, axes)
        assert found is not None  # the recogniser has looked
        return self.values.value(found[1]), found[0]

    def _mask(self, count: int) -> Value | None:
        """A mask of the first `count` lanes; None if that is all of them."""
        if count == self.by.lanes:
            return None
        bits = ", ".join(f"i1 {int(k < count)}" for k in range(self.by.lanes))
        return Value(f"<{bits}>", Type("i1", self.by.lanes))

    def _line(self, node: Expr, place: Value, along: int, wide: int) -> Value:
        """`wide` neighbours along a row, converted to the type of the computation."""
        memory, mask = self.values.memory, self._mask(wide)
        if along == 1:
            read = memory.load_contiguous(node, place, mask)
        else:
            read = memory.load_strided(node, place, along, mask)
        return convert(self.b, read, node.dtype, self.dtype)

    # -- values ------------------------------------------------------------------------------

    def _finite(self, row_max: Value) -> Value:
        """The maximum to subtract: zero for rows of -inf alone, whose weights are 0, not NaN."""
        nothing = self.b.compare("oeq", row_max, -math.inf)
        return self.b.select(nothing, self.b.constant(0.0, row_max.type), row_max)

    def _exp(self, x: Value) -> Value:
        """The exponential of numbers that are at most zero."""
        with self.b.typed(self.dtype.name):
            return exp_of(self.b, self.b.at_least(x, EXP_UNDERFLOW[self.dtype.name]))

    def _normalizer(self, row_max: Value, total: Value) -> Value:
        """The factor of a row's weights, 1 / total. A row whose columns are all masked divides by
        one if it is to give zeros, else by zero, which gives NaN."""
        b = self.b
        if self.a.zeros:
            nothing = b.compare("oeq", row_max, -math.inf)
            total = b.select(nothing, b.constant(1.0, total.type), total)
        return b.div(b.constant(1.0, total.type), total)

    def _log_sum_exp(self, row_max: Value, total: Value) -> Value:
        """The logarithm of the sum of a row's exponentials."""
        b = self.b
        found = b.add(row_max, self.values.call("log", self.dtype, [total]))
        nothing = b.compare("oeq", row_max, -math.inf)
        return b.select(nothing, b.constant(0.0, found.type), found)
