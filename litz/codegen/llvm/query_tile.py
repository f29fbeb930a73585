"""A tile of query rows: its memory on the stack, queries read in, outputs written out.

In: a `ScheduledKernel` with an `AttentionTiling`. Out: `QueryTileEmitter`, the part of flash
attention outside the loop over columns. Query rows are in lanes: vector v of queries[d] holds
element d of sixteen rows. So rows are transposed on the way in and out, in squares of as many rows
as lanes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from litz.codegen.llvm.builder import Value
from litz.codegen.llvm.online_softmax import OnlineSoftmaxEmitter
from litz.codegen.llvm.ops import convert
from litz.codegen.llvm.register_transpose import transpose_in_registers
from litz.ir.expr import Expr
from litz.ir.scheduled import ScheduledKernel


class QueryTileEmitter(OnlineSoftmaxEmitter):
    """The memory of a tile, its input and its output."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        by = self.by
        assert self.a.row is not None
        self.row: Expr = self.a.row
        self.queries = self._memory("queries", by.depth * by.vectors)
        # If the columns are unknown, the last block absorbs a rest smaller than a group.
        more = 0 if by.columns.is_const else by.group
        self.weights = self._memory("weights", (by.block + more) * by.vectors)
        self.output_acc = self._memory("output_acc", by.width * by.vectors)
        self.row_max = self._memory("row_max", by.vectors)
        self.total = self._memory("total", by.vectors)
        self.rescale = self._memory("rescale", by.vectors)

    def _clear(self) -> None:
        """Reset maxima, totals and sums: no column has been seen yet."""
        b, by = self.b, self.by
        zero = b.constant(0.0, self.vector)
        for v in range(by.vectors):
            self._put(self.row_max, v, b.constant(-math.inf, self.vector))
            self._put(self.total, v, zero)
        end = self._number(by.width * by.vectors)
        place = self.scopes.open_loop(self._number(0), end, 1)
        self._put(self.output_acc, place, zero)
        self.scopes.close()

    def _vectors(self) -> Iterator[tuple[Value, int]]:
        """Loops over the vectors of a tile: each, and its row count if that is not all lanes."""
        by, rows = self.by, self.by.rows
        few = rows.is_const and rows.number < by.tile
        tail = rows.number % by.lanes if few else 0
        whole = by.vectors - (tail > 0)
        if whole:
            yield self.scopes.open_loop(self._number(0), self._number(whole), 1, rolled=True), 0
            self.scopes.close()
        if tail:
            yield self._number(whole), tail

    def _transpose_blocks(self, n: int) -> Iterator[tuple[Value, int]]:
        """Loops over columns, as many as lanes at a time: the first of each, and how many."""
        whole = n - n % self.by.lanes
        if whole:
            yield (
                self.scopes.open_loop(
                    self._number(0), self._number(whole), self.by.lanes, rolled=True
                ),
                self.by.lanes,
            )
            self.scopes.close()
        if whole < n:
            yield self._number(whole), n - whole

    def _last_lane(self, row: Value, tail: int) -> Value | int:
        """The last lane of a vector that holds a row; `row` is the row in its first lane."""
        if self.by.rows.is_const:
            return (tail or self.by.lanes) - 1
        return self.b.sub(self.b.sub(self._size(self.by.rows), row), 1)

    def _lane(self, number: Value | int) -> Value:
        return number if isinstance(number, Value) else self._number(number)

    # -- rows in and out ---------------------------------------------------------------------

    def _read_queries(self, first: Value) -> None:
        """queries[d, row], from rows with any strides."""
        b, by, query = self.b, self.by, self.a.query
        base, (step, along) = self._base_and_strides(query.index[0], self.row, self.a.depth)
        for v, tail in self._vectors():
            last = self._last_lane(b.add(first, b.mul(v, by.lanes)), tail)
            origin = b.add(base, b.mul(b.add(first, b.mul(v, by.lanes)), step))
            for d, wide in self._transpose_blocks(by.depth):
                start = b.add(origin, b.mul(d, along))
                lines = []
                for r in range(by.lanes):  # lanes after the last row read it again
                    lane = b.intrinsic("smin", last, r) if isinstance(last, Value) else min(r, last)
                    place = b.add(start, b.mul(self._lane(lane), step))
                    lines.append(self._line(query, place, along, wide))
                place = b.add(b.mul(d, by.vectors), v)
                for k, vector in enumerate(transpose_in_registers(b, lines)[:wide]):
                    self._put(self.queries, b.add(place, k * by.vectors), vector)

    def _write_output(self, first: Value) -> None:
        """out[row, e] = output_acc[e, row] / total[row]"""
        b, by, a = self.b, self.by, self.a
        base, (step, along) = self._base_and_strides(self.store.index[0], self.row, a.width)
        for v, tail in self._vectors():
            normalizer = self._normalizer(self._get(self.row_max, v), self._get(self.total, v))
            origin = b.add(base, b.mul(b.add(first, b.mul(v, by.lanes)), step))
            for e, wide in self._transpose_blocks(by.width):
                place = b.add(b.mul(e, by.vectors), v)
                lines = [
                    b.mul(
                        self._get(self.output_acc, b.add(place, min(k, wide - 1) * by.vectors)),
                        normalizer,
                    )
                    for k in range(by.lanes)
                ]
                start = b.add(origin, b.mul(e, along))
                last = self._last_lane(b.add(first, b.mul(v, by.lanes)), tail)
                for r, line in enumerate(transpose_in_registers(b, lines)[: tail or by.lanes]):
                    value = convert(b, line, self.dtype, self.store.buffer.dtype)
                    row = b.add(start, r * step)
                    if isinstance(last, Value):  # only rows that exist
                        self.scopes.open_if(b.compare("sge", last, r))
                    self.values.memory.store_strided(self.store.buffer, row, along, value, wide)
                    if isinstance(last, Value):
                        self.scopes.close()

    def _write_logsumexp(self, first: Value) -> None:
        """The row's log-sum-exp, from which a backward pass recomputes the weights."""
        b, by = self.b, self.by
        for store in self.sums:
            base, (step,) = self._base_and_strides(store.index[0], self.row)
            for v, tail in self._vectors():
                value = self._log_sum_exp(self._get(self.row_max, v), self._get(self.total, v))
                row = b.add(first, b.mul(v, by.lanes))
                place = b.add(base, b.mul(row, step))
                last = self._last_lane(row, tail)
                count = b.add(last, 1) if isinstance(last, Value) else last + 1
                self.values.memory.store_strided(store.buffer, place, step, value, count)
