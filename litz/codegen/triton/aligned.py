"""Rows that begin anywhere, read and written at aligned places: wide accesses in spite of that.

In: a loop over the blocks of a row whose first element lies at no multiple of 16 bytes. Out: lines.
The first block begins at the aligned place before the row; its lanes before the row count as
outside, as those behind the end do. A load takes whole steps of 16 bytes, the last one to its end:
such a step never leaves the page that its first byte is in; of wider elements, which lie beside
them, a load takes the row alone. A store takes the steps that lie in the
row as a whole, and in the first and the last block what is left of the row beside them.

    r_shift = x * 50257 % 8
    r_near = (r_shift + 50264) // 8 * 8
    for start in range(0, 50264, 4096):
        r = start - r_shift + r_lane
        v0 = tl.load(b1 + (x * 50257 // 8 * 8) + (start) + r_lane, start + r_lane < r_near, ...)
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.codegen.triton.ops import zero
from litz.ir.expr import Expr
from litz.ir.index import coefficient
from litz.ir.program import Buffer
from litz.ir.rows import WIDEST, OddRow


@dataclass(frozen=True)
class Aligned:
    """`at` is the text of the row's first place; a row's name stands before those of its own."""

    odd: OddRow
    at: str
    lane: str
    block: int

    @property
    def name(self) -> str:
        return str(self.odd.row.attr)

    @property
    def length(self) -> int:
        """Lanes that may be needed for a row."""
        return int(self.odd.row.extent.number) + self.odd.step - 1

    def before(self) -> list[str]:
        """Where the row begins and ends, counted from the aligned place before it."""
        r, step, n = self.name, self.odd.step, self.odd.row.extent.number
        return [
            f"{r}_shift = ({self.at}) % {step}",
            f"{r}_near = ({r}_shift + {n + step - 1}) // {step} * {step}",
            f"{r}_first = ({r}_shift + {step - 1}) // {step} * {step}",
            f"{r}_last = ({r}_shift + {n}) // {step} * {step}",
        ]

    @property
    def start(self) -> str:
        return f"start - {self.name}_shift"

    @property
    def inside(self) -> str:
        """Which lanes are points of the row."""
        return f"({self.name} >= 0) & ({self.name} < {self.odd.row.extent.number})"

    def takes(self, index: Expr) -> bool:
        """Whether an access is along the row from its first place on."""
        found = coefficient(index, self.odd.row)
        return found is not None and found[0].is_const and found[0].number == 1 and (
            found[1] is self.odd.at
        )  # fmt: skip

    def _pointer(self, name: str) -> str:
        step = self.odd.step
        return f"{name} + (({self.at}) // {step} * {step}) + (start) + {self.lane}"

    def loaded(self, buffer: Buffer) -> str:
        mask = f"start + {self.lane} < {self.name}_near"
        if buffer.dtype.bytes * self.odd.step > WIDEST:  # a step of it is more, and may not be ours
            mask = f"{self.name}_in"
        return f"tl.load({self._pointer(buffer.name)}, {mask}, other={zero(buffer.dtype)})"

    def stored(self, name: str, value: str) -> list[str]:
        r, here, pointer = self.name, f"start + {self.lane}", self._pointer(name)
        whole = f"({here} >= {r}_first) & ({here} < {r}_last)"
        beside = f"({r}_in & (({here} < {r}_first) | ({here} >= {r}_last)))"
        return [
            f"tl.store({pointer}, {value}, {whole})",
            f"if (start == 0) | (start + {self.block} > {r}_last):",
            f"    tl.store({pointer}, {value}, {beside})",
        ]
