"""Rows on a GPU: those that begin unaligned, and those that several programs may share.

In: a flat `Kernel` with one row axis. Out: `UnalignedRow`: the row axis, the offset at which rows
begin, and how many elements 16 bytes hold. None if all rows are aligned, or if elements are so wide
that alignment does not matter. Example: rows of 50257 bf16 numbers begin at `x * 50257`, in steps
of 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.expr import Expr, integer, walk
from litz.ir.index import coefficient, modulo
from litz.ir.program import Kernel, Phase, exprs_of, loads, reductions_of

# The bytes of the widest access of a thread, and of the widest elements that gain by it: with
# elements of four bytes, a warp fills its cache lines anyway.
WIDEST = 16
NARROW = 2


@dataclass(frozen=True)
class UnalignedRow:
    """Rows along `row` begin at offset `at`; `step` elements are one access of the widest kind."""

    row: Expr
    at: Expr
    step: int


def unaligned_row(kernel: Kernel) -> UnalignedRow | None:
    """The first access of narrow elements that may be unaligned. None if the kernel scans or
    scatters: such code needs lanes that begin with the row."""
    rows = {a for p in kernel.phases for a in p.inner}
    if len(rows) != 1 or any(n.op == "scan" for n in walk(*exprs_of(kernel))):
        return None
    if any(s.scatters for s in kernel.stores):
        return None
    (row,) = rows
    if not row.extent.is_const:
        return None
    stores = [(s.buffer, s.index[0]) for p in kernel.phases for s in p.inside]
    plain = [n for n in loads(*exprs_of(kernel)) if n.guard is None]
    accesses = [(n.buffer, n.index[0]) for n in plain] + stores
    found: list[tuple[int, Expr]] = []
    for buffer, index in accesses:
        steps = coefficient(index, row)
        if steps is None or not steps[0].is_const or steps[0].number != 1:
            continue
        if buffer.dtype.bytes <= NARROW and buffer not in kernel.scratch:
            found.append((buffer.dtype.bytes, steps[1]))
    step = WIDEST // min((size for size, _ in found), default=WIDEST)
    for _, at in found:
        rest = modulo(at, integer(step))
        known = at.op in ("axis", "add", "mul", "floordiv", "mod", "const")
        if known and not (rest.is_const and not rest.number) and at.axes <= set(kernel.outer):
            return UnalignedRow(row, at, step)
    return None


def cooperative_phase(kernel: Kernel) -> Phase | None:
    """The phase that a cooperative reduction may split between programs: a reduction whose points
    do not depend on each other, in a kernel whose other phases only use its results."""
    first, *rest = kernel.phases
    if not first.inner or any(p.inner for p in rest) or not reductions_of(first):
        return None
    nodes = walk(*(e for s in first.stores for e in (s.value, *s.index)))
    if any(n.op == "scan" for n in nodes) or any(s.scatters for s in kernel.stores):
        return None
    return first
