"""The tile of a kernel: its sides, and the text of their numbers and masks.

In: a `Tiling` and the axes of a kernel. Out: texts. An outer axis of which a program takes one
point is a plain number, not a side. The row, if a kernel has rows, is the last side. Example: rows
of 100 points, four at a time: `x` has shape [4, 1], `r` has [1, 128] and the mask `r_in`.
"""

from __future__ import annotations

from litz.codegen.triton.aligned_rows import AlignedRow
from litz.ir.expr import Expr
from litz.ir.program import Kernel
from litz.ir.scheduled import Tiling
from litz.ir.sizes import is_multiple

Sides = frozenset[Expr]
NONE: Sides = frozenset()


class Tile:
    """Shapes and masks. `row` is the row axis of the current phase, if it runs in blocks; a phase
    that takes its points one by one has none."""

    def __init__(self, kernel: Kernel, tiling: Tiling) -> None:
        self.kernel, self.tiling = kernel, tiling
        pairs = list(zip(kernel.outer, tiling.blocks, strict=True))
        self.blocks = {a: block for a, block in pairs if block > 1}
        self.has_rows = not tiling.depth and any(p.inner for p in kernel.phases)
        self.row: Expr | None = None
        self.starts: dict[Expr, str] = {}  # the beginning of a program's block along each side
        self.aligned: AlignedRow | None = None  # set if the current loop begins at an aligned place
        self.lanes: dict[Expr, Expr] = {}  # the numbers inside a block of a row in a loop

    @property
    def ordered(self) -> list[Expr]:
        """The sides of the current phase, the row last."""
        return [*self.blocks, *([self.row] if self.row is not None else [])]

    @property
    def places(self) -> list[Expr | None]:
        """The side at each position of a value's shape; None for the row if the phase has none."""
        return [*self.blocks, *([self.row] if self.has_rows else [])]

    def length(self, side: Expr) -> int:
        """Points of a side that a program takes at a time."""
        return self.blocks.get(side) or self.tiling.block(side)

    @property
    def rank(self) -> int:
        return len(self.blocks) + self.has_rows

    @property
    def outer(self) -> Sides:
        """The sides that are outer axes."""
        return frozenset(self.blocks)

    @property
    def sides(self) -> Sides:
        """All sides of the current phase."""
        return self.outer if self.row is None else self.outer | {self.row}

    @property
    def varying(self) -> Sides:
        """The sides of more than one point; along the others the tile does not vary."""
        return frozenset(a for a in self.sides if self.length(a) > 1)

    def shape(self, sides: Sides) -> str:
        """The shape of a value that varies along some sides."""
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
        """Whether the last block of a side is partial."""
        if self.aligned is not None and axis is self.row:
            return True
        if axis not in self.blocks and self.tiling.rsplit_points:
            return axis.extent.number != self.tiling.rsplit * self.tiling.rsplit_points
        return not is_multiple(axis.extent, self.length(axis))

    def mask(self, sides: Sides, *more: str) -> str:
        """The mask of the points inside along some sides, and where `more` holds; empty if all."""
        parts = [f"{a.attr}_in" for a in self.ordered if a in sides and self.is_masked(a)]
        return " & ".join([*parts, *more])
