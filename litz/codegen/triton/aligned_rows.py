"""Unaligned rows, read and written at aligned addresses, so that accesses stay wide.

In: a loop over the blocks of a row whose first element is not at a multiple of 16 bytes. Out:
lines. The first block begins at the aligned address before the row. Its lanes before the row count
as outside, like those after the end. A load takes whole steps of 16 bytes, the last one to its end:
such a step never leaves the page of its first byte. A load of another buffer with wider elements
takes the row only. A store takes the steps that are entirely in the row, and in the first and the
last block the rest of the row.

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
from litz.ir.gpu_rows import WIDEST, UnalignedRow
from litz.ir.index import coefficient
from litz.ir.program import Buffer


@dataclass(frozen=True)
class AlignedRow:
    """`at` is the text of the row's first offset. The row's name is the prefix of its variables."""

    odd: UnalignedRow
    at: str
    lane: str
    block: int

    @property
    def name(self) -> str:
        return str(self.odd.row.attr)

    @property
    def length(self) -> int:
        """Lanes that a row may need."""
        return int(self.odd.row.extent.number) + self.odd.step - 1

    def before(self) -> list[str]:
        """The row's bounds, counted from the aligned address before it."""
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
        """The mask of the lanes that are points of the row."""
        return f"({self.name} >= 0) & ({self.name} < {self.odd.row.extent.number})"

    def takes(self, index: Expr) -> bool:
        """Whether an access runs along the row from its first element on."""
        found = coefficient(index, self.odd.row)
        return found is not None and found[0].is_const and found[0].number == 1 and (
            found[1] is self.odd.at
        )  # fmt: skip

    def _pointer(self, name: str) -> str:
        step = self.odd.step
        return f"{name} + (({self.at}) // {step} * {step}) + (start) + {self.lane}"

    def loaded(self, buffer: Buffer) -> str:
        mask = f"start + {self.lane} < {self.name}_near"
        if buffer.dtype.bytes * self.odd.step > WIDEST:  # a step is wider, and may leave the buffer
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
