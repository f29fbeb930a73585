"""What computing a value costs, in float additions.

In: an expression. Out: a number, from the table of ops; what depends on no axis costs nothing, as
it is computed once. Example: of `exp(x[i0]) + 1.0` the dearest op is `exp`, which costs 10.
"""

from __future__ import annotations

from litz.ir.expr import Expr, walk
from litz.ir.ops import OPS

# An op of this cost is not done twice, and fills the pipes by itself.
HEAVY = 10


def heaviest(value: Expr) -> int:
    """Of its dearest op."""
    return max((OPS[n.op].cost for n in walk(value) if n.op in OPS), default=0)


def cost_of(value: Expr, a_load: int = 0) -> int:
    """Of all its ops, and of its loads as many times what one of them costs."""
    nodes = [n for n in walk(value) if n.axes]
    ops = sum(OPS[n.op].cost for n in nodes if n.op in OPS)
    return ops + a_load * sum(n.op == "load" for n in nodes)
