"""Attention of one query row, as in decoding: columns in lanes, each key and value read once.

In: a `ScheduledKernel` whose `AttentionTiling` has no vectors of rows. Out: LLVM IR. No other row
shares a key, so the time is that of reading keys and values. Both are read along their rows.

    for head and row:
        for block of columns:
            weights[j] = score of (lanes of sum over d of q[d] * k[j, d], added up)
            row_max' = max(row_max, weights)
            weights = exp(weights - row_max');  rescale = exp(row_max - row_max')
            total = total * rescale + weights, added up
            output_acc[e] = output_acc[e] * rescale + sum over j of weights[j] * v[j, e]
        out[e] = output_acc[e] / total
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.online_softmax import OnlineSoftmaxEmitter
from litz.codegen.llvm.ops import convert
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.scope import Scope
from litz.codegen.llvm.values import Tail
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import is_multiple


class DecodeAttentionEmitter(OnlineSoftmaxEmitter):
    """Writes one attention kernel for few rows, one row a task."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        by = self.by
        self.number = Type(self.vector.element, 1)
        self.weights = self._memory("weights", -(-by.block // by.lanes))
        self.output_acc = self._memory("output_acc", -(-by.width // by.lanes))
        self.row_max = stack_slot(self.values, self.number, "row_max")
        self.total = stack_slot(self.values, self.number, "total")

    def _task(self, task: Value) -> None:
        b, by = self.b, self.by
        self._bind_heads(task)
        b.lines.append(f"  store {b.constant(-math.inf, self.number)}, {self.row_max}")
        b.lines.append(f"  store {b.constant(0.0, self.number)}, {self.total}")
        for e, _ in self._parts(by.width):
            self._put(self.output_acc, e // by.lanes, b.constant(0.0, self.vector))
        queries = self._queries()
        columns = self._size(by.columns)
        block = self.scopes.open_loop(self._number(0), columns, by.block, rolled=True)
        count = b.intrinsic("smin", b.sub(columns, block), by.block)
        self._qk_dots(queries, block, count)
        row_max = self._scores(block, count)
        before = b.emit(f"load {self.number}, {self.row_max}", self.number)
        rescale = self._exp(b.sub(before, self._finite(row_max)))
        b.lines.append(f"  store {row_max}, {self.row_max}")
        self._exponentials(self._finite(row_max), rescale, count)
        self._accumulate_values(rescale, block, count)
        self.scopes.close()
        self._write_output()

    def _parts(self, n: int) -> Iterator[tuple[int, int]]:
        """The vectors along a row of keys or values, and how many lanes of each are inside."""
        for start in range(0, n, self.by.lanes):
            yield start, min(self.by.lanes, n - start)

    def _queries(self) -> list[Value]:
        base, (along,) = self._base_and_strides(self.a.query.index[0], self.a.depth)
        return [
            self._line(self.a.query, self.b.add(base, d * along), along, wide)
            for d, wide in self._parts(self.by.depth)
        ]

    def _qk_dots(self, queries: list[Value], block: Value, count: Value) -> None:
        b, a = self.b, self.a
        base, (step, along) = self._base_and_strides(a.key.index[0], a.column, a.depth)
        j = self.scopes.open_loop(self._number(0), count, 1)
        row = b.add(base, b.mul(b.add(block, j), step))
        total = b.constant(0.0, self.vector)
        for query, (d, wide) in zip(queries, self._parts(self.by.depth), strict=True):
            key = self._line(a.key, b.add(row, d * along), along, wide)
            total = b.intrinsic("fma", query, key, total)
        place = b.emit(f"getelementptr inbounds {self.number}, {self.weights}, {j}", POINTER)
        b.lines.append(f"  store {self._lane_sum(total)}, {place}")
        self.scopes.close()

    def _lane_sum(self, vector: Value) -> Value:
        """The sum over the lanes, by halves."""
        b, lanes = self.b, self.by.lanes
        while lanes > 1:
            lanes //= 2
            turned = [(k + lanes) % self.by.lanes for k in range(self.by.lanes)]
            numbers = ", ".join(f"i32 {k}" for k in turned)
            mask = f"<{self.by.lanes} x i32> <{numbers}>"
            other = b.emit(f"shufflevector {vector}, {self.vector} poison, {mask}", self.vector)
            vector = b.add(vector, other)
        return b.emit(f"extractelement {vector}, i64 0", self.number)

    def _scores(self, block: Value, count: Value) -> Value:
        """Turn dot products into scores; returns the row's new maximum."""
        b = self.b
        most = stack_slot(self.values, self.vector, "most")
        b.lines.append(f"  store {b.constant(-math.inf, self.vector)}, {most}")
        for place, tail in self._columns(count):
            around = self.scopes.stack[-1]
            self.scopes.stack.append(Scope(around.lines, around.block))
            level = self.values.row_level = self.scopes.depth
            self.values.axis_level[self.a.column] = level
            first = b.add(block, b.mul(place, self.by.lanes))
            self.values.set_vector(self.a.column, first, tail)
            self.scopes.bind(level, self.a.dot, self._get(self.weights, place))
            score = self.values.broadcast(self.values.value(self.a.score))
            if self.values.mask is not None:
                score = b.select(self.values.mask, score, b.constant(-math.inf, self.vector))
            self.values.set_vector(None, None, None)
            self.scopes.stack.pop()
            self.scopes.select(self.scopes.depth)
            self._put(self.weights, place, score)
            before = b.emit(f"load {self.vector}, {most}", self.vector)
            higher = b.compare("ogt", score, before)
            b.lines.append(f"  store {b.select(higher, score, before)}, {most}")
        found = b.emit(f"load {self.vector}, {most}", self.vector)
        symbol = f"llvm.vector.reduce.fmax.{self.vector.mangled}"
        highest = b.extern(symbol, self.number, found)
        before = b.emit(f"load {self.number}, {self.row_max}", self.number)
        return b.select(b.compare("ogt", highest, before), highest, before)

    def _columns(self, count: Value) -> Iterator[tuple[Value, Tail]]:
        """The whole vectors of a block's columns, then the partial vector that ends all columns."""
        b, by = self.b, self.by
        whole = b.emit(f"udiv {count}, {by.lanes}", Type("i64", 1))
        yield self.scopes.open_loop(self._number(0), whole, 1, rolled=True), None
        self.scopes.close()
        if not is_multiple(by.columns, by.lanes):
            taken = b.mul(whole, by.lanes)
            self.scopes.open_if(b.compare("ne", taken, count))
            yield whole, self._tail(by.columns, taken, count)
            self.scopes.close()

    def _exponentials(self, row_max: Value, rescale: Value, count: Value) -> None:
        b, by = self.b, self.by
        sums = stack_slot(self.values, self.vector, "sum")
        b.lines.append(f"  store {b.constant(0.0, self.vector)}, {sums}")
        broadcast = self.values.broadcast(row_max)
        vectors = b.emit(f"udiv {b.add(count, by.lanes - 1)}, {by.lanes}", Type("i64", 1))
        place = self.scopes.open_loop(self._number(0), vectors, 1, rolled=True)
        weight = self._exp(b.sub(self._get(self.weights, place), broadcast))
        self._put(self.weights, place, weight)
        before = b.emit(f"load {self.vector}, {sums}", self.vector)
        b.lines.append(f"  store {b.add(before, weight)}, {sums}")
        self.scopes.close()
        own = self._lane_sum(b.emit(f"load {self.vector}, {sums}", self.vector))
        before = b.emit(f"load {self.number}, {self.total}", self.number)
        total = b.intrinsic("fma", before, rescale, own)
        b.lines.append(f"  store {total}, {self.total}")

    def _accumulate_values(self, rescale: Value, block: Value, count: Value) -> None:
        b, by, a = self.b, self.by, self.a
        base, (step, along) = self._base_and_strides(a.value.index[0], a.column, a.width)
        parts = list(self._parts(by.width))
        broadcast = self.values.broadcast(rescale)
        most = 8  # vectors of sums at a time: enough to keep the FMA units busy
        for group in (parts[k : k + most] for k in range(0, len(parts), most)):
            sums = [stack_slot(self.values, self.vector, "output_acc") for _ in group]
            for slot in sums:
                b.lines.append(f"  store {b.constant(0.0, self.vector)}, {slot}")
            j = self.scopes.open_loop(self._number(0), count, 1)
            place = b.emit(f"getelementptr inbounds {self.number}, {self.weights}, {j}", POINTER)
            weight = self.values.broadcast(b.emit(f"load {self.number}, {place}", self.number))
            row = b.add(base, b.mul(b.add(block, j), step))
            for slot, (e, wide) in zip(sums, group, strict=True):
                value = self._line(a.value, b.add(row, e * along), along, wide)
                before = b.emit(f"load {self.vector}, {slot}", self.vector)
                b.lines.append(f"  store {b.intrinsic('fma', weight, value, before)}, {slot}")
            self.scopes.close()
            for slot, (e, _) in zip(sums, group, strict=True):
                own = b.emit(f"load {self.vector}, {slot}", self.vector)
                kept = b.intrinsic("fma", self._get(self.output_acc, e // by.lanes), broadcast, own)
                self._put(self.output_acc, e // by.lanes, kept)

    def _write_output(self) -> None:
        b, by = self.b, self.by
        base, (along,) = self._base_and_strides(self.store.index[0], self.a.width)
        row_max = b.emit(f"load {self.number}, {self.row_max}", self.number)
        total = b.emit(f"load {self.number}, {self.total}", self.number)
        for store in self.sums:
            value = self.values.broadcast(self._log_sum_exp(row_max, total))
            place = self.values.value(store.index[0])
            self.values.memory.store_strided(store.buffer, place, 1, value, 1)
        normalizer = self.values.broadcast(self._normalizer(row_max, total))
        for e, wide in self._parts(by.width):
            mean = b.mul(self._get(self.output_acc, e // by.lanes), normalizer)
            value = convert(b, mean, self.dtype, self.store.buffer.dtype)
            self.values.memory.store_strided(
                self.store.buffer, b.add(base, e * along), along, value, wide
            )
