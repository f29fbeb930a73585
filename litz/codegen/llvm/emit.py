"""The emitter: a scheduled kernel becomes one LLVM function.

In: `ScheduledKernel`. Out: LLVM IR text of `void @name(ptr args, i64 begin, i64 end)`, which runs
the tasks begin..end-1. `args` holds one pointer a buffer and, last, the error flag. A task is a
point of the outer axes (a chunk of the vector axis counts as one); inside it the phases run in
order.

    for task in begin..end:            outer axes from the task's number
        for each phase:                inner axes, the last in lanes, the tail masked
            values, then stores;  reductions are finished behind the loop
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from litz.codegen.llvm.builder import Builder, Type, Value
from litz.codegen.llvm.ops import stored_type
from litz.codegen.llvm.reductions import Reduction
from litz.codegen.llvm.scans import Scan
from litz.codegen.llvm.scope import I64, Scope, Scopes
from litz.codegen.llvm.tiles import Tile, crosses
from litz.codegen.llvm.values import Values
from litz.ir.expr import Expr, apply, cast, load, narrow, walk
from litz.ir.program import Phase, Store, loads, read, written
from litz.ir.scheduled import ScheduledKernel

POINTER = Type("ptr", 1)
# Turns of a loop after which its sums are put aside.
TURNS = 128


class KernelEmitter:
    """Writes one kernel."""

    def __init__(self, scheduled: ScheduledKernel, name: str) -> None:
        self.scheduled, self.kernel, self.name = scheduled, scheduled.kernel, name
        self.choice = scheduled.choice
        self.b = Builder(self.choice.lanes, "f32")
        self.b.lines.append("entry:")
        self.scopes = Scopes(self.b)
        self.values = Values(self.b, self.scopes, self.choice.lanes)
        self.values.memory.asserts = self.choice.asserts
        self.values.memory.past = self.choice.past
        self.values.memory.written = {s.buffer for p in self.kernel.phases for s in p.stores}
        self.tiles: list[Tile] = []
        # Of the axis that tiles run across: the first step, how many, and which are inside.
        self.block: tuple[Value, Value, Value | None]

    def emit(self) -> str:
        """The whole function."""
        self._arguments()
        begin, end = Value("%begin", I64), Value("%end", I64)
        task = self.scopes.open_loop(begin, end, 1)
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
            self._rows_in_lanes()
        else:
            self._lanes_of_rows(task)

    # -- arguments and scratch ---------------------------------------------------------------

    def _arguments(self) -> None:
        b, values = self.b, self.values
        flat = {buffer.name: buffer for buffer in (*written(self.kernel), *read(self.kernel))}
        for k in range(len(self.scheduled.arguments)):
            if f"b{k}" in flat:  # what is read at a stride of zero alone is gone
                values.memory.pointers[flat[f"b{k}"]] = self._argument(k)
        copies = self.choice.lanes if self.choice.vector is not None else 1
        for row in self.kernel.scratch:
            kind = stored_type(row.dtype, 1)
            count = row.shape[0].number * copies
            # A row stays within a cache line's alignment, so that whole vectors load in one.
            values.memory.pointers[row] = b.emit(f"alloca [{count} x {kind}], align 64", POINTER)
            values.memory.local[row] = copies
        values.errors = b.emit("alloca i32", POINTER)
        b.lines.append(f"  store i32 0, {values.errors}")
        values.memory.safe = b.emit("alloca i64, align 8", POINTER)
        b.lines.append(f"  store i64 0, {values.memory.safe}")

    def _argument(self, k: int) -> Value:
        slot = self.b.emit(f"getelementptr ptr, ptr %args, i64 {k}", POINTER)
        return self.b.emit(f"load ptr, {slot}", POINTER)

    def _report_errors(self) -> None:
        """One store behind all tasks, and only if something was wrong."""
        b = self.b
        assert self.values.errors is not None
        noted = b.emit(f"load i32, {self.values.errors}", Type("i32", 1))
        self.scopes.open_if(b.compare("ne", noted, 0))
        flag = self._argument(len(self.scheduled.arguments))
        b.lines.append(f"  store {noted}, {flag}")
        self.scopes.close()
        b.lines.append("  ret void")

    # -- outer axes --------------------------------------------------------------------------

    def _bind_tasks(self, task: Value) -> dict[Expr, Value]:
        """Read the outer axes off the task's number, the last one fastest. Of an axis that a task
        takes several points of, that gives the first one."""
        b, level = self.b, self.scopes.depth
        left, first = task, {}
        for k, a in enumerate(reversed(self.kernel.outer)):
            step = self.choice.step(a)
            n = -(-a.extent.number // step)
            last = k == len(self.kernel.outer) - 1
            digit = left if last else self._digit(left, n)
            left = left if last or n == 1 else b.emit(f"udiv {left}, {n}", I64)
            if a is self.choice.vector or a is self.choice.across:
                first[a] = b.mul(digit, step)
            else:
                self.values.axis_level[a] = level
                self.scopes.bind(level, a, digit)
        return first

    def _digit(self, number: Value, n: int) -> Value:
        return self.b.emit(f"urem {number}, {n}", I64) if n > 1 else self.b.constant(0, I64)

    def _lanes_of_rows(self, task: Value) -> None:
        """The vector axis is an outer one: each lane is a row of its own."""
        vector, chunk, lanes = self.choice.vector, self.choice.chunk, self.choice.lanes
        assert vector is not None
        n = vector.extent.number
        first = self._bind_tasks(task)
        b, start = self.b, first[vector]
        if self.choice.across is not None:
            self._start_tiles(vector, self.choice.across, first[self.choice.across])
        stop = b.intrinsic("smin", b.add(start, chunk), n)
        self.values.axis_level[vector] = self.values.row_level = self.scopes.depth + 1
        base = self.scopes.open_loop(start, stop, lanes, whole_steps=True)
        self._lane_group(vector, base, None)
        self.scopes.close()
        if n % lanes:  # a chunk is whole vectors, but for the last one
            whole = b.emit(f"and {b.sub(stop, start)}, {-lanes}", I64)
            rest = b.add(start, whole)
            self.scopes.open_if(b.compare("slt", rest, stop))
            self._lane_group(vector, rest, n % lanes)
            self.scopes.close()

    def _start_tiles(self, vector: Expr, across: Expr, first: Value) -> None:
        """The loads that are read by rows, and the block of `across` that this task takes."""
        b, lanes = self.b, self.choice.lanes
        found = [n for s in self.kernel.phases[0].stores for n in loads(s.value)]
        written = self.values.memory.written
        crossing = [n for n in dict.fromkeys(found) if crosses(n, vector, across, written)]
        self.tiles = [Tile(self.values, n, vector, across) for n in crossing]
        self.block = first, b.constant(lanes, I64), None
        if across.extent.number % lanes:
            left = b.sub(b.constant(across.extent.number, I64), first)
            inside = b.compare("slt", self.values.iota(1), self.values.spread(left))
            self.block = first, b.intrinsic("smin", left, lanes), inside

    def _lane_group(self, vector: Expr, base: Value, tail: int | None) -> None:
        self.values.set_vector(vector, base, tail)
        if self.choice.across is None:
            for phase in self.kernel.phases:
                self._phase(phase, in_lanes=False)
        else:
            self._across(self.choice.across, base, tail)

    def _across(self, across: Expr, base: Value, tail: int | None) -> None:
        """Transpose what the block needs, then take its steps one by one."""
        first, count, inside = self.block
        for tile in self.tiles:
            tile.fill(base, tail, first, inside)
        number = self.scopes.open_loop(self._number(0), count, 1)
        level = self.values.axis_level[across] = self.scopes.depth
        self.scopes.bind(level, across, self.b.add(first, number))
        for tile in self.tiles:
            self.scopes.bind(level, tile.node, tile.step(number))
        self._stores(list(self.kernel.phases[0].stores))
        self.scopes.close()

    def _rows_in_lanes(self) -> None:
        for phase in self.kernel.phases:
            self._phase(phase, in_lanes=True)

    # -- phases ------------------------------------------------------------------------------

    def _phase(self, phase: Phase, in_lanes: bool) -> None:
        """The loop nest of a phase, then what its reductions complete."""
        scans = [n for s in phase.stores for n in walk(s.value) if n.op == "scan"]
        alone = scans or not phase.inner or any(s.scatters for s in phase.stores)
        lanes = 1 if in_lanes and alone else self.choice.lanes
        saved, self.values.lanes = self.values.lanes, lanes
        reduces = list(
            dict.fromkeys(n for s in phase.stores for n in walk(s.value) if n.op == "reduce")
        )
        unroll = self._unroll(phase, lanes) if in_lanes and reduces else 1
        turns = math.prod(a.extent.number for a in phase.inner) // (
            unroll * lanes if in_lanes else 1
        )
        reductions = [Reduction(self.values, n, unroll, lanes, turns > TURNS) for n in reduces]
        for reduction in reductions:
            reduction.start()
        self._start_scans(scans, lanes)
        step = lanes * unroll if in_lanes else 1
        nest = _Nest(reductions, list(phase.inside), unroll, in_lanes, *_aside(phase.inner, step))
        self._nest(nest, list(phase.inner))
        if in_lanes:
            self.values.set_vector(None, None, None)
        for reduction in reductions:
            folded = reduction.finish(fold_lanes=in_lanes)
            self.scopes.bind(self.scopes.depth, reduction.node, folded)
        self._stores(list(phase.completing))
        self.values.lanes = saved

    def _unroll(self, phase: Phase, lanes: int) -> int:
        n = phase.inner[-1].extent.number
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
            self._body(nest.reductions, nest.inside, 0)
            return
        variable, *rest = axes
        n = variable.extent.number
        if nest.in_lanes and not rest and self.values.lanes > 1:
            self._in_lanes(nest, variable, n)
            return
        with self._turns(nest, variable, 0, n, 1) as counter:
            self.values.axis_level[variable] = self.scopes.depth
            self.scopes.bind(self.scopes.depth, variable, counter)
            self._nest(nest, rest)

    @contextmanager
    def _turns(
        self, nest: _Nest, variable: Expr, start: int, stop: int, step: int
    ) -> Iterator[Value]:
        """A loop. Its sums are put aside every so many turns: a number is then added to others of
        its size, and a long sum loses no more to rounding than a few short ones."""
        long = [r for r in nest.reductions if r.gathers and variable is nest.aside]
        if not long:
            yield self.scopes.open_loop(self._number(start), self._number(stop), step)
            self.scopes.close()
            return
        far = step * nest.every
        block = self.scopes.open_loop(self._number(start), self._number(stop), far)
        end = self.b.intrinsic("smin", self.b.add(block, far), stop)
        yield self.scopes.open_loop(block, end, step)
        self.scopes.close()
        for reduction in long:
            reduction.put_aside()
        self.scopes.close()

    def _in_lanes(self, nest: _Nest, variable: Expr, n: int) -> None:
        """Whole groups of vectors, whole vectors, then one masked vector."""
        lanes, given = self.values.lanes, (nest.reductions, nest.inside)
        grouped = n - n % (lanes * nest.unroll)
        whole = n - n % lanes
        for start, stop, copies in ((0, grouped, nest.unroll), (grouped, whole, 1)):
            if start < stop:
                with self._turns(nest, variable, start, stop, lanes * copies) as base:
                    for copy in range(copies):
                        first = self.b.add(base, copy * lanes) if copy else base
                        self._copy(variable, first, None, *given, copy)
        if whole < n:
            self._copy(variable, self._number(whole), n - whole, *given, 0)

    def _copy(
        self, variable: Expr, first: Value, tail: int | None, reductions: list[Reduction],
        inside: list[Store], copy: int,
    ) -> None:  # fmt: skip
        """One copy of the body: the same lines go on, but what it computes is its own."""
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
        """All values first: a buffer may have taken the place of one that is read here."""
        computed = [self._combined(s) for s in stores]
        for store, value in zip(stores, computed, strict=True):
            self.values.memory.store(store.buffer, store.index[0], value, store.value.dtype)

    def _combined(self, store: Store) -> Value:
        """What a store writes. What is there changes from point to point: it is read at each one,
        though neither its place nor the value may depend on the loops around it."""
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

    def _number(self, value: int) -> Value:
        return self.b.constant(value, I64)


@dataclass(frozen=True)
class _Nest:
    """What the loops of a phase run, and the axis after so many turns of which sums go aside."""

    reductions: list[Reduction]
    inside: list[Store]
    unroll: int
    in_lanes: bool
    aside: Expr | None
    every: int


def _aside(axes: tuple[Expr, ...], step: int) -> tuple[Expr | None, int]:
    """The axis whose turns hold about as many additions as a sum may take at once."""
    inside = 1
    for variable in reversed(axes):
        turns = -(-variable.extent.number // step)
        if inside * turns > TURNS:
            return variable, max(TURNS // inside, 1)
        inside, step = inside * turns, 1
    return (axes[0] if axes else None), TURNS


def _update(store: Store) -> Expr:
    """The value combined with what is there."""
    dtype = store.buffer.dtype
    there = cast(load(store.buffer, store.index), dtype.compute)
    both = apply(store.mode, there, cast(store.value, dtype.compute))
    return narrow(both, dtype)
