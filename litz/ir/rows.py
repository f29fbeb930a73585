"""Rows on a GPU: those that begin at odd places, and those that programs may share.

In: a flat `Kernel` with one row axis. Out: the row, where it begins, and how many of its elements
lie in 16 bytes; None if wide accesses reach its rows as they are, or if elements are wide enough
not to care. Example: rows of 50257 bf16 numbers begin at `x * 50257`, and 8 of them are a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.expr import Expr, integer, walk
from litz.ir.index import coefficient, modulo
from litz.ir.program import Kernel, Phase, exprs_of, loads, reductions_of

# The widest access of a thread, and the widest elements that gain by it: of four bytes each, a warp
# fills its cache lines without.
WIDEST = 16
NARROW = 2


@dataclass(frozen=True)
class OddRow:
    """Rows along `row` begin at `at`; `step` elements are as wide as an access can be."""

    row: Expr
    at: Expr
    step: int


def odd_row(kernel: Kernel) -> OddRow | None:
    """The first place of narrow elements that is not surely aligned. Scans and scattered stores
    count on lanes that begin with the row."""
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
            return OddRow(row, at, step)
    return None


def shared_phase(kernel: Kernel) -> Phase | None:
    """The phase whose points several programs could share, if all others only need its results: a
    reduction whose points do not depend on each other."""
    first, *rest = kernel.phases
    if not first.inner or any(p.inner for p in rest) or not reductions_of(first):
        return None
    nodes = walk(*(e for s in first.stores for e in (s.value, *s.index)))
    if any(n.op == "scan" for n in nodes) or any(s.scatters for s in kernel.stores):
        return None
    return first
