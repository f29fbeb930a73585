"""Rows that programs share: each reduces a piece, the last one to end joins the pieces.

In: the accumulators of a loop over a piece of each row. Out: lines. A program leaves what its piece
comes to in memory and counts itself; who finds that all others have been there reads what they
left, in the order of the pieces, and goes on alone. So a result does not depend on who was last,
nobody waits, and one launch is enough. The counter is left at zero, as it was found.

    tl.store(b2 + (x * 64 + part), v3)
    tl.debug_barrier()
    ended = tl.atomic_add(b3 + tile, 1, sem="acq_rel")
    if ended == 63:
        tl.store(b3 + tile, 0)
        v4 = tl.load(b2 + (x * 64 + parts))
        ...
"""

from __future__ import annotations

from litz.codegen.triton.reductions import Folding
from litz.ir.expr import Expr
from litz.ir.scheduled import ScheduledKernel, Tiling, power_of_two

INDENT = "    "


class Sharing:
    """Writes what stands around the loop of a shared phase."""

    def __init__(self, scheduled: ScheduledKernel[Tiling], folding: Folding) -> None:
        self.tiling, self.folding, self.v = scheduled.choice, folding, folding.v
        self.outer = scheduled.kernel.outer
        self.arguments = len(scheduled.arguments)
        self._alone = 0  # the first line that only the last program runs

    def shares(self, number: str) -> list[str]:
        """A program's tile, and its piece of the rows in there."""
        share = self.tiling.share
        return [f"tile = {number} // {share}", f"part = {number} % {share}"]

    @property
    def start(self) -> str:
        """Where a program's piece begins."""
        return f"part * {self.tiling.piece} + "

    def joined(self, nodes: list[Expr], started: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Leave each accumulator, folded, and read what all programs left, if this is the last."""
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
        lines.append("tl.debug_barrier()")  # all of the program's threads have stored
        lines.append(f'ended = tl.atomic_add({counter}, 1, sem="acq_rel")')
        lines.append(f"if ended == {self.tiling.share - 1}:")
        self._alone = len(lines)
        lines.append(f"tl.store({counter}, 0)")
        lines.append(f"parts = {self._parts()}")
        read = {(n, k): self._read(f"b{first + number}", n, k == 1, inside)
                for number, (n, k, _) in enumerate(left)}  # fmt: skip
        return [(read[n, 0], read.get((n, 1), "")) for n in nodes]

    def _place(self, part: str) -> str:
        """Where the part of each row of the tile lies."""
        return f"{self.outer[0].attr} * {self.tiling.share} + {part}" if self.outer else part

    def _parts(self) -> str:
        numbers = f"tl.arange(0, {power_of_two(self.tiling.share)})"
        rank = self.folding.tile.rank
        return f"{numbers}[{', '.join(['None'] * (rank - 1) + [':'])}]" if rank > 1 else numbers

    def _read(self, buffer: str, node: Expr, place: bool, inside: str) -> str:
        share, tile = self.tiling.share, self.folding.tile
        masks = [inside] if inside else []
        masks += [f"(parts < {share})"] if share != power_of_two(share) else []
        mask = f", {' & '.join(masks)}, other={self.folding.nothing(node, place)}" if masks else ""
        return self.v.line(
            f"tl.load({buffer} + ({self._place('parts')}){mask})", tile.sides, False
        ).text

    def indented(self, lines: list[str]) -> list[str]:
        """The lines of the kernel: those behind the count are for the last program alone."""
        return [*lines[: self._alone], *(INDENT + line for line in lines[self._alone :])]
