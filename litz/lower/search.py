"""Binary search in sorted rows: bucketize and searchsorted.

In: sorted boundaries and the values to place. Out: a loop that halves an interval as often as its
row can be halved; each step reads at the position that the step before found. The steps are
eager's, so unsorted rows and NaNs give eager's result as well. Example, over one boundary:
`y[i0] = where(~(edges[0] >= x[i0]), 1, 0)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from litz.ir.aten import dtype_of
from litz.ir.expr import Expr, apply, cast, integer
from litz.ir.index import ONE, ZERO
from litz.lower.pointwise import promoted
from litz.lower.registry import FallbackToAten, rule
from litz.lower.runtime_checks import IndexCheck, checked_index
from litz.lower.values import Lowering, Value, View, element, widen


def _search(size: int, goes_right: Callable[[Expr, Expr], Expr]) -> Expr:
    """The position found in a row of `size`; `goes_right(at, open)` compares where it is open."""
    start, end = ZERO, integer(size)
    for _ in range(size.bit_length()):
        is_open = apply("lt", start, end)
        middle = apply("add", start, apply("shr", apply("sub", end, start), ONE))
        right = apply("and", is_open, goes_right(middle, is_open))
        # In an empty interval the middle is the end: assigning it changes nothing.
        start, end = (
            apply("where", right, apply("add", middle, ONE), start),
            apply("where", right, end, middle),
        )
    return start


def _lower_search(
    low: Lowering, like: torch.Tensor, edges: View, x: Value, side: str, sorter: View | None
) -> View:
    dtype = promoted(edges, x)
    size = edges.shape[-1] if edges.shape else ONE
    if dtype.kind not in "fiu":
        raise FallbackToAten("a type that is not generated")
    compare = "gt" if side == "right" else "ge"

    def value(p: tuple[Expr, ...]) -> Expr:
        wanted = element(x, p, dtype)
        row = p[:-1] if len(edges.shape) > 1 else ()

        def goes_right(middle: Expr, is_open: Expr) -> Expr:
            at = middle
            if sorter is not None:
                found = sorter.at((*row, middle), is_open)
                at = checked_index(low, found, size, IndexCheck(-1, kind="gather"))
            there = widen(cast(edges.at((*row, at), is_open), dtype), dtype)
            return apply("not", apply(compare, there, wanted))

        return cast(_search(size.number, goes_right), dtype_of(like.dtype))

    return low.pointwise(like, value)


@rule("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(
    low: Lowering, like: torch.Tensor, x: Value, edges: View, *, right: bool = False, **_: Any
) -> View:
    return _lower_search(low, like, edges, x, "right" if right else "left", None)


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def _search_sorted(
    low: Lowering, like: torch.Tensor, edges: View, x: Value, *, right: bool = False,
    side: str | None = None, sorter: View | None = None, **_: Any,
) -> View:  # fmt: skip
    chosen = side if side is not None else "right" if right else "left"
    return _lower_search(low, like, edges, x, chosen, sorter)
