"""Flash attention: query rows in lanes; keys and values stream past them with an online softmax.

In: a `ScheduledKernel` with an `AttentionTiling`. Out: LLVM IR. Both products have one form:
numbers of the streamed operand, each broadcast, times vectors of query rows. So keys and values are
read in place, whatever their strides, and row maxima and sums never cross lanes.

    for head, tile of rows:                       queries[d, rows] once, transposed
        for block of columns that the mask leaves:
            weights[j, rows] = score of sum over d of k[j, d] * queries[d, rows]
            row_max' = max(row_max, weights)
            weights = exp(weights - row_max');  rescale = exp(row_max - row_max')
            total = total * rescale + sum over j of weights[j]
            output_acc[e, rows] = output_acc * rescale + sum over j of v[j, e] * weights[j, rows]
        out[row, e] = output_acc[e, row] / total[row]     transposed back
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from litz.codegen.llvm.attention_microkernel import AttentionMicrokernel
from litz.codegen.llvm.builder import Value
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.ops import stored_type
from litz.codegen.llvm.query_tile import QueryTileEmitter
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.register_transpose import TransposedLoad, is_transposable
from litz.codegen.llvm.scope import I64, Scope
from litz.codegen.llvm.values import Tail
from litz.ir.attention import steps_along
from litz.ir.expr import Expr
from litz.ir.program import loads
from litz.ir.scheduled import ScheduledKernel


class FlashAttentionEmitter(QueryTileEmitter):
    """Writes one attention kernel."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        a, written = self.a, self.values.memory.written
        others = [n for n in loads(a.score) if n not in (a.query, a.key)]
        across = [n for n in others if is_transposable(n, self.row, a.column, written)]
        self.transposed_loads = [
            [TransposedLoad(self.values, n, self.row, a.column) for n in across]
            for _ in range(self.by.vectors)
        ]

    def emit(self) -> str:
        """The microkernels, then the kernel."""
        a, by = self.a, self.by
        groups = {by.group} if by.columns.is_const else {by.group, 1}
        along = (a.column, a.depth)
        parts = [self._microkernel("dots", n, a.key, along, rescaled=False) for n in sorted(groups)]
        for size, times in self._widths():
            if times:
                parts.append(
                    self._microkernel("mix", size, a.value, (a.width, a.column), rescaled=True)
                )
        return "".join([*parts, super().emit()])

    def _microkernel(
        self, part: str, rows: int, node: Expr, along: tuple[Expr, Expr], *, rescaled: bool
    ) -> str:
        sums = AttentionMicrokernel(
            f"{self.name}.{part}{rows}", self.vector, node.dtype, rows, self.by.vectors
        )
        found = steps_along(node.index[0], along)
        assert found is not None
        row, step = found[0]
        text = sums.emit(row, step, rescaled)
        self.b.declares |= sums.b.declares
        return text

    def _widths(self) -> list[tuple[int, int]]:
        """The group sizes of the width, and how many groups have each: sizes differ by at most one,
        since no element may be summed twice."""
        by = self.by
        groups = -(-by.width // by.group)
        most = -(-by.width // groups)
        return [(most, by.width - groups * (most - 1)), (most - 1, groups * most - by.width)]

    # -- one task ----------------------------------------------------------------------------

    def _task(self, task: Value) -> None:
        b, by = self.b, self.by
        tiles = self._size(by.tiles).text
        self._bind_heads(b.emit(f"udiv {task}, {tiles}", I64))
        first = b.mul(self._balanced_tile(b.emit(f"urem {task}, {tiles}", I64)), by.tile)
        # The last tile moves back over rows of the one before rather than leave lanes empty.
        if not by.rows.is_const:
            spare = b.sub(self._size(by.rows), by.tile)
            first = b.intrinsic("smax", b.intrinsic("smin", first, spare), 0)
        elif by.rows.number > by.tile:
            first = b.intrinsic("smin", first, by.rows.number - by.tile)
        self._read_queries(first)
        self._clear()
        start, stop = self._columns(first)
        block, count = self._open_blocks(start, stop)
        self._qk_dots(block, count)
        self._scores(first, block, count)
        self._exponentials(count)
        self._accumulate_values(block, count)
        self.scopes.close()
        self._write_output(first)
        self._write_logsumexp(first)

    def _open_blocks(self, start: Value, stop: Value) -> tuple[Value, Value]:
        """A loop over blocks of columns; returns each block's first column and its count. The last
        block absorbs a rest smaller than a group, so only a single block can be that small."""
        b, by = self.b, self.by
        if by.columns.is_const:
            block = self.scopes.open_loop(start, stop, by.block, rolled=True)
            return block, b.intrinsic("smin", b.sub(stop, block), by.block)
        end = b.intrinsic("smax", b.sub(stop, by.group - 1), b.add(start, 1))
        block = self.scopes.open_loop(start, end, by.block, rolled=True)
        left = b.sub(stop, block)
        ends = b.compare("slt", left, by.block + by.group)
        return block, b.select(ends, left, by.block)

    def _balanced_tile(self, number: Value) -> Value:
        """The tile of a head that runs as its `number`-th. Under a causal mask the last tiles have
        the most work: taken from both ends in turn, any half of the tiles has half of it."""
        b, by = self.b, self.by
        if by.high is None:
            return number
        near = b.lshr(number, 1)
        far = b.sub(b.sub(self._size(by.tiles), 1), near)
        return b.select(b.compare("eq", b.bit_and(number, 1), 0), near, far)

    def _columns(self, first: Value) -> tuple[Value, Value]:
        """The range of columns that some row of a tile sees, from the beginning of a block on. If
        the mask ends it, it is whole groups, at least one."""
        b, by = self.b, self.by
        start, stop = self._number(0), self._size(by.columns)
        if by.low is not None:
            seen = b.intrinsic("smax", b.add(first, by.low), 0)
            start = b.mul(b.emit(f"udiv {seen}, {by.block}", I64), by.block)
        if by.high is not None:
            left = b.sub(b.add(first, by.tile + by.high + by.group - 1), start)
            groups = b.intrinsic("smax", b.emit(f"sdiv {left}, {by.group}", I64), 1)
            stop = b.intrinsic("smin", b.add(start, b.mul(groups, by.group)), stop)
        return start, stop

    # -- a block of columns ------------------------------------------------------------------

    def _qk_dots(self, block: Value, count: Value) -> None:
        """The last group ends where the block does, and may take some columns again."""
        if self.by.columns.is_const:
            self._qk_dots_of(self.by.group, block, count)
            return
        enough = self.b.compare("sge", count, self.by.group)
        for group, holds in ((self.by.group, enough), (1, self.b.bit_xor(enough, 1))):
            self.scopes.open_if(holds)
            self._qk_dots_of(group, block, count)
            self.scopes.close()

    def _qk_dots_of(self, group: int, block: Value, count: Value) -> None:
        b, by, a = self.b, self.by, self.a
        base, (step, _) = self._base_and_strides(a.key.index[0], a.column, a.depth)
        j = self.scopes.open_loop(self._number(0), count, group, rolled=True)
        j = b.intrinsic("smin", j, b.sub(count, group))
        origin = b.add(base, b.mul(b.add(block, j), step))
        tile = self._at(self.weights, b.mul(j, by.vectors))
        self._call(f"dots{group}", a.key, origin, self.queries, tile, self._number(by.depth))
        self.scopes.close()

    def _accumulate_values(self, block: Value, count: Value) -> None:
        b, by, a = self.b, self.by, self.a
        base, (step, along) = self._base_and_strides(a.value.index[0], a.column, a.width)
        origin = b.add(base, b.mul(block, step))
        start = 0
        for size, times in self._widths():
            if times:
                ends = self._number(start), self._number(start + size * times)
                e = self.scopes.open_loop(*ends, size, rolled=True)
                tile = self._at(self.output_acc, b.mul(e, by.vectors))
                here = b.add(origin, b.mul(e, along))
                self._call(f"mix{size}", a.value, here, self.weights, tile, count)
                self.scopes.close()
            start += size * times

    def _call(
        self, part: str, node: Expr, origin: Value, vectors: Value, tile: Value, steps: Value
    ) -> None:
        pointer, element = self.values.memory.pointers[node.buffer], stored_type(node.dtype, 1)
        numbers = self.b.emit(f"getelementptr inbounds {element}, {pointer}, {origin}", POINTER)
        given = f"{numbers}, {vectors}, {tile}, {steps}, {self.rescale}"
        self.b.lines.append(f"  call void @{self.name}.{part}({given})")

    def _scores(self, first: Value, block: Value, count: Value) -> None:
        """Turn dot products into scores, and update the row maxima."""
        b, by, a = self.b, self.by, self.a
        tops = [stack_slot(self.values, self.vector, "most") for _ in range(by.vectors)]
        for v, slot in enumerate(tops):
            b.lines.append(f"  store {self._get(self.row_max, v)}, {slot}")
        with self._each_column(first, block, count) as (j, number):
            self.values.axis_level[a.column] = self.scopes.depth
            self.scopes.bind(self.scopes.depth, a.column, b.add(block, j))
            for v, slot in enumerate(tops):
                with self._lanes(first, v):
                    for square in self.transposed_loads[v]:
                        self.scopes.bind(self.scopes.depth, square.node, square.step(number))
                    score = self._score(b.add(b.mul(j, by.vectors), v))
                before = b.emit(f"load {self.vector}, {slot}", self.vector)
                # A NaN never becomes the maximum: it propagates through the weights.
                higher = b.compare("ogt", score, before)
                b.lines.append(f"  store {b.select(higher, score, before)}, {slot}")
        for v, slot in enumerate(tops):
            self._update_row_max(v, b.emit(f"load {self.vector}, {slot}", self.vector))

    def _score(self, place: Value) -> Value:
        """Replace a dot product by its score."""
        self.scopes.bind(self.scopes.depth, self.a.dot, self._get(self.weights, place))
        score = self.values.broadcast(self.values.value(self.a.score))
        self._put(self.weights, place, score)
        return score

    @contextmanager
    def _each_column(
        self, first: Value, block: Value, count: Value
    ) -> Iterator[tuple[Value, Value]]:
        """A loop over the columns of a block; yields each column and its number in its group of
        `lanes`. Loads along rows, such as a mask's, are transposed one such group at a time."""
        b, by = self.b, self.by
        if not self.transposed_loads[0]:
            j = self.scopes.open_loop(self._number(0), count, 1, rolled=True)
            yield j, j
            self.scopes.close()
            return
        part = self.scopes.open_loop(self._number(0), count, by.lanes, rolled=True)
        left = b.sub(count, part)
        inside = b.compare("slt", self.values.iota(1), self.values.broadcast(left))
        for v, transposed_loads in enumerate(self.transposed_loads):
            with self._lanes(first, v):
                base, tail = self.values.base, self.values.tail
                for square in transposed_loads:
                    assert base is not None
                    square.fill(base, tail, b.add(block, part), inside)
        end = b.intrinsic("smin", left, by.lanes)
        number = self.scopes.open_loop(self._number(0), end, 1, rolled=True)
        yield b.add(part, number), number
        self.scopes.close()
        self.scopes.close()

    @contextmanager
    def _lanes(self, first: Value, v: int) -> Iterator[None]:
        """Continue the same lines, with the rows of vector `v` in lanes."""
        by, around = self.by, self.scopes.stack[-1]
        self.scopes.stack.append(Scope(around.lines, around.block))
        self.values.axis_level[self.row] = self.values.row_level = self.scopes.depth
        tail: Tail = None
        base = self.b.add(first, v * by.lanes)
        if not by.rows.is_const:
            tail = self.b.sub(self._size(by.rows), base)
        elif by.rows.number < by.tile and by.rows.number - v * by.lanes < by.lanes:
            tail = by.rows.number - v * by.lanes
        self.values.set_vector(self.row, base, tail)
        yield
        self.values.set_vector(None, None, None)
        self.scopes.stack.pop()
        self.scopes.select(self.scopes.depth)

    def _update_row_max(self, v: int, row_max: Value) -> None:
        """Multiply the sums so far by exp(old maximum - new maximum)."""
        b = self.b
        rescale = self._exp(b.sub(self._get(self.row_max, v), self._finite(row_max)))
        self._put(self.rescale, v, rescale)
        self._put(self.row_max, v, row_max)
        self._put(self.total, v, b.mul(self._get(self.total, v), rescale))

    def _exponentials(self, count: Value) -> None:
        """weights = exp(weights - row_max), added to the totals."""
        b, by = self.b, self.by
        tops = [self._finite(self._get(self.row_max, v)) for v in range(by.vectors)]
        sums = [stack_slot(self.values, self.vector, "sum") for _ in range(by.vectors)]
        for slot in sums:
            b.lines.append(f"  store {b.constant(0.0, self.vector)}, {slot}")
        j = self.scopes.open_loop(self._number(0), count, 1, rolled=True)
        for v, slot in enumerate(sums):
            place = b.add(b.mul(j, by.vectors), v)
            weight = self._exp(b.sub(self._get(self.weights, place), tops[v]))
            self._put(self.weights, place, weight)
            before = b.emit(f"load {self.vector}, {slot}", self.vector)
            b.lines.append(f"  store {b.add(before, weight)}, {slot}")
        self.scopes.close()
        for v, slot in enumerate(sums):
            own = b.emit(f"load {self.vector}, {slot}", self.vector)
            self._put(self.total, v, b.add(self._get(self.total, v), own))
