"""Checks of data that eager makes in its kernels, and that kernels of ours make as well.

In: an index, a divisor or a value that is read from memory. Out: the same, checked: where a check
fails, the call raises what eager raises, with the op and line that the program spelled. Example:
`checked_index(low, i, 5, Index(0, wraps=True))` is

    check_index(where(i < 0, i + 5, i), 5, site("index", "aten.index.Tensor", "model.py", 0, True))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from litz.ir import between_op as between_op  # registers the op that has a rule here
from litz.ir.checks import Site
from litz.ir.dtypes import F64, I32, I64
from litz.ir.expr import Expr, apply, bitcast, cast, const
from litz.ir.index import ZERO
from litz.ir.program import loads
from litz.lower.registry import NotGenerated, rule
from litz.lower.values import Lowering, View, widen

# What eager raises for an op that is lowered as another one: an IndexError is "index", a
# RuntimeError "gather". Without an entry it is what the op raises that does the work.
AS_SPELLED = {
    "index_copy": "index",
    "index_reduce": "index",
    "nll_loss_forward": "index",
    "nll_loss2d_forward": "index",
    "put": "index",
    "take": "index",
}


@dataclass(frozen=True)
class Index:
    """What an op does with an index: along which dimension it counts, whether a negative one counts
    from the end, and what eager raises for one outside: "index" or "gather"."""

    dim: int = -1
    wraps: bool = False
    kind: str = "index"


def require_indices(*indices: View) -> None:
    """Eager takes bytes for a mask, and refuses other types."""
    if any(index.dtype not in (I32, I64) for index in indices):
        raise NotGenerated("a mask as index, or a type that eager does not take")


def checked_index(low: Lowering, index: Expr, extent: Expr, how: Index) -> Expr:
    """An index from a tensor: negative ones count from the end where eager lets them.

    One out of range raises eager's error; without that assertion it is moved to the nearest one
    that is in range, so that no memory but the tensor's is ever touched.
    """
    wide = _wrapped(index, extent, how)
    if low.config.assert_indirect_indexing:
        return low.check("check_index", _site(low, how), wide, extent)
    last = apply("sub", extent, const(1, I64))
    return apply("min", apply("max", wide, const(0, I64)), last)


def index_checked(low: Lowering, value: Expr, index: Expr, extent: Expr, how: Index) -> Expr:
    """A value that does not depend on the index which is to be checked, since the tensor has one
    element along that dimension, or the same one everywhere."""
    if not low.config.assert_indirect_indexing:
        return value
    wide = _wrapped(index, extent, how)
    inside = apply("and", apply("ge", wide, ZERO), apply("lt", wide, extent))
    return low.check("check", _site(low, how), inside, wide, extent, value)


def _wrapped(index: Expr, extent: Expr, how: Index) -> Expr:
    wide = cast(index, I64)
    if not how.wraps:
        return wide
    return apply("where", apply("lt", wide, ZERO), apply("add", wide, extent), wide)


def _site(low: Lowering, how: Index) -> Site:
    kind = AS_SPELLED.get(low.asked.split(".")[1], how.kind)
    return Site(kind, low.asked, low.origin.line, how.dim, how.wraps)


def checked_divisor(low: Lowering, divisor: Expr) -> Expr:
    """A divisor of integers, which must not be zero; of a number or a size nothing is asked."""
    if not low.target.eager.refuses_zero_divisors:
        return divisor
    if divisor.is_const and not divisor.attr:
        raise NotGenerated("eager refuses to divide by zero")
    if not loads(divisor):
        return divisor
    return low.check("check_divisor", Site("divisor", low.asked, low.origin.line), divisor)


def checked_between(low: Lowering, value: Expr, least: float, most: float, text: str) -> Expr:
    """A float that must lie between two numbers, which NaN does not; `text` is what eager says."""
    above = apply("ge", value, const(least, value.dtype))
    below = apply("le", value, const(most, value.dtype))
    site = Site("value", low.asked, low.origin.line, text=text)
    bits = bitcast(cast(value, F64), I64)
    return low.check("check", site, apply("and", above, below), bits, ZERO, value)


@rule("between", namespace="litz")
def _lower_between(
    low: Lowering, like: torch.Tensor, x: View, least: float, most: float, text: str
) -> View:
    if x.dtype.kind == "x":
        raise NotGenerated("a type that is not generated")

    def value(p: tuple[Expr, ...]) -> Expr:
        return checked_between(low, widen(x.at(p), x.dtype), least, most, text)

    return low.pointwise(like, value)
