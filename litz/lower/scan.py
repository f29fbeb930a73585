"""Scans: cumsum, cumprod, cummax, cummin, logcumsumexp.

In: a view and the dimension to scan. Out: one loop whose value at each position combines all
elements up to it (two loops for an extreme and its position, which fuse). Example: `cumsum(x, 1)`
becomes `loop i0 < 8, i1 < 100: t0[i0, i1] = scan.sum(x[i0, i1], i1)`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from litz.ir.aten import dtype_of
from litz.ir.dtypes import F32, F64
from litz.ir.expr import Expr, cast, integer, scan
from litz.ir.index import ZERO
from litz.lower.reduce import comparable, computable, from_zero
from litz.lower.registry import rule
from litz.lower.values import Lowering, View, element


def _along(position: tuple[Expr, ...], dim: int) -> Expr:
    """The axis of a dimension; ZERO for a scalar."""
    return position[dim % len(position)] if position else ZERO


def _lower_running(
    kind: str, low: Lowering, like: torch.Tensor, x: View, dim: int, **_: Any
) -> View:
    """Eager accumulates f32 in f64: a long chain of roundings would be visible."""
    computable(x, like)
    dtype = dtype_of(like.dtype)

    def value(p: tuple[Expr, ...]) -> Expr:
        here, along = element(x, p, dtype), _along(p, dim)
        if along is ZERO:
            return from_zero(kind, here)
        carried = scan(kind, along, cast(here, F64) if dtype is F32 else here)
        return cast(carried, here.dtype)

    return low.pointwise(like, value)


rule("cumsum")(partial(_lower_running, "sum"))
rule("cumprod")(partial(_lower_running, "prod"))
rule("logcumsumexp")(partial(_lower_running, "logsumexp"))


def _lower_extreme(
    kind: str, low: Lowering, like: list[torch.Tensor], x: View, dim: int
) -> list[View]:
    computable(x, like[0])

    def extreme(p: tuple[Expr, ...]) -> Expr:
        here, along = element(x, p, x.dtype), _along(p, dim)
        return here if along is ZERO else scan(kind, along, here)

    def place(p: tuple[Expr, ...]) -> Expr:
        along = _along(p, dim)
        return integer(0) if along is ZERO else scan(f"arg{kind}", along, comparable(x, p))

    return [low.pointwise(like[0], extreme), low.pointwise(like[1], place)]


rule("cummax")(partial(_lower_extreme, "max"))
rule("cummin")(partial(_lower_extreme, "min"))
