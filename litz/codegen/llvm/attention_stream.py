"""What both ways to run attention share: its parts, its memory, its places, its exponential.

In: a `ScheduledKernel` with a `Streaming`. Out: `StreamEmitter`, on which `attention_tile.py` (many
rows, in lanes) and `attention_row.py` (one row, its columns in lanes) build.
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
from litz.ir.scheduled import ScheduledKernel, Streaming

# From here on, exponentials are zero: 2^n of the least n is written with an exponent of no bits.
# Next to a row's largest weight, which is one, they are nothing.
LEAST = {"f32": -127 * math.log(2), "f64": -1023 * math.log(2)}


class StreamEmitter(KernelEmitter):
    """The parts of an attention kernel."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        found, by = attention_of(self.kernel), self.choice.attention
        assert found is not None and by is not None
        self.a: AttentionParts = found
        self.by: Streaming = by
        self.dtype = found.dot.dtype
        self.vector = computed_type(self.dtype, by.lanes)
        self.store, *self.sums = self.kernel.stores
        apart = (found.width,) if by.by_row else (found.width, found.row)
        self.heads = tuple(x for x in self.kernel.outer if x not in apart)

    # -- memory ------------------------------------------------------------------------------

    def _memory(self, name: str, vectors: int) -> Value:
        """Room for some vectors."""
        return self.frame.take(name, vectors, self.vector)

    def _at(self, memory: Value, number: Value | int) -> Value:
        place = number if isinstance(number, Value) else self._number(number)
        return self.b.emit(f"getelementptr inbounds {self.vector}, {memory}, {place}", POINTER)

    def _get(self, memory: Value, number: Value | int) -> Value:
        return self.b.emit(f"load {self.vector}, {self._at(memory, number)}", self.vector)

    def _put(self, memory: Value, number: Value | int, value: Value) -> None:
        self.b.lines.append(f"  store {value}, {self._at(memory, number)}")

    # -- places ------------------------------------------------------------------------------

    def _bind_heads(self, number: Value) -> None:
        """Read the axes of heads off their number, the last one fastest."""
        level = self.scopes.depth
        for k, x in enumerate(reversed(self.heads)):
            last = k == len(self.heads) - 1
            digit = number if last else self._digit(number, x.extent)
            by = self._size(x.extent).text
            number = number if last else self.b.emit(f"udiv {number}, {by}", I64)
            self.values.axis_level[x] = level
            self.scopes.bind(level, x, digit)

    def _walked(self, index: Expr, *axes: Expr) -> tuple[Value, list[int]]:
        """Where a head's part begins, in elements, and the steps along axes from there."""
        found = steps_along(index, axes)
        assert found is not None  # the recogniser has looked
        return self.values.value(found[1]), found[0]

    def _mask(self, count: int) -> Value | None:
        """The first lanes; None if that is all."""
        if count == self.by.lanes:
            return None
        bits = ", ".join(f"i1 {int(k < count)}" for k in range(self.by.lanes))
        return Value(f"<{bits}>", Type("i1", self.by.lanes))

    def _line(self, node: Expr, place: Value, along: int, wide: int) -> Value:
        """Neighbours along a row, as they are computed with."""
        memory, mask = self.values.memory, self._mask(wide)
        if along == 1:
            read = memory.neighbours(node, place, mask)
        else:
            read = memory.strided(node, place, along, mask)
        return convert(self.b, read, node.dtype, self.dtype)

    # -- values ------------------------------------------------------------------------------

    def _finite(self, top: Value) -> Value:
        """Rows that have seen nothing but -inf subtract zero: their weights are 0, not NaN."""
        nothing = self.b.compare("oeq", top, -math.inf)
        return self.b.select(nothing, self.b.constant(0.0, top.type), top)

    def _exp(self, x: Value) -> Value:
        """The exponential of what is not above zero."""
        with self.b.typed(self.dtype.name):
            return exp_of(self.b, self.b.at_least(x, LEAST[self.dtype.name]))

    def _share(self, top: Value, total: Value) -> Value:
        """What a weight is multiplied by. A row that has none divides by one if it shall give
        zeros, and zero by zero if not."""
        b = self.b
        if self.a.zeros:
            nothing = b.compare("oeq", top, -math.inf)
            total = b.select(nothing, b.constant(1.0, total.type), total)
        return b.div(b.constant(1.0, total.type), total)

    def _log_sum(self, top: Value, total: Value) -> Value:
        """The logarithm of what a row's exponentials add up to."""
        b = self.b
        found = b.add(top, self.values.call("log", self.dtype, [total]))
        nothing = b.compare("oeq", top, -math.inf)
        return b.select(nothing, b.constant(0.0, found.type), found)
