"""Ops that read where a tensor of indices says: gather, embedding, index_select, index.

In: a view and index views. Out: a loop whose load has a load in its index. Every such index is
checked in the kernel: one outside the tensor raises eager's error and reads nothing foreign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from litz.ir.dtypes import I64
from litz.ir.expr import Expr, apply, cast, const
from litz.ir.index import ONE, ZERO
from litz.lower.registry import NotGenerated, rule
from litz.lower.values import Lowering, View, broadcast, positions, widen


def checked(low: Lowering, index: Expr, extent: Expr, *, wraps: bool) -> Expr:
    """An index from a tensor: negative ones count from the end where eager lets them.

    One out of range raises eager's error; without that assertion it is moved to the nearest one
    that is in range, so that no memory but the tensor's is ever touched.
    """
    wide = cast(index, I64)
    if wraps:
        wide = apply("where", apply("lt", wide, const(0, I64)), apply("add", wide, extent), wide)
    if low.config.assert_indirect_indexing:
        return apply("check_index", wide, extent)
    last = apply("sub", extent, const(1, I64))
    return apply("min", apply("max", wide, const(0, I64)), last)


def _element(x: View, index: Sequence[Expr]) -> Expr:
    return widen(x.at(tuple(index)), x.dtype)


@rule("gather")
def _gather(
    low: Lowering, like: torch.Tensor, x: View, dim: int, index: View, sparse_grad: bool = False
) -> View:
    _generated(x)
    if not x.shape:
        return low.pointwise(like, lambda p: _element(x, ()))
    dim %= len(x.shape)
    x = _addressed(low, x, [dim])

    def value(p: tuple[Expr, ...]) -> Expr:
        place = list(p)
        place[dim] = checked(low, index.at(p), x.shape[dim], wraps=False)
        return _element(x, place)

    return low.pointwise(like, value)


@rule("index_select")
def _index_select(low: Lowering, like: torch.Tensor, x: View, dim: int, index: View) -> View:
    _generated(x)
    if not x.shape:
        return low.pointwise(like, lambda p: _element(x, ()))
    dim %= len(x.shape)
    x = _addressed(low, x, [dim])

    def value(p: tuple[Expr, ...]) -> Expr:
        place = list(p)
        where = (p[dim],) if index.shape else ()
        place[dim] = checked(low, index.at(broadcast(index, where)), x.shape[dim], wraps=False)
        return _element(x, place)

    return low.pointwise(like, value)


@rule("embedding")
def _embedding(low: Lowering, like: torch.Tensor, weight: View, index: View, *_: Any) -> View:
    _generated(weight)
    weight = _addressed(low, weight, [0])

    def value(p: tuple[Expr, ...]) -> Expr:
        row = checked(low, index.at(p[:-1]), weight.shape[0], wraps=False)
        return _element(weight, (row, p[-1]))

    return low.pointwise(like, value)


@rule("index.Tensor")
def _index(low: Lowering, like: torch.Tensor, x: View, indices: Sequence[View | None]) -> View:
    _generated(x)
    x = _addressed(low, x, [d for d, i in enumerate(indices) if i is not None])
    return _indexed(low, like, x, indices, partial(checked, low, wraps=True))


@rule("_unsafe_index.Tensor")
def _trusted_index(
    low: Lowering, like: torch.Tensor, x: View, indices: Sequence[View | None]
) -> View:
    """Made by torch's decompositions alone, whose indices are in range by construction."""
    return _indexed(low, like, x, indices, lambda index, extent: cast(index, I64))


def _indexed(
    low: Lowering, like: torch.Tensor, x: View, indices: Sequence[View | None],
    in_range: Callable[[Expr, Expr], Expr],
) -> View:  # fmt: skip
    """Indexed dimensions become the broadcast of the indices: in place if adjacent, else first."""
    given = [d for d, i in enumerate(indices) if i is not None]
    tensors = [i for i in indices if i is not None]
    if any(not i.dtype.is_int for i in tensors):
        raise NotGenerated("a mask as index: the result's shape depends on the data")
    rank = max(len(i.shape) for i in tensors)
    adjacent = given == list(range(given[0], given[0] + len(given)))
    start = given[0] if adjacent else 0

    def value(p: tuple[Expr, ...]) -> Expr:
        looked_up = p[start : start + rank]
        rest = iter(p[:start] + p[start + rank :])
        place = []
        for d, extent in enumerate(x.shape):
            index = indices[d] if d < len(indices) else None
            if index is None:
                place.append(next(rest))
            else:
                found = index.at(broadcast(index, looked_up))
                place.append(in_range(found, extent))
        return _element(x, place)

    return low.pointwise(like, value)


def _generated(x: View) -> None:
    if x.dtype.kind == "x" or any(s is ZERO for s in x.shape):
        raise NotGenerated("a type that is not generated, or an empty tensor")


def _addressed(low: Lowering, x: View, dims: Sequence[int]) -> View:
    """The same tensor, written out if it is expanded along `dims`: what is read there does not
    depend on the index, which would vanish together with its check."""
    if not any(x.strides[d] is ZERO and x.shape[d] is not ONE for d in dims):
        return x
    copy = low.row_buffer(x.shape, x.dtype)
    here = positions(copy.shape)
    low.emit(copy, here, x.at(here))
    return low.whole(copy)
