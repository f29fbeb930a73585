"""The emitter: a scheduled kernel becomes one Triton function.

In: `ScheduledKernel` with a `Tiling`. Out: Python text. A program computes its outer points from
its number. Then the phases run in order, each on the whole row if it is in registers, otherwise in
a loop over blocks of it.

    @triton.jit
    def litz_0_softmax(b0, b1):
        x = tl.program_id(0)
        r = tl.arange(0, 128)
        r_in = r < 100
        v0 = tl.load(b1 + (x * 100) + r, r_in, other=0)
        ...
"""

from __future__ import annotations

from dataclasses import replace

from litz.codegen.triton.aligned_rows import AlignedRow
from litz.codegen.triton.block_pointers import access_of, stored
from litz.codegen.triton.cooperative_reduction import CooperativeReduction
from litz.codegen.triton.gemm import DESCRIPTOR_BYTES, MmaGemmEmitter
from litz.codegen.triton.online_softmax import OnlineSum, online_sums
from litz.codegen.triton.ops import apply_template, converted
from litz.codegen.triton.reductions import ReductionEmitter
from litz.codegen.triton.tiles import Tile
from litz.codegen.triton.values import Text, Values, size_name
from litz.ir.expr import Expr
from litz.ir.expr import axis as new_axis
from litz.ir.gpu_rows import unaligned_row
from litz.ir.program import Phase, Store, reductions_of
from litz.ir.scheduled import ScheduledKernel, Tiling
from litz.ir.sizes import ceil_div
from litz.ir.verify import Place

INDENT = "    "


