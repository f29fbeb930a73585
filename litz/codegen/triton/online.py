"""A maximum and the sum of exponentials below it, of a row that comes in blocks: one loop for both.

In: a phase that finds the maximum of f along a row, and the next one, which sums exp(f - shift),
where the shift comes from that maximum. Out: `Follower`s, with which the first loop keeps, beside
the highest element so far of each lane, the sum of exponentials below that one; what follows brings
the lanes to one shift. So the row is read once less. An element costs one exponential, as before:
of itself below the highest so far, or of that below itself.

    d = exp(-|f - top|);  total = total * d + 1 if f > top else total + d;  top = max(top, f)
    sum of exp(f - shift) = sum over lanes of total * exp(top - shift)
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.expr import Expr
from litz.ir.program import Phase, reductions_of


@dataclass(frozen=True)
class Follower:
    """`summed` is the sum of exp(f - shift), `most` the maximum of f."""

    most: Expr
    summed: Expr
    shift: Expr


def followers(first: Phase, second: Phase | None) -> list[Follower]:
    """One for each sum of the second phase, if all of it can be had from the loop of the first."""
    if second is None or first.inner != second.inner or second.inside:
        return []
    highest = {n.args[0]: n for n in reductions_of(first) if n.attr[0] == "max"}
    found = [_follower(n, highest, second.inner[0]) for n in reductions_of(second)]
    return [f for f in found if f is not None] if None not in found else []


def _follower(node: Expr, highest: dict[Expr, Expr], row: Expr) -> Follower | None:
    below = node.args[0]
    if node.attr[0] != "sum" or below.op != "exp" or below.args[0].op != "sub":
        return None
    values, shift = below.args[0].args
    if values not in highest or row in shift.axes:
        return None
    return Follower(highest[values], node, shift)
