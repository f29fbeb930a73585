"""The tile of a kernel: which axes are its sides, and how their numbers and masks are spelled.

In: a `Tiling` and the axes of a kernel. Out: texts. An outer axis of which a program takes one
point is a plain number and no side; the row, where a kernel has rows, is the last side. Example:
rows of 100 points, four at a time: `x` has shape [4, 1], `r` has [1, 128] and the mask `r_in`.
"""

from __future__ import annotations

from litz.ir.expr import Expr
from litz.ir.program import Kernel
from litz.ir.scheduled import Tiling

Sides = frozenset[Expr]
NONE: Sides = frozenset()


class Tile:
    """Shapes and masks. `row` is the row axis of the phase at hand, if it has one that runs in a
    block; a phase that takes its points one by one has none."""

    def __init__(self, kernel: Kernel, tiling: Tiling) -> None:
        self.kernel, self.tiling = kernel, tiling
        pairs = list(zip(kernel.outer, tiling.blocks, strict=True))
        self.blocks = {a: block for a, block in pairs if block > 1}
        self.has_rows = not tiling.depth and any(p.inner for p in kernel.phases)
        self.row: Expr | None = None

    @property
    def rank(self) -> int:
        return len(self.blocks) + self.has_rows

    @property
    def outer(self) -> Sides:
        """The sides that are outer axes."""
        return frozenset(self.blocks)

    @property
    def sides(self) -> Sides:
        """All sides of the phase at hand."""
        return self.outer if self.row is None else self.outer | {self.row}

    def shape(self, sides: Sides) -> str:
        """The shape of a value that differs along some sides."""
        lengths = [n if a in sides else 1 for a, n in self.blocks.items()]
        if self.has_rows:
            row = self.row
            lengths.append(self.tiling.block(row) if row is not None and row in sides else 1)
        return str(lengths)

    def numbers(self, axis: Expr, block: int) -> str:
        """The numbers 0 to block - 1 along a side."""
        position = self.rank - 1 if axis not in self.blocks else list(self.blocks).index(axis)
        text = f"tl.arange(0, {block})" + (".to(tl.int64)" if self.tiling.wide else "")
        if self.rank == 1:
            return text
        places = [":" if k == position else "None" for k in range(self.rank)]
        return f"{text}[{', '.join(places)}]"

    def is_masked(self, axis: Expr) -> bool:
        """Whether the last block of a side is not full."""
        block = self.blocks.get(axis) or self.tiling.block(axis)
        return axis.extent.number % block != 0

    def mask(self, sides: Sides, *more: str) -> str:
        """What is inside along some sides, and where `more` holds; empty if all is."""
        ordered = [*self.blocks, *([self.row] if self.row is not None else [])]
        parts = [f"{a.attr}_in" for a in ordered if a in sides and self.is_masked(a)]
        return " & ".join([*parts, *more])
