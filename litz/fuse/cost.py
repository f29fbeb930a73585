"""The cost of computing a value, in float additions.

In: an expression. Out: a number, from the table of ops; an op that depends on no axis costs
nothing, since it is computed once. Example: the most expensive op of `exp(x[i0]) + 1.0` is `exp`,
which costs 10.
"""

from __future__ import annotations

from litz.ir.expr import Expr, walk
from litz.ir.ops import OPS

# An op of this cost is not computed twice, and fills the pipelines by itself.
EXPENSIVE_OP = 10


def max_op_cost(value: Expr) -> int:
    """The cost of its most expensive op."""
    return max((OPS[n.op].cost for n in walk(value) if n.op in OPS), default=0)


def cost_of(value: Expr, a_load: int = 0) -> int:
    """The cost of all its ops, and `a_load` for each of its loads."""
    nodes = [n for n in walk(value) if n.axes]
    ops = sum(OPS[n.op].cost for n in nodes if n.op in OPS)
    return ops + a_load * sum(n.op == "load" for n in nodes)
