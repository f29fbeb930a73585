"""Ops that read at indices from a tensor: gather, embedding, index_select, index.

In: a view and index views. Out: a loop whose load has a load in its index. The kernel checks every
such index: one out of range raises eager's error, and nothing outside the tensor is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from litz.ir.dtypes import I64
from litz.ir.expr import Expr, cast
from litz.ir.index import ONE, ZERO
from litz.lower.registry import FallbackToAten, rule
from litz.lower.runtime_checks import (
    IndexCheck,
    checked_index,
    require_indices,
    value_with_index_check,
)
from litz.lower.values import Lowering, View, broadcast, widen


@dataclass(frozen=True)
class _Found:
    """An index that is loaded from memory, and its check."""

    index: Expr
    how: IndexCheck


def _element(low: Lowering, x: View, place: Sequence[Expr | _Found]) -> Expr:
    """The element at a position; indices from memory are checked."""
    at = [
        checked_index(low, p.index, n, p.how) if isinstance(p, _Found) else p
        for p, n in zip(place, x.shape, strict=True)
    ]
    value = widen(x.at(tuple(at)), x.dtype)
    for d, p in enumerate(place):
        if isinstance(p, _Found) and (x.shape[d] is ONE or x.strides[d] is ZERO):
            # The element does not depend on the index, so the load lost the index and its check.
            value = value_with_index_check(low, value, p.index, x.shape[d], p.how)
    return value


@rule("gather")
def _gather(
    low: Lowering, like: torch.Tensor, x: View, dim: int, index: View, sparse_grad: bool = False
) -> View:
    _generated(x)
    require_indices(index)
    dim, how = dim % max(len(x.shape), 1), IndexCheck(dim, kind="gather")

    def value(p: tuple[Expr, ...]) -> Expr:
        place: list[Expr | _Found] = list(p) or [ZERO]  # a scalar is a row of one element
        if not x.shape:
            return value_with_index_check(low, _element(low, x, ()), index.at(p), ONE, how)
        place[dim] = _Found(index.at(p), how)
        return _element(low, x, place)

    return low.pointwise(like, value)


@rule("index_select")
def _index_select(low: Lowering, like: torch.Tensor, x: View, dim: int, index: View) -> View:
    _generated(x)
    require_indices(index)
    dim %= max(len(x.shape), 1)
    how = IndexCheck(dim, kind="gather" if dim == 1 else "index")  # eager has a kernel for dim 1

    def value(p: tuple[Expr, ...]) -> Expr:
        place: list[Expr | _Found] = list(p)
        where = (p[dim],) if index.shape and p else (ZERO,) * len(index.shape)
        found = index.at(broadcast(index, where))
        if not x.shape:
            return value_with_index_check(low, _element(low, x, ()), found, ONE, how)
        place[dim] = _Found(found, how)
        return _element(low, x, place)

    return low.pointwise(like, value)


@rule("embedding")
def _embedding(low: Lowering, like: torch.Tensor, weight: View, index: View, *_: Any) -> View:
    _generated(weight)
    require_indices(index)

    def value(p: tuple[Expr, ...]) -> Expr:
        return _element(low, weight, (_Found(index.at(p[:-1]), IndexCheck(0)), p[-1]))

    return low.pointwise(like, value)


@rule("index.Tensor")
def _index(low: Lowering, like: torch.Tensor, x: View, indices: Sequence[View | None]) -> View:
    _generated(x)
    return _indexed(
        low, like, x, indices, lambda index, d: _Found(index, IndexCheck(d, wraps=True))
    )


@rule("_unsafe_index.Tensor")
def _trusted_index(
    low: Lowering, like: torch.Tensor, x: View, indices: Sequence[View | None]
) -> View:
    """Only torch's decompositions call it, with indices in range by construction."""
    return _indexed(low, like, x, indices, lambda index, _: cast(index, I64))


def _indexed(
    low: Lowering, like: torch.Tensor, x: View, indices: Sequence[View | None],
    taken: Callable[[Expr, int], Expr | _Found],
) -> View:  # fmt: skip
    """Indexed dimensions become the broadcast of the indices: in place if adjacent, else first."""
    given = [d for d, i in enumerate(indices) if i is not None]
    tensors = [i for i in indices if i is not None]
    require_indices(*tensors)  # with a mask, the result's shape depends on the data
    rank = max(len(i.shape) for i in tensors)
    adjacent = given == list(range(given[0], given[0] + len(given)))
    start = given[0] if adjacent else 0

    def value(p: tuple[Expr, ...]) -> Expr:
        looked_up = p[start : start + rank]
        rest = iter(p[:start] + p[start + rank :])
        place: list[Expr | _Found] = []
        for d in range(len(x.shape)):
            index = indices[d] if d < len(indices) else None
            if index is None:
                place.append(next(rest))
            else:
                place.append(taken(index.at(broadcast(index, looked_up)), d))
        return _element(low, x, place)

    return low.pointwise(like, value)


def _generated(x: View) -> None:
    if x.dtype.kind == "x" or any(s is ZERO for s in x.shape):
        raise FallbackToAten("a type that is not generated, or an empty tensor")
