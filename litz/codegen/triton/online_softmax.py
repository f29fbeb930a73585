"""Online softmax: the maximum of a row in blocks and its sum of exponentials, in one loop.

In: a phase that finds the maximum of f along a row, and the next one, which sums exp(f - shift),
with a shift that comes from that maximum. Out: `OnlineSum`s. The first loop keeps for each lane its
maximum so far and the sum of exponentials relative to it. After the loop, the lanes' sums are
rescaled to one shift. So the row is read once less. An element still costs one exponential: of its
distance to the maximum so far.

    d = exp(-|f - top|);  total = total * d + 1 if f > top else total + d;  top = max(top, f)
    sum of exp(f - shift) = sum over lanes of total * exp(top - shift)
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.expr import Expr
from litz.ir.program import Phase, reductions_of


@dataclass(frozen=True)
class OnlineSum:
    """`summed` is the sum of exp(f - shift), `maximum` the maximum of f."""

    maximum: Expr
    summed: Expr
    shift: Expr


def online_sums(first: Phase, second: Phase | None) -> list[OnlineSum]:
    """One for each sum of the second phase, if the loop of the first can compute all of them."""
    if second is None or first.inner != second.inner or second.inside:
        return []
    highest = {n.args[0]: n for n in reductions_of(first) if n.attr[0] == "max"}
    found = [_online_sum(n, highest, second.inner[0]) for n in reductions_of(second)]
    return [f for f in found if f is not None] if None not in found else []


def _online_sum(node: Expr, highest: dict[Expr, Expr], row: Expr) -> OnlineSum | None:
    below = node.args[0]
    if node.attr[0] != "sum" or below.op != "exp" or below.args[0].op != "sub":
        return None
    values, shift = below.args[0].args
    if values not in highest or row in shift.axes:
        return None
    return OnlineSum(highest[values], node, shift)