class KernelEmitter:
    """Writes one kernel."""

    def __init__(self, scheduled: ScheduledKernel[Tiling], name: str) -> None:
        self.scheduled, self.kernel, self.name = scheduled, scheduled.kernel, name
        self.tiling = scheduled.choice
        self.tile = Tile(self.kernel, self.tiling)
        self.values = Values(self.kernel, self.tile)
        self.folding = ReductionEmitter(self.values)
        self.row: Expr | None = None  # the row whose points `r` holds
        given = (self.values, self.kernel, self.tile, self.tiling)
        self.gemm = MmaGemmEmitter(*given) if self.tiling.depth else None
        self.cooperative_reduction = (
            CooperativeReduction(self.scheduled, self.folding) if self.tiling.rsplit > 1 else None
        )
        self.online_sums: list[OnlineSum] = []  # of the last loop
        self.emitted: set[Place] = set()  # the stores written so far
        self.kinds: dict[str, str] = {}  # what a row's name holds: a number or a vector

    @property
    def parameters(self) -> list[str]:
        """The names of the arguments: buffers, the error flag if an index is checked, sizes."""
        names = [f"b{k}" for k in range(len(self.scheduled.arguments))]
        names += ["error"] if self.values.checks else []
        return [*names, *map(size_name, self.scheduled.sizes)]

    @property
    def scratch(self) -> int:
        """Bytes of private memory that each program needs."""
        return DESCRIPTOR_BYTES * len(self.tiling.descriptors)

    def emit(self) -> str:
        """The function, below a comment that names the nodes it serves."""
        self._outer_axes()
        for k, phase in enumerate(self.kernel.phases):
            rows = (p for p in self.kernel.phases[k + 1 :] if p.inner)
            self._phase(phase, next(rows, None))
        origins = dict.fromkeys(str(o) for o in self.kernel.origins)
        comments = [f"# {origin}" for origin in origins]
        head = f"def {self.name}({', '.join(self.parameters)}):"
        lines = self.values.before
        lines = lines if self.gemm is None else self.gemm.persistent_loop(lines)
        if self.cooperative_reduction is not None:
            lines = self.cooperative_reduction.indented(lines)
        body = [INDENT + line for line in lines]
        return "\n".join([*comments, "@triton.jit", head, *body, ""])

    def _outer_axes(self) -> None:
        """Compute the outer axes from the program's number, the last one fastest."""
        if self.gemm is not None:
            lines, tiles = self.gemm.grouped_tile_order()
        else:
            lines, tiles = [], self._tile_numbers()
        for axis, block in zip(self.kernel.outer, self.tiling.blocks, strict=True):
            number = tiles[axis]
            start = number if block == 1 else f"({number}) * {block}"
            if self.gemm is not None and block > 1:
                start = f"{axis.attr}_at"
            numbers = f" + {self.tile.numbers(axis, block)}" if block > 1 else ""
            if block > 1 and self.tiling.block_pointers:
                lines.append(f"{axis.attr}_at = {start}")
                self.tile.starts[axis] = start = f"{axis.attr}_at"
            lines.append(f"{axis.attr} = {start}{numbers}")
            if block > 1 and self.tile.is_masked(axis):
                lines.append(f"{axis.attr}_in = {axis.attr} < {self.values.count(axis.extent)}")
        self.values.before += lines

    def _tile_numbers(self) -> dict[Expr, str]:
        """The number of a program's tile along each axis."""
        left = "tl.program_id(0)" + (".to(tl.int64)" if self.tiling.wide else "")
        if self.cooperative_reduction is not None:
            self.values.before += self.cooperative_reduction.program_lines(left)
            left = "tile"
        numbers: dict[Expr, str] = {}
        for axis, block in reversed(list(zip(self.kernel.outer, self.tiling.blocks, strict=True))):
            numbers[axis] = left
            if axis is not self.kernel.outer[0]:
                count = self.values.count(ceil_div(axis.extent, block))
                numbers[axis], left = f"{left} % {count}", f"{left} // {count}"
        return numbers

    # -- phases ------------------------------------------------------------------------------

    def _phase(self, phase: Phase, following: Phase | None) -> None:
        self.values.in_phase = {}
        if any(self.values.reads_written(e) for s in phase.stores for e in (s.value, *s.index)):
            self.values.before.append("tl.debug_barrier()")  # this program reads its own stores
        if not phase.inner:
            self._stores(phase.stores)
            return
        if self.gemm is not None:
            self.gemm.mainloop()
            self._stores(phase.completing)
            return
        (row,) = phase.inner
        scattered = tuple(s for s in phase.stores if s.scatters)
        if self.tiling.ordered and scattered:
            self._one_by_one(replace(phase, stores=scattered), row)
            beside = tuple(s for s in phase.stores if not s.scatters)  # sums of the same row
            if beside:
                self._phase(replace(phase, stores=beside), following)
            return
        self.tile.row = row
        if row.extent.is_const and row.extent.number <= self.tiling.block(row):
            self._whole(phase, row)
        elif self.online_sums:  # the loop of the phase before has already computed these sums
            for online_sum in self.online_sums:
                self.folding.finish_online_sum(online_sum)
            self.online_sums = []
        else:
            self.online_sums = online_sums(phase, following) if self.tiling.online else []
            self._in_blocks(phase, row)
        self.tile.row = None
        self._stores(phase.completing)

    def _whole(self, phase: Phase, row: Expr) -> None:
        if self.row is not row:  # the phase before it had another row
            self.tile.starts.pop(row, None)
            self.tile.lanes.pop(row, None)
            self.values.before += self._row_lines(row)
            self.kinds[str(row.attr)] = "vector"
            self.tile.starts[row] = "0"
            self.row = row
        for node in reductions_of(phase):
            self.folding.whole(node)
        self._stores(phase.inside)

    def _row_lines(self, row: Expr) -> list[str]:
        """The numbers of a row's points, and the mask of those inside."""
        start, lane = self.tile.starts.get(row, ""), self.tile.lanes.get(row)
        numbers = self.tile.numbers(row, self.tiling.block(row))
        if lane is not None:
            numbers = str(lane.attr)
        if start and self.tiling.block(row) == 1:
            numbers, start = (
                f"tl.cast({start}, {'tl.int64' if self.tiling.wide else 'tl.int32'})",
                "",
            )
        lines = [f"{row.attr} = {start} + {numbers}" if start else f"{row.attr} = {numbers}"]
        inside = f"{row.attr} < {self.values.count(row.extent)}"
        if self.tile.aligned is not None:
            inside = self.tile.aligned.inside
        if self.tile.is_masked(row):
            lines.append(f"{row.attr}_in = {inside}")
        return lines

    def _in_blocks(self, phase: Phase, row: Expr) -> None:
        values, block, self.row = self.values, self.tiling.block(row), None
        nodes = reductions_of(phase)
        started = [self.folding.begin(node) for node in nodes]
        beside = [self.folding.begin_online_sum(online_sum) for online_sum in self.online_sums]
        self.tile.starts[row] = self._start(row)
        if block > 1:
            lane = self.tile.lanes[row] = new_axis(f"{row.attr}_lane", row.extent)
            values.before.append(f"{lane.attr} = {self.tile.numbers(row, block)}")
        length = (
            str(self.tiling.rsplit_points)
            if self.tiling.rsplit_points
            else values.count(row.extent)
        )
        aligned = self.tile.aligned = self._aligned(row, block)
        if aligned is not None:
            self.tile.starts[row], length = aligned.start, str(aligned.length)
            values.before += aligned.before()
        values.loop, values.lines, values.in_loop = row, self._row_lines(row), {}
        for update in beside:  # before the maximum changes
            update()
        for node, names in zip(nodes, started, strict=True):
            self.folding.update(node, *names)
        self._stores(phase.inside)
        body, values.loop, values.lines = values.lines, None, values.before
        if block > 1:
            self._becomes(row, str(self.tile.lanes[row].attr), "vector")
        else:  # unrolled, which is no loop to Triton
            self.kinds[str(row.attr)] = "number"
        values.before.append(f"for start in {self._steps(length, block)}:")
        values.before += [INDENT + line for line in body]
        self.tile.aligned = None
        if self.cooperative_reduction is not None:
            started = self.cooperative_reduction.combine_partials(nodes, started)
        for node, names in zip(nodes, started, strict=True):
            self.folding.finish(node, *names)

    def _start(self, row: Expr) -> str:
        """The first point of a loop's block. Triton counts a loop in 32 bits if its bounds are
        small: where indices need 64, the start is widened before it is multiplied."""
        if self.cooperative_reduction is not None:
            return f"{self.cooperative_reduction.start}start"
        counted = self.tiling.wide and row.extent.is_const
        return "tl.cast(start, tl.int64)" if counted else "start"

    def _aligned(self, row: Expr, block: int) -> AlignedRow | None:
        """The aligned blocks of an unaligned row, if it is the only row of its program."""
        if self.tile.rank > 1 or self.cooperative_reduction is not None or not self.tiling.aligned:
            return None
        odd = None if self.tiling.block_pointers else unaligned_row(self.kernel)
        if odd is None or block % odd.step or not self.values.is_int32(odd.at):
            return None
        return AlignedRow(odd, self.values.place(odd.at), str(self.tile.lanes[row].attr), block)

    def _steps(self, extent: str, block: int) -> str:
        """Loops over single points are unrolled; blocks are prefetched if the tiling says so."""
        if block == 1:
            return f"tl.static_range(0, {extent})"
        if self.tiling.stages == 1:
            return f"range(0, {extent}, {block})"
        return f"tl.range(0, {extent}, {block}, num_stages={self.tiling.stages})"

    def _becomes(self, row: Expr, text: str, kind: str) -> None:
        """Set a row's name before a loop, if an earlier phase left another type in it: Triton's
        loops keep the type of the names they set."""
        if self.kinds.setdefault(str(row.attr), kind) != kind:
            self.values.before.append(f"{row.attr} = {text}")
        self.kinds[str(row.attr)] = kind

    def _one_by_one(self, phase: Phase, row: Expr) -> None:
        """Points that may collide: each sees the writes of the one before it."""
        values, self.row = self.values, None
        values.loop, values.lines, values.in_loop = row, [], {}
        number = "tl.int64" if self.tiling.wide else "tl.int32"
        values.lines.append(f"{row.attr} = tl.cast(step, {number})")
        self._stores(phase.stores)
        values.lines.append("tl.debug_barrier()")
        body, values.loop, values.lines = values.lines, None, values.before
        self._becomes(row, f"tl.full((), 0, {number})", "number")
        values.before.append(f"for step in range({values.count(row.extent)}):")
        values.before += [INDENT + line for line in body]

    # -- stores ------------------------------------------------------------------------------

    def _stores(self, stores: tuple[Store, ...]) -> None:
        """All values first: a buffer may share memory with one that is read here."""
        computed = [self.values.value(s.value) for s in stores]
        for store in stores:
            self.values.value(store.index[0])
        for store, value in zip(stores, computed, strict=True):
            self.emitted.add((store.buffer, store.index[0]))
            if store.buffer in self.kernel.scratch:
                self.values.scratch[store.buffer.name] = (
                    store.index[0],
                    self._register(store, value),
                )
            elif store.scatters:
                self._scatter(store)
            else:
                self._store(store, value)

    def _register(self, store: Store, value: Text) -> Text:
        """Scratch in a register; a bare number gets its type."""
        text = self.values.tensor(store.value)
        return value if text == value.text else self.values.line(text, value.sides, False)

    def _store(self, store: Store, value: Text) -> None:
        index = store.index[0]
        self._write(store, self.values.operand(store.value), self.values.value(index).sides)
        if self.values.loop is None:
            known = Text(self.values.tensor(store.value), value.sides)
            self.values.stored[store.buffer.name, index] = known

    def _write(self, store: Store, text: str, sides: frozenset[Expr]) -> None:
        access = access_of(self.tile, store.buffer, store.index[0], sides)
        if access is not None:
            whole = self.values.broadcast(store.value, text, sides)
            base = self.values.base(store.buffer.name, access.rest)
            self.values.lines.append(stored(self.tile, access, base, whole))
            return
        aligned = self.tile.aligned
        if aligned is not None and aligned.takes(store.index[0]):
            self.values.lines += aligned.stored(store.buffer.name, text)
            return
        pointer = self.values.pointer(store.buffer.name, store.index[0], sides)
        mask = self.tile.mask(sides)
        arguments = ", ".join([pointer, text, *([mask] if mask else [])])
        self.values.lines.append(f"tl.store({arguments})")

    def _scatter(self, store: Store) -> None:
        """Every point of the tile stores, whatever its index."""
        sides, text = self.tile.sides, self.values.operand(store.value)
        kept = self.values.stored.items()
        self.values.stored = {k: v for k, v in kept if k[0] != store.buffer.name}
        if store.mode == "put":
            self._write(store, text, sides)
            return
        pointer = self.values.pointer(store.buffer.name, store.index[0], sides)
        mask = self.tile.mask(sides)
        lines = self.values.lines
        if not self.tiling.ordered:
            arguments = [pointer, text, *([mask] if mask else []), 'sem="relaxed"']
            lines.append(f"tl.atomic_add({', '.join(arguments)})")
            return
        dtype, name = store.buffer.dtype, self.values.name()
        lines.append(f"{name} = tl.load({pointer}{f', {mask}, other=0' if mask else ''})")
        there = converted(name, dtype, dtype.compute)
        new = converted(f"({text})", store.value.dtype, dtype.compute)
        both = apply_template(store.mode, dtype.compute, f"({there})", f"({new})")
        both = converted(f"({both})", dtype.compute, dtype)
        arguments = [pointer, both, *([mask] if mask else [])]
        lines.append(f"tl.store({', '.join(arguments)})")
