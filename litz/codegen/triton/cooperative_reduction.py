"""Cooperative reduction: several programs share a row; the last one to finish combines the parts.

In: the accumulators of a loop over a part of each row. Out: lines. A program stores its partial
result in memory and increments a counter. The program that finds all others done reads their
partials, in order, and continues alone. So the result does not depend on which one was last, no
program waits, and one launch is enough. The counter is left at zero, as it was found.

    tl.store(b2 + (x * 64 + part), v3)
    tl.debug_barrier()
    ended = tl.atomic_add(b3 + tile, 1, sem="acq_rel")
    if ended == 63:
        tl.store(b3 + tile, 0)
        v4 = tl.load(b2 + (x * 64 + parts))
        ...
"""

from __future__ import annotations

from litz.codegen.triton.reductions import ReductionEmitter
from litz.ir.expr import Expr
from litz.ir.scheduled import ScheduledKernel, Tiling, power_of_two

INDENT = "    "


class CooperativeReduction:
    """Writes the lines around the loop of a shared phase."""

    def __init__(self, scheduled: ScheduledKernel[Tiling], folding: ReductionEmitter) -> None:
        self.tiling, self.folding, self.v = scheduled.choice, folding, folding.v
        self.outer = scheduled.kernel.outer
        self.arguments = len(scheduled.arguments)
        self._last_program_line = 0  # the first line that only the last program runs

    def program_lines(self, number: str) -> list[str]:
        """A program's tile, and its part of the rows in it."""
        rsplit = self.tiling.rsplit
        return [f"tile = {number} // {rsplit}", f"part = {number} % {rsplit}"]

    @property
    def start(self) -> str:
        """The beginning of a program's part."""
        return f"part * {self.tiling.rsplit_points} + "

    def combine_partials(
        self, nodes: list[Expr], started: list[tuple[str, str]]
    ) -> list[tuple[str, str]]:
        """Store each accumulator, folded; then, in the last program, read the partials of all."""
        lines = self.v.before
        names = [self.folding.folded(n, *pair) for n, pair in zip(nodes, started, strict=True)]
        left = [(n, k, name) for n, pair in zip(nodes, names, strict=True)
                for k, name in enumerate(pair) if name]  # fmt: skip
        counter = f"b{self.arguments - 1} + tile"
        first = self.arguments - 1 - len(left)
        inside = self.folding.tile.mask(self.folding.tile.outer)
        for number, (_, _, name) in enumerate(left):
            mask = f", {inside}" if inside else ""
            lines.append(f"tl.store(b{first + number} + ({self._place('part')}), {name}{mask})")
        lines.append("tl.debug_barrier()")  # all threads of the program have stored
        lines.append(f'ended = tl.atomic_add({counter}, 1, sem="acq_rel")')
        lines.append(f"if ended == {self.tiling.rsplit - 1}:")
        self._last_program_line = len(lines)
        lines.append(f"tl.store({counter}, 0)")
        lines.append(f"parts = {self._parts()}")
        read = {(n, k): self._read(f"b{first + number}", n, k == 1, inside)
                for number, (n, k, _) in enumerate(left)}  # fmt: skip
        return [(read[n, 0], read.get((n, 1), "")) for n in nodes]

    def _place(self, part: str) -> str:
        """The index of a part of each row of the tile."""
        return f"{self.outer[0].attr} * {self.tiling.rsplit} + {part}" if self.outer else part

    def _parts(self) -> str:
        numbers = f"tl.arange(0, {power_of_two(self.tiling.rsplit)})"
        rank = self.folding.tile.rank
        return f"{numbers}[{', '.join(['None'] * (rank - 1) + [':'])}]" if rank > 1 else numbers

    def _read(self, buffer: str, node: Expr, place: bool, inside: str) -> str:
        rsplit, tile = self.tiling.rsplit, self.folding.tile
        masks = [inside] if inside else []
        masks += [f"(parts < {rsplit})"] if rsplit != power_of_two(rsplit) else []
        mask = f", {' & '.join(masks)}, other={self.folding.nothing(node, place)}" if masks else ""
        return self.v.line(
            f"tl.load({buffer} + ({self._place('parts')}){mask})", tile.sides, False
        ).text

    def indented(self, lines: list[str]) -> list[str]:
        """The lines of the kernel, with those after the counter under the last program's `if`."""
        return [
            *lines[: self._last_program_line],
            *(INDENT + line for line in lines[self._last_program_line :]),
        ]
