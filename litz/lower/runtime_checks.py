"""Runtime checks of data that eager makes in its kernels, and ours make as well.

In: an index, a divisor or a value that is loaded from memory. Out: the same, checked: if a check
fails, the call raises eager's error, with the op and line of the user's program. Example:
`checked_index(low, i, 5, IndexCheck(0, wraps=True))` is

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
from litz.lower.registry import FallbackToAten, rule
from litz.lower.values import Lowering, View, widen

# Eager's error for an op that is lowered as another one: "index" is an IndexError, "gather" a
# RuntimeError. Without an entry the error is that of the lowered op.
ERROR_KIND_OF_OP = {
    "index_copy": "index",
    "index_reduce": "index",
    "nll_loss_forward": "index",
    "nll_loss2d_forward": "index",
    "put": "index",
    "take": "index",
}


@dataclass(frozen=True)
class IndexCheck:
    """How an op uses an index: its dimension, whether a negative one counts from the end, and
    eager's error for one out of range: "index" or "gather"."""

    dim: int = -1
    wraps: bool = False
    kind: str = "index"


def require_indices(*indices: View) -> None:
    """Eager takes bytes as a mask, and refuses other types."""
    if any(index.dtype not in (I32, I64) for index in indices):
        raise FallbackToAten("a mask as index, or a type that eager does not take")


def checked_index(low: Lowering, index: Expr, extent: Expr, how: IndexCheck) -> Expr:
    """An index loaded from a tensor: a negative one counts from the end where eager allows that.

    One out of range raises eager's error. Without `assert_indirect_indexing` it is clamped instead,
    so that no memory outside the tensor is touched.
    """
    wide = _wrapped(index, extent, how)
    if low.config.assert_indirect_indexing:
        return low.check("check_index", _site(low, how), wide, extent)
    last = apply("sub", extent, const(1, I64))
    return apply("min", apply("max", wide, const(0, I64)), last)


def value_with_index_check(
    low: Lowering, value: Expr, index: Expr, extent: Expr, how: IndexCheck
) -> Expr:
    """A value that does not depend on the index to check, since the tensor has one element along
    that dimension, or the same element everywhere."""
    if not low.config.assert_indirect_indexing:
        return value
    wide = _wrapped(index, extent, how)
    inside = apply("and", apply("ge", wide, ZERO), apply("lt", wide, extent))
    return low.check("check", _site(low, how), inside, wide, extent, value)


def _wrapped(index: Expr, extent: Expr, how: IndexCheck) -> Expr:
    wide = cast(index, I64)
    if not how.wraps:
        return wide
    return apply("where", apply("lt", wide, ZERO), apply("add", wide, extent), wide)


def _site(low: Lowering, how: IndexCheck) -> Site:
    kind = ERROR_KIND_OF_OP.get(low.original_aten.split(".")[1], how.kind)
    return Site(kind, low.original_aten, low.origin.line, how.dim, how.wraps)


def checked_divisor(low: Lowering, divisor: Expr) -> Expr:
    """An integer divisor, which must not be zero; only divisors loaded from memory are checked."""
    if not low.target.eager.refuses_zero_divisors:
        return divisor
    if divisor.is_const and not divisor.attr:
        raise FallbackToAten("eager refuses to divide by zero")
    if not loads(divisor):
        return divisor
    return low.check("check_divisor", Site("divisor", low.original_aten, low.origin.line), divisor)


def checked_between(low: Lowering, value: Expr, least: float, most: float, text: str) -> Expr:
    """A float that must be between two numbers, which NaN is not; `text` is eager's message."""
    above = apply("ge", value, const(least, value.dtype))
    below = apply("le", value, const(most, value.dtype))
    site = Site("value", low.original_aten, low.origin.line, text=text)
    bits = bitcast(cast(value, F64), I64)
    return low.check("check", site, apply("and", above, below), bits, ZERO, value)


@rule("between", namespace="litz")
def _lower_between(
    low: Lowering, like: torch.Tensor, x: View, least: float, most: float, text: str
) -> View:
    if x.dtype.kind == "x":
        raise FallbackToAten("a type that is not generated")

    def value(p: tuple[Expr, ...]) -> Expr:
        return checked_between(low, widen(x.at(p), x.dtype), least, most, text)

    return low.pointwise(like, value)
