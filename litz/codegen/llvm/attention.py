"""Attention: query rows in lanes, keys and values streaming past them, softmax on the way.

In: a `ScheduledKernel` with a `Streaming`. Out: LLVM IR. Both products are of one form: numbers of
the streamed operand, each spread over the lanes, times vectors of query rows. So keys and values
are read where they lie, whatever their strides, and maxima and sums of rows never cross lanes.

    for head, tile of rows:                       queries[d, rows] once, transposed
        for block of columns that the mask leaves:
            weights[j, rows] = score of sum over d of k[j, d] * queries[d, rows]
            top' = max(top, weights);  weights = exp(weights - top');  fade = exp(top - top')
            total = total * fade + sum over j of weights[j]
            mixed[e, rows] = mixed * fade + sum over j of v[j, e] * weights[j, rows]
        out[row, e] = mixed[e, row] / total[row]  transposed back
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from litz.codegen.llvm.attention_tile import TileEmitter
from litz.codegen.llvm.builder import Value
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.ops import stored_type
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.scope import I64, Scope
from litz.codegen.llvm.sums import Sums
from litz.codegen.llvm.tiles import Tile, crosses
from litz.codegen.llvm.values import Tail
from litz.ir.attention import steps_along
from litz.ir.expr import Expr
from litz.ir.program import loads
from litz.ir.scheduled import ScheduledKernel


class AttentionEmitter(TileEmitter):
    """Writes one kernel that is attention."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        a, written = self.a, self.values.memory.written
        others = [n for n in loads(a.score) if n not in (a.query, a.key)]
        across = [n for n in others if crosses(n, self.row, a.column, written)]
        self.squares = [
            [Tile(self.values, n, self.row, a.column) for n in across]
            for _ in range(self.by.vectors)
        ]

    def emit(self) -> str:
        """The functions that sum, then the kernel."""
        a, by = self.a, self.by
        groups = {by.group} if by.columns.is_const else {by.group, 1}
        along = (a.column, a.depth)
        parts = [self._sums("dots", n, a.key, along, faded=False) for n in sorted(groups)]
        for size, times in self._widths():
            if times:
                parts.append(self._sums("mix", size, a.value, (a.width, a.column), faded=True))
        return "".join([*parts, super().emit()])

    def _sums(
        self, part: str, rows: int, node: Expr, along: tuple[Expr, Expr], *, faded: bool
    ) -> str:
        sums = Sums(f"{self.name}.{part}{rows}", self.vector, node.dtype, rows, self.by.vectors)
        found = steps_along(node.index[0], along)
        assert found is not None
        row, step = found[0]
        text = sums.emit(row, step, faded)
        self.b.declares |= sums.b.declares
        return text

    def _widths(self) -> list[tuple[int, int]]:
        """Places of the width that are summed together, and how often: groups of nearly one size,
        as none may be summed twice."""
        by = self.by
        groups = -(-by.width // by.group)
        most = -(-by.width // groups)
        return [(most, by.width - groups * (most - 1)), (most - 1, groups * most - by.width)]

    # -- one task ----------------------------------------------------------------------------

    def _task(self, task: Value) -> None:
        b, by = self.b, self.by
        tiles = self._size(by.tiles).text
        self._bind_heads(b.emit(f"udiv {task}, {tiles}", I64))
        first = b.mul(self._turn(b.emit(f"urem {task}, {tiles}", I64)), by.tile)
        # The last tile takes some rows again rather than leave lanes empty.
        if not by.rows.is_const:
            spare = b.sub(self._size(by.rows), by.tile)
            first = b.intrinsic("smax", b.intrinsic("smin", first, spare), 0)
        elif by.rows.number > by.tile:
            first = b.intrinsic("smin", first, by.rows.number - by.tile)
        self._read_queries(first)
        self._clear()
        start, stop = self._columns(first)
        block, count = self._open_blocks(start, stop)
        self._dots(block, count)
        self._scores(first, block, count)
        self._exponentials(count)
        self._mix(block, count)
        self.scopes.close()
        self._write_means(first)
        self._write_sums(first)

    def _open_blocks(self, start: Value, stop: Value) -> tuple[Value, Value]:
        """A loop over blocks of columns: the first column of each and how many it has. None has
        fewer than a group but the only one: the last block takes in what would be left."""
        b, by = self.b, self.by
        if by.columns.is_const:
            block = self.scopes.open_loop(start, stop, by.block, rolled=True)
            return block, b.intrinsic("smin", b.sub(stop, block), by.block)
        end = b.intrinsic("smax", b.sub(stop, by.group - 1), b.add(start, 1))
        block = self.scopes.open_loop(start, end, by.block, rolled=True)
        left = b.sub(stop, block)
        ends = b.compare("slt", left, by.block + by.group)
        return block, b.select(ends, left, by.block)

    def _turn(self, number: Value) -> Value:
        """Which tile of a head comes when. Behind a causal mask the last ones have the most to do:
        taken from both ends in turns, any half of them has half of it."""
        b, by = self.b, self.by
        if by.high is None:
            return number
        near = b.lshr(number, 1)
        far = b.sub(b.sub(self._size(by.tiles), 1), near)
        return b.select(b.compare("eq", b.bit_and(number, 1), 0), near, far)

    def _columns(self, first: Value) -> tuple[Value, Value]:
        """The columns that some row of a tile sees, from the beginning of a block on; if the mask
        ends them, whole groups, of which there is always one."""
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

    def _dots(self, block: Value, count: Value) -> None:
        """The last group ends where the block does, though it take some columns again."""
        if self.by.columns.is_const:
            self._dots_of(self.by.group, block, count)
            return
        enough = self.b.compare("sge", count, self.by.group)
        for group, holds in ((self.by.group, enough), (1, self.b.bit_xor(enough, 1))):
            self.scopes.open_if(holds)
            self._dots_of(group, block, count)
            self.scopes.close()

    def _dots_of(self, group: int, block: Value, count: Value) -> None:
        b, by, a = self.b, self.by, self.a
        base, (step, _) = self._walked(a.key.index[0], a.column, a.depth)
        j = self.scopes.open_loop(self._number(0), count, group, rolled=True)
        j = b.intrinsic("smin", j, b.sub(count, group))
        origin = b.add(base, b.mul(b.add(block, j), step))
        tile = self._at(self.weights, b.mul(j, by.vectors))
        self._call(f"dots{group}", a.key, origin, self.queries, tile, self._number(by.depth))
        self.scopes.close()

    def _mix(self, block: Value, count: Value) -> None:
        b, by, a = self.b, self.by, self.a
        base, (step, along) = self._walked(a.value.index[0], a.column, a.width)
        origin = b.add(base, b.mul(block, step))
        start = 0
        for size, times in self._widths():
            if times:
                ends = self._number(start), self._number(start + size * times)
                e = self.scopes.open_loop(*ends, size, rolled=True)
                tile = self._at(self.mixed, b.mul(e, by.vectors))
                here = b.add(origin, b.mul(e, along))
                self._call(f"mix{size}", a.value, here, self.weights, tile, count)
                self.scopes.close()
            start += size * times

    def _call(
        self, part: str, node: Expr, origin: Value, vectors: Value, tile: Value, steps: Value
    ) -> None:
        pointer, element = self.values.memory.pointers[node.buffer], stored_type(node.dtype, 1)
        numbers = self.b.emit(f"getelementptr inbounds {element}, {pointer}, {origin}", POINTER)
        given = f"{numbers}, {vectors}, {tile}, {steps}, {self.fade}"
        self.b.lines.append(f"  call void @{self.name}.{part}({given})")

    def _scores(self, first: Value, block: Value, count: Value) -> None:
        """The score of each dot product, and the rows' new maxima."""
        b, by, a = self.b, self.by, self.a
        tops = [stack_slot(self.values, self.vector, "most") for _ in range(by.vectors)]
        for v, slot in enumerate(tops):
            b.lines.append(f"  store {self._get(self.top, v)}, {slot}")
        with self._each_column(first, block, count) as (j, number):
            self.values.axis_level[a.column] = self.scopes.depth
            self.scopes.bind(self.scopes.depth, a.column, b.add(block, j))
            for v, slot in enumerate(tops):
                with self._lanes(first, v):
                    for square in self.squares[v]:
                        self.scopes.bind(self.scopes.depth, square.node, square.step(number))
                    score = self._score(b.add(b.mul(j, by.vectors), v))
                before = b.emit(f"load {self.vector}, {slot}", self.vector)
                # A NaN is no maximum: it passes through the weights.
                higher = b.compare("ogt", score, before)
                b.lines.append(f"  store {b.select(higher, score, before)}, {slot}")
        for v, slot in enumerate(tops):
            self._raise_top(v, b.emit(f"load {self.vector}, {slot}", self.vector))

    def _score(self, place: Value) -> Value:
        """The score takes the place of the dot product."""
        self.scopes.bind(self.scopes.depth, self.a.dot, self._get(self.weights, place))
        score = self.values.spread(self.values.value(self.a.score))
        self._put(self.weights, place, score)
        return score

    @contextmanager
    def _each_column(
        self, first: Value, block: Value, count: Value
    ) -> Iterator[tuple[Value, Value]]:
        """A loop over the columns of a block, each with its number among as many as there are
        lanes: what lies by rows, as a mask does, is turned that many columns at a time."""
        b, by = self.b, self.by
        if not self.squares[0]:
            j = self.scopes.open_loop(self._number(0), count, 1, rolled=True)
            yield j, j
            self.scopes.close()
            return
        part = self.scopes.open_loop(self._number(0), count, by.lanes, rolled=True)
        left = b.sub(count, part)
        inside = b.compare("slt", self.values.iota(1), self.values.spread(left))
        for v, squares in enumerate(self.squares):
            with self._lanes(first, v):
                base, tail = self.values.base, self.values.tail
                for square in squares:
                    assert base is not None
                    square.fill(base, tail, b.add(block, part), inside)
        end = b.intrinsic("smin", left, by.lanes)
        number = self.scopes.open_loop(self._number(0), end, 1, rolled=True)
        yield b.add(part, number), number
        self.scopes.close()
        self.scopes.close()

    @contextmanager
    def _lanes(self, first: Value, v: int) -> Iterator[None]:
        """Lines that go on where they are, with the rows of a vector in lanes."""
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

    def _raise_top(self, v: int, top: Value) -> None:
        """What was summed so far fades by exp(old top - new top)."""
        b = self.b
        fade = self._exp(b.sub(self._get(self.top, v), self._finite(top)))
        self._put(self.fade, v, fade)
        self._put(self.top, v, top)
        self._put(self.total, v, b.mul(self._get(self.total, v), fade))

    def _exponentials(self, count: Value) -> None:
        """weights = exp(weights - top), and what they add up to."""
        b, by = self.b, self.by
        tops = [self._finite(self._get(self.top, v)) for v in range(by.vectors)]
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
