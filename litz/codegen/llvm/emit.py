"""The emitter: a scheduled kernel becomes one LLVM function.

In: `ScheduledKernel`. Out: LLVM IR text of `void @name(ptr args, i64 begin, i64 end)`, which runs
the tasks begin..end-1. A task is a point of the outer axes (a chunk of the vector axis counts as
one). Inside it the phases run in order.

    for task in begin..end:            outer axes from the task's number
        for each phase:                inner axes, the last in lanes, the tail masked
            values, then stores;  reductions are finished after the loop
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from litz.codegen.llvm.blocked_summation import BlockedSummation, blocked_summation_of
from litz.codegen.llvm.builder import Type, Value
from litz.codegen.llvm.function import FunctionEmitter
from litz.codegen.llvm.reductions import Reduction
from litz.codegen.llvm.register_transpose import TransposedLoad, is_transposable
from litz.codegen.llvm.scans import Scan
from litz.codegen.llvm.scope import I64, Scope
from litz.codegen.llvm.values import Tail
from litz.ir.expr import Expr, apply, cast, load, narrow, walk
from litz.ir.index import ONE
from litz.ir.program import Phase, Store, loads
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import ceil_div, is_multiple


class KernelEmitter(FunctionEmitter):
    """Writes one kernel."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        super().__init__(scheduled, name)
        self.tiles = self._tiles()
        # The block of the transposed axis: first step, number of steps, mask of those inside.
        self.block: tuple[Value, Value, Value | None]

    def emit(self) -> str:
        """The whole function."""
        self._arguments()
        task = self.scopes.open_loop(Value("%begin", I64), self.until, 1)
        self._task(task)
        self.scopes.close()
        self.values.memory.fence()
        self._report_errors()
        body = "\n".join(self.b.lines)
        return f"define void @{self.name}(ptr %args, i64 %begin, i64 %end) #0 {{\n{body}\n}}\n"

    def _task(self, task: Value) -> None:
        if self.choice.vector is None:
            self._bind_tasks(task)
            self.values.row_level = self.scopes.depth
            self._vectorize_inner()
        else:
            self._vectorize_outer(task)

    # -- outer axes --------------------------------------------------------------------------

    def _bind_tasks(self, task: Value) -> dict[Expr, Value]:
        """Compute the outer axes from the task's number, the last one fastest; the first point of
        an axis of which a task takes several."""
        b, level = self.b, self.scopes.depth
        left, first = task, {}
        for k, a in enumerate(reversed(self.kernel.outer)):
            step = self.choice.step(a)
            n = ceil_div(a.extent, step)
            last = k == len(self.kernel.outer) - 1
            digit = left if last else self._digit(left, n)
            left = left if last or n is ONE else b.emit(f"udiv {left}, {self._size(n).text}", I64)
            if a is self.choice.vector or a is self.choice.transpose_axis:
                first[a] = b.mul(digit, step)
            else:
                self.values.axis_level[a] = level
                self.scopes.bind(level, a, digit)
        return first

    def _digit(self, number: Value, n: Expr) -> Value:
        if n is ONE:
            return self.b.constant(0, I64)
        return self.b.emit(f"urem {number}, {self._size(n).text}", I64)

    def _vectorize_outer(self, task: Value) -> None:
        """The vector axis is an outer one: each lane is a row of its own."""
        vector, chunk, lanes = self.choice.vector, self.choice.chunk, self.choice.lanes
        assert vector is not None
        n = vector.extent
        first = self._bind_tasks(task)
        b, start = self.b, first[vector]
        if self.choice.transpose_axis is not None:
            self._start_transposed_loads(
                self.choice.transpose_axis, first[self.choice.transpose_axis]
            )
        stop = b.intrinsic("smin", b.add(start, chunk), self._size(n))
        self.values.axis_level[vector] = self.values.row_level = self.scopes.depth + 1
        base = self.scopes.open_loop(start, stop, lanes, whole_steps=True)
        self._lane_group(vector, base, None)
        self.scopes.close()
        if not is_multiple(n, lanes):  # a chunk is whole vectors, except for the last one
            whole = b.emit(f"and {b.sub(stop, start)}, {-lanes}", I64)
            rest = b.add(start, whole)
            self.scopes.open_if(b.compare("slt", rest, stop))
            self._lane_group(vector, rest, self._tail(n, rest, stop))
            self.scopes.close()

    def _tiles(self) -> list[TransposedLoad]:
        """The loads that are transposed in registers."""
        vector, transpose_axis = self.choice.vector, self.choice.transpose_axis
        if vector is None or transpose_axis is None:
            return []
        found = dict.fromkeys(n for s in self.kernel.stores for n in loads(s.value))
        axes, written = (vector, transpose_axis), self.values.memory.written
        crossing = [n for n in found if is_transposable(n, *axes, written)]
        return [TransposedLoad(self.values, n, *axes) for n in crossing]

    def _start_transposed_loads(self, transpose_axis: Expr, first: Value) -> None:
        """Set the block of `transpose_axis` that this task takes."""
        b, lanes = self.b, self.choice.lanes
        self.block = first, b.constant(lanes, I64), None
        if not is_multiple(transpose_axis.extent, lanes):
            left = b.sub(self._size(transpose_axis.extent), first)
            inside = b.compare("slt", self.values.iota(1), self.values.broadcast(left))
            self.block = first, b.intrinsic("smin", left, lanes), inside

    def _lane_group(self, vector: Expr, base: Value, tail: Tail) -> None:
        self.values.set_vector(vector, base, tail)
        if self.choice.transpose_axis is None:
            self._poison_scratch()
            for phase in self.kernel.phases:
                self._phase(phase, in_lanes=False)
        else:
            self._transposed_block(self.choice.transpose_axis, base, tail)

    def _transposed_block(self, transpose_axis: Expr, base: Value, tail: Tail) -> None:
        """Transpose the block's loads, then take its steps one by one."""
        first, count, inside = self.block
        for tile in self.tiles:
            tile.fill(base, tail, first, inside)
        number = self.scopes.open_loop(self._number(0), count, 1)
        level = self.values.axis_level[transpose_axis] = self.scopes.depth
        self.scopes.bind(level, transpose_axis, self.b.add(first, number))
        for tile in self.tiles:
            self.scopes.bind(level, tile.node, tile.step(number))
        for phase in self.kernel.phases:  # several, if one writes windows one after the other
            self._stores(list(phase.stores))
        self.scopes.close()

    def _vectorize_inner(self) -> None:
        self._poison_scratch()
        for phase in self.kernel.phases:
            self._phase(phase, in_lanes=True)

    # -- phases ------------------------------------------------------------------------------

    def _phase(self, phase: Phase, in_lanes: bool) -> None:
        """The loop nest of a phase, then the stores of its finished reductions."""
        scans = [n for s in phase.stores for n in walk(s.value) if n.op == "scan"]
        alone = scans or not phase.inner or any(s.scatters for s in phase.stores)
        lanes = 1 if in_lanes and alone else self.choice.lanes
        saved, self.values.lanes = self.values.lanes, lanes
        reduces = list(
            dict.fromkeys(n for s in phase.stores for n in walk(s.value) if n.op == "reduce")
        )
        unroll = self._unroll(phase, lanes) if in_lanes and reduces else 1
        step = lanes * unroll if in_lanes else 1
        rows = not in_lanes and lanes > 1
        summation = blocked_summation_of(reduces, phase, step, lanes_are_rows=rows)
        reductions = [Reduction(self.values, n, unroll, lanes, summation) for n in reduces]
        for reduction in reductions:
            reduction.start()
        self._start_scans(scans, lanes)
        nest = _Nest(reductions, list(phase.inside), phase.inner, unroll, in_lanes, summation)
        self._nest(nest, list(phase.inner))
        if in_lanes:
            self.values.set_vector(None, None, None)
        for reduction in reductions:
            folded = reduction.finish(fold_lanes=in_lanes)
            self.scopes.bind(self.scopes.depth, reduction.node, folded)
        self._stores(list(phase.completing))
        self.values.lanes = saved

    def _unroll(self, phase: Phase, lanes: int) -> int:
        n = phase.inner[-1].extent.hint
        unroll = self.choice.unroll
        while unroll > 1 and n < lanes * unroll:
            unroll //= 2
        return unroll

    def _start_scans(self, scans: list[Expr], lanes: int) -> None:
        for node in dict.fromkeys(scans):
            scan = Scan(self.values, node, lanes)
            scan.start()
            self.values.scans[node] = scan.step

    def _nest(self, nest: _Nest, axes: list[Expr]) -> None:
        if not axes:
            with self._where_inside([] if nest.inside else nest.reductions, nest.axes):
                self._body(nest.reductions, nest.inside, 0)
            return
        variable, *rest = axes
        if nest.in_lanes and not rest and self.values.lanes > 1:
            self._in_lanes(nest, variable)
            return
        start, stop = self._number(0), self._size(variable.extent)
        with self._blocked_loop(nest, variable, start, stop, 1) as counter:
            self.values.axis_level[variable] = self.scopes.depth
            self.scopes.bind(self.scopes.depth, variable, counter)
            self._nest(nest, rest)

    @contextmanager
    def _where_inside(self, reductions: list[Reduction], inner: tuple[Expr, ...]) -> Iterator[None]:
        """Branch around points whose guard is false and which therefore change no reduction, as at
        the border of a pool. Inside, the guard is known to hold: nothing is masked."""
        guards = {r.guard for r in reductions}
        guard = guards.pop() if len(guards) == 1 else None
        tested = [] if guard is None else [a for a in inner if a in guard.axes]
        if guard is None or not tested or self.values.varies(guard):
            yield
            return
        levels = {a: self.values.axis_level[a] for a in tested}
        self.scopes.open_if(self.values.value(guard))
        # Values under the guard need these axes, and are written inside the branch.
        self.values.axis_level |= dict.fromkeys(tested, self.scopes.depth)
        self.scopes.bind(self.scopes.depth, guard, self.b.constant(1, Type("i1", 1)))
        yield
        self.scopes.close()
        self.values.axis_level |= levels

    @contextmanager
    def _blocked_loop(
        self, nest: _Nest, variable: Expr, start: Value, stop: Value, step: int, few: bool = False
    ) -> Iterator[Value]:
        """A loop that flushes its sums every so many turns, so that numbers are added to others of
        their size: a long sum then loses no more to rounding than a few short ones."""
        flush_every = nest.summation.flush_every
        long = [r for r in nest.reductions if r.is_blocked and variable in flush_every]
        if not long or few:
            yield self.scopes.open_loop(start, stop, step)
            self.scopes.close()
            return
        far = self._far(flush_every[variable], step)
        block = self.scopes.open_loop(start, stop, far)
        self.scopes.open_if(self.b.compare("sgt", block, start))  # a short row flushes nothing
        for reduction in long:
            reduction.flush()
        self.scopes.close()
        end = self.b.intrinsic("smin", self.b.add(block, far), stop)
        yield self.scopes.open_loop(block, end, step)
        self.scopes.close()
        self.scopes.close()

    def _far(self, every: Expr, step: int) -> Value | int:
        """That many steps, in elements."""
        if every.is_const:
            return every.number * step
        return self.b.mul(self.values.value(every), step)

    def _in_lanes(self, nest: _Nest, variable: Expr) -> None:
        """Whole groups of vectors, whole vectors, then one masked vector."""
        lanes, given, n = self.values.lanes, (nest.reductions, nest.inside), variable.extent
        zero, end = self._number(0), self._size(n)
        grouped, whole = (self._multiple(n, end, lanes * k) for k in (nest.unroll, 1))
        for start, stop, copies in ((zero, grouped, nest.unroll), (grouped, whole, 1)):
            if start != stop:
                few = start is grouped and nest.unroll > 1  # less than a group is left
                with self._blocked_loop(nest, variable, start, stop, lanes * copies, few) as base:
                    for copy in range(copies):
                        first = self.b.add(base, copy * lanes) if copy else base
                        self._copy(variable, first, None, *given, copy)
            # With an axis around this one, the copies are used again in its next turn.
            if copies > 1 and not n.is_const and nest.reductions and len(nest.axes) == 1:
                self._join_copies(nest.reductions, grouped)
        if is_multiple(n, lanes):
            return
        if n.is_const:
            self._copy(variable, whole, n.number % lanes, *given, 0)
            return
        self.scopes.open_if(self.b.compare("slt", whole, end))
        self._copy(variable, whole, self.b.sub(end, whole), *given, 0)
        self.scopes.close()

    def _join_copies(self, reductions: list[Reduction], grouped: Value) -> None:
        """Join the copies before the rest of a row; a row without a whole group used only one."""
        self.scopes.open_if(self.b.compare("sgt", grouped, 0))
        for reduction in reductions:
            reduction.join_copies()
        self.scopes.close()
        for reduction in reductions:
            reduction.slots = reduction.slots[:1]

    def _copy(
        self, variable: Expr, first: Value, tail: Tail, reductions: list[Reduction],
        inside: list[Store], copy: int,
    ) -> None:  # fmt: skip
        """One unrolled copy of the body: lines continue, but its values are its own."""
        around = self.scopes.stack[-1]
        self.scopes.stack.append(Scope(around.lines, around.block))
        self.values.axis_level[variable] = self.scopes.depth
        self.values.set_vector(variable, first, tail)
        self._body(reductions, inside, copy)
        self.scopes.stack.pop()
        self.scopes.select(self.scopes.depth)

    def _body(self, reductions: list[Reduction], inside: list[Store], copy: int) -> None:
        for reduction in reductions:
            reduction.update(copy)
        self._stores(inside)

    def _stores(self, stores: list[Store]) -> None:
        """All values first: a buffer may share memory with one that is read here."""
        computed = [self._combined(s) for s in stores]
        for store, value in zip(stores, computed, strict=True):
            self.values.memory.store(store.buffer, store.index[0], value, store.value.dtype)

    def _combined(self, store: Store) -> Value:
        """The value a store writes. With an update mode, the old value is read at every point, even
        if its place and the new value do not depend on the innermost loops."""
        if store.mode in ("set", "put"):
            return self.values.value(store.value)
        around, row_level = self.scopes.stack[-1], self.values.row_level
        self.scopes.stack.append(Scope(around.lines, around.block))
        self.values.row_level = self.scopes.depth
        value = self.values.value(_update(store))
        self.values.row_level = row_level
        self.scopes.stack.pop()
        self.scopes.select(self.scopes.depth)
        return value


@dataclass(frozen=True)
class _Nest:
    """The contents of a phase's loops."""

    reductions: list[Reduction]
    inside: list[Store]
    axes: tuple[Expr, ...]
    unroll: int
    in_lanes: bool
    summation: BlockedSummation


def _update(store: Store) -> Expr:
    """The stored value combined with the old one."""
    dtype = store.buffer.dtype
    there = cast(load(store.buffer, store.index), dtype.compute)
    both = apply(store.mode, there, cast(store.value, dtype.compute))
    return narrow(both, dtype)
