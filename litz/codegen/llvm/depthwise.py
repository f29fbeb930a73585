"""Depthwise windows: the sums of a block of windows in registers, channels in lanes.

In: a `ScheduledKernel` with a `DepthwiseTiling`. Out: LLVM IR. The number of a block alone decides
which of its taps lie outside of the image. So there is code without tests for each kind of block:
the first, the last, and those between them.

    for image, row, block of windows:
        for vector of channels:
            for row of taps, if it is inside:  for tap:  for w:  sums[w] += image[w + tap] * weight
            for w:  stores of the kernel with sums[w]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.emit import KernelEmitter
from litz.codegen.llvm.function import POINTER
from litz.codegen.llvm.ops import computed_type
from litz.codegen.llvm.reductions import stack_slot
from litz.codegen.llvm.scope import I64
from litz.ir.depthwise import DepthwiseParts, depthwise_of
from litz.ir.expr import integer, substitute
from litz.ir.gemm import stride_of
from litz.ir.index import ZERO, coefficient, simplify
from litz.ir.scheduled import ScheduledKernel

# Taps are unrolled up to this number; more run in a loop.
MAX_UNROLLED_TAPS = 9
# At most this many kinds of blocks get code of their own.
MAX_BLOCK_KINDS = 4


@dataclass(frozen=True)
class _BlockKind:
    """Blocks first..last, all with `count` windows and the same taps inside. `inside` has the pairs
    (window, tap) that lie inside, or is None if the code has to test."""

    first: int
    last: int
    count: int
    inside: frozenset[tuple[int, int]] | None


def _merged(kinds: list[_BlockKind]) -> list[_BlockKind]:
    """Join neighbours of one kind."""
    found: list[_BlockKind] = []
    for kind in kinds:
        if found and (found[-1].count, found[-1].inside) == (kind.count, kind.inside):
            found[-1] = replace(found[-1], last=kind.last)
        else:
            found.append(kind)
    return found


class DepthwiseEmitter(KernelEmitter):
    """Writes one depthwise kernel."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        windows, depthwise = depthwise_of(self.kernel), self.choice.depthwise
        assert windows is not None and depthwise is not None
        self.windows: DepthwiseParts = windows
        self.by = depthwise
        self.vector = computed_type(windows.node.dtype, self.choice.lanes)
        self.sums = [stack_slot(self.values, self.vector, "sum") for _ in range(depthwise.block)]
        self.tile = self.frame.take("tile", depthwise.block, self.vector)
        self.taps = windows.last.extent.number

    # -- kinds of blocks ---------------------------------------------------------------------

    def _kinds(self) -> list[_BlockKind]:
        """Ranges of blocks that are alike. If there are too many, or each has too much code, blocks
        with taps outside test for them."""
        known = [self._kind(number) for number in range(self.by.blocks)]
        found = _merged(known)
        plain = all(self._is_whole(kind) for kind in found)
        if plain or (self.taps <= MAX_UNROLLED_TAPS and len(found) <= MAX_BLOCK_KINDS):
            return found
        return _merged([k if self._is_whole(k) else replace(k, inside=None) for k in known])

    def _kind(self, number: int) -> _BlockKind:
        first = number * self.by.block
        count, holds = min(self.by.count - first, self.by.block), self.windows.holds
        taps = range(self.taps)
        inside = frozenset((w, t) for w in range(count) for t in taps if holds(first + w, t))
        return _BlockKind(number, number, count, inside)

    def _is_whole(self, kind: _BlockKind) -> bool:
        return kind.inside is not None and len(kind.inside) == kind.count * self.taps

    # -- a block -----------------------------------------------------------------------------

    def _task(self, task: Value) -> None:
        block = self._digit(task, integer(self.by.blocks))
        number = self.b.emit(f"udiv {task}, {self.by.blocks}", I64)
        level = self.scopes.depth
        skipped = (self.windows.along, self.windows.channel)
        for a in reversed([a for a in self.kernel.outer if a not in skipped]):
            self.values.axis_level[a] = level
            self.scopes.bind(level, a, self._digit(number, a.extent))
            number = self.b.emit(f"udiv {number}, {a.extent.number}", I64)
        for kind in self._kinds():
            self.scopes.open_if(self._is(kind, block))
            self._channels(kind, self.b.mul(block, self.by.block))
            self.scopes.close()

    def _is(self, kind: _BlockKind, block: Value) -> Value:
        low = self.b.compare("sge", block, kind.first)
        return self.b.bit_and(low, self.b.compare("sle", block, kind.last))

    def _channels(self, kind: _BlockKind, first: Value) -> None:
        """Every vector of channels, the last one masked."""
        channel, lanes = self.windows.channel, self.choice.lanes
        n = channel.extent.number
        base = self.scopes.open_loop(self._number(0), self._number(n), lanes, whole_steps=True)
        self._block(kind, first, base, None)
        self.scopes.close()
        if n % lanes:
            self.scopes.open_if(Value("true", Type("i1", 1)))
            self._block(kind, first, self._number(n - n % lanes), n % lanes)
            self.scopes.close()

    def _block(self, kind: _BlockKind, first: Value, base: Value, tail: int | None) -> None:
        values, b = self.values, self.b
        values.axis_level[self.windows.channel] = self.scopes.depth
        values.set_vector(self.windows.channel, base, tail)
        zero = Value("zeroinitializer", self.vector)
        for slot in self.sums[: kind.count]:
            b.lines.append(f"  store {zero}, {slot}")
        opened = self._open_taps()
        self._row(kind, first, base)
        for _ in range(opened):
            self.scopes.close()
        for number, slot in enumerate(self.sums[: kind.count]):
            total = b.emit(f"load {self.vector}, {slot}", self.vector)
            b.lines.append(f"  store {total}, {self._tile_at(self._number(number))}")
        self._finish(kind.count, first, base, tail)

    def _open_taps(self) -> int:
        """Loops over all axes of taps but the last, and a branch around taps that lie outside."""
        for tap in self.windows.others:
            n = self._number(tap.extent.number)
            number = self.scopes.open_loop(self._number(0), n, 1, rolled=True)
            self.values.axis_level[tap] = self.scopes.depth
            self.scopes.bind(self.scopes.depth, tap, number)
        for test in self.windows.guards:
            holds = self.values.value(test)
            self.scopes.select(self.scopes.depth)
            self.scopes.open_if(holds)
        return len(self.windows.others) + len(self.windows.guards)

    # -- taps --------------------------------------------------------------------------------

    def _row(self, kind: _BlockKind, first: Value, base: Value) -> None:
        """The taps of the last axis, for every window of the block."""
        places = {self.windows.along: ZERO, self.windows.last: ZERO}
        starts = []
        for node in (self.windows.image, self.windows.weight):
            found = coefficient(substitute(node.index[0], places), self.windows.channel)
            assert found is not None, node
            start = self.values.value(simplify(found[1]))
            self.scopes.select(self.scopes.depth)
            starts.append(self.b.add(start, base))
        apart = stride_of(self.windows.image, self.windows.along)
        assert apart is not None
        image = self.b.add(starts[0], self.b.mul(first, apart))
        if self.taps <= MAX_UNROLLED_TAPS and kind.inside is not None:
            for tap in range(self.taps):
                self._tap(kind, (image, starts[1]), tap, first)
            return
        number = self.scopes.open_loop(self._number(0), self._number(self.taps), 1, rolled=True)
        self._tap(kind, (image, starts[1]), number, first)
        self.scopes.close()

    def _tap(
        self, kind: _BlockKind, starts: tuple[Value, Value], tap: int | Value, first: Value
    ) -> None:
        """One tap: its weights times the image under each window."""
        b, windows, memory = self.b, self.windows, self.values.memory
        if isinstance(tap, int):
            used = [w for w in range(kind.count) if (w, tap) in (kind.inside or ())]
        else:
            used = list(range(kind.count))
        if not used:
            return
        steps = [stride_of(n, windows.last) or 0 for n in (windows.image, windows.weight)]
        number = self._number(tap) if isinstance(tap, int) else tap
        image, weight = (b.add(s, b.mul(number, k)) for s, k in zip(starts, steps, strict=True))
        column = memory.load_contiguous(windows.weight, weight, self.values.mask)
        apart = stride_of(windows.image, windows.along) or 0
        for w in used:
            mask = self.values.mask
            if kind.inside is None:
                mask = self._inside(b.add(first, w), number)
            read = memory.load_contiguous(windows.image, b.add(image, w * apart), mask)
            before = b.emit(f"load {self.vector}, {self.sums[w]}", self.vector)
            b.lines.append(f"  store {b.intrinsic('fma', read, column, before)}, {self.sums[w]}")

    def _inside(self, window: Value, tap: Value) -> Value:
        """The lane mask, false if the tap of a window lies outside of the image."""
        b, values = self.b, self.values
        mask = Value("true", Type("i1", 1))
        for test in self.windows.tap_bounds:
            number = b.add(b.mul(window, test.along), b.mul(tap, test.last))
            mask = b.bit_and(mask, b.compare(f"s{test.op}", number, -test.rest))
        lanes = values.broadcast(mask)
        return lanes if values.mask is None else b.bit_and(lanes, values.mask)

    # -- epilogue ----------------------------------------------------------------------------

    def _tile_at(self, number: Value) -> Value:
        return self.b.emit(f"getelementptr {self.vector}, {self.tile}, {number}", POINTER)

    def _finish(self, count: int, first: Value, base: Value, tail: int | None) -> None:
        """The kernel's stores for each window of the block."""
        number = self.scopes.open_loop(self._number(0), self._number(count), 1)
        level = self.scopes.depth
        for a in (self.windows.along, self.windows.channel):
            self.values.axis_level[a] = level
        self.values.row_level = level  # each window has its own values in scratch
        self.values.set_vector(self.windows.channel, base, tail)
        self.scopes.bind(level, self.windows.along, self.b.add(first, number))
        total = self.b.emit(f"load {self.vector}, {self._tile_at(number)}", self.vector)
        self.scopes.bind(level, self.windows.node, total)
        for phase in self.kernel.phases:
            self._stores(list(phase.stores))
        self.scopes.close()
