"""Matrix products in the loop IR: which reductions are one, and which axes are its rows.

In: a stored value. Out: `Product`, or None. Nothing marks a product but its form, a sum over one
axis of a[rows, k] * b[k, columns]; so what a user spells by hand is one as well. Example: of
`sum over r0 of x[i0, r0] * w[r0, i1]` the rows are (i0,), the columns (i1,).
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.ir.expr import Expr, walk
from litz.ir.program import Kernel, Loop


@dataclass(frozen=True)
class Product:
    """`node` is the reduction over `depth` of `left` (over rows) times `right` (over columns)."""

    node: Expr
    left: Expr
    right: Expr
    depth: Expr
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]


def product_in(value: Expr, axes: tuple[Expr, ...]) -> Product | None:
    """The product that a value is, over these parallel axes in order."""
    if value.op != "reduce" or value.attr[0] != "sum" or len(value.attr[1]) != 1:
        return None
    (term,), (depth,) = value.args, value.attr[1]
    if term.op != "mul" or not term.dtype.is_float or term.dtype.is_half:
        return None
    for left, right in (term.args, term.args[::-1]):
        if not all(n.op == "load" and depth in n.axes for n in (left, right)):
            return None
        rows = tuple(a for a in axes if a not in right.axes)
        columns = tuple(a for a in axes if a in right.axes)
        apart = not any(a in left.axes for a in columns)
        if apart and columns and (*rows, *columns) == axes and left.guard is right.guard is None:
            return Product(value, left, right, depth, rows, columns)
    return None


def loop_product(loop: Loop) -> Product | None:
    """The product that a loop stores."""
    (store,) = loop.stores
    return product_in(store.value, loop.axes)


def kernel_product(kernel: Kernel) -> Product | None:
    """The one product of a kernel, if what follows it works on its elements one by one."""
    first, *rest = kernel.phases
    if not first.is_reduction or first.inside or any(p.inner for p in rest):
        return None
    nodes = {n for s in first.stores for n in walk(s.value) if n.op == "reduce"}
    if len(nodes) != 1 or any(s.scatters for s in kernel.stores):
        return None
    return product_in(nodes.pop(), kernel.outer)
