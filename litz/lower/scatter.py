"""Ops that write at indices from a tensor: scatter, index_put, index_add and the like.

In: a view to start from, index views, values. Out: a copy of the first, then a loop over the values
that stores each at its index. Example, `index_add` of rows:

    t[check_index(index[i0], 8), i1] add= source[i0, i1]

Several values may have the same index. A CPU combines them one by one, in the order of the source
(last dimension fastest), starting from the old element: results do not depend on the number of
threads. A GPU combines sums in any order (`triton.atomics`), all else in this one. Sums and
products of half types are accumulated in float32 and rounded once, at the end: a thousand bfloat16
ones add up to 1000, not to 256, where adding one has no effect. Where few elements are written, as
in the gradient of an embedding, only those are widened (`_scatter_few`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from litz.ir.checks import Site
from litz.ir.dtypes import BOOL, I64, DType
from litz.ir.expr import Expr, apply, cast, const, scan
from litz.ir.index import ONE, ZERO, ravel, size_product, unravel
from litz.ir.program import Buffer, Loop, Store
from litz.ir.sizes import at_least
from litz.lower.pointwise import truth
from litz.lower.registry import FallbackToAten, rule
from litz.lower.runtime_checks import (
    IndexCheck,
    checked_index,
    require_indices,
    value_with_index_check,
)
from litz.lower.symbols import sizes
from litz.lower.values import (
    Lowering,
    Value,
    View,
    broadcast,
    dtype_of,
    element,
    positions,
    to_storage,
)

# The op that `index_add` becomes where eager raises an IndexError; else it is a `scatter_add`.
REDUCED = "aten.scatter_reduce"
# Elements per written point from which on only the written elements are widened.
FEW = 4
MODES = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def _check_target(low: Lowering, like: torch.Tensor, x: View) -> None:
    """Fall back unless the target has elements and a dtype to compute in."""
    if dtype_of(like.dtype).kind == "x" or any(s is ZERO for s in x.shape):
        raise FallbackToAten("a type that is not generated, or an empty tensor")
    if not all(at_least(n, ONE) for n in x.shape):
        low.decide("refused", low.origin.node, f"{low.origin.op} is left to ATen: it may be empty")
        raise FallbackToAten("a store has nowhere to go if the tensor is empty")


def _started(low: Lowering, like: torch.Tensor, x: View, mode: str = "put") -> Buffer:
    """A fresh copy of the scatter's operand, in the dtype that values are combined in."""
    dtype = dtype_of(like.dtype)
    if mode in ("add", "mul") and dtype.compute is not dtype:
        wide = low.contiguous_buffer(sizes(like.shape), dtype.compute)
        low.emit(wide, positions(wide.shape), element(x, positions(wide.shape), dtype))
        return wide
    return low.pointwise(like, lambda p: element(x, p, dtype)).buffer


def _finished(low: Lowering, like: torch.Tensor, target: Buffer) -> View:
    """The scattered buffer, in the dtype of the result."""
    total, dtype = low.whole(target), dtype_of(like.dtype)
    if target.dtype is dtype:
        return total
    return low.pointwise(like, lambda p: element(total, p, dtype))


def _scatter(
    low: Lowering, target: Buffer, shape: Sequence[Expr], index: tuple[Expr, ...], value: Expr,
    mode: str = "put",
) -> None:  # fmt: skip
    """A loop over `shape` that stores at `index`."""
    axes = tuple(a for a in positions(shape) if a is not ZERO)
    if target.dtype is BOOL:
        mode = {"add": "or", "mul": "and", "max": "or", "min": "and"}.get(mode, mode)
    store = Store(target, index, to_storage(value, target.dtype), mode)
    low.body.append(Loop(axes, (), (store,), (low.origin,)))


def _scatter_wide(
    low: Lowering, like: torch.Tensor, x: View, shape: Sequence[Expr], index: tuple[Expr, ...],
    value: Expr, mode: str,
) -> View:  # fmt: skip
    """A copy of `x` with values combined at `index`."""
    dtype = dtype_of(like.dtype)
    widens = mode in ("add", "mul") and dtype.compute is not dtype
    if widens and FEW * size_product(shape).hint <= size_product(x.shape).hint:
        return _scatter_few(low, like, x, shape, index, value, mode)
    target = _started(low, like, x, mode)
    _scatter(low, target, shape, index, value, mode)
    return _finished(low, like, target)


def _scatter_few(
    low: Lowering, like: torch.Tensor, x: View, shape: Sequence[Expr], index: tuple[Expr, ...],
    value: Expr, mode: str,
) -> View:  # fmt: skip
    """Widen, combine and round only the written elements. Points with the same index all widen the
    same element and round the same sum, so their order does not matter."""
    dtype = dtype_of(like.dtype)
    target = _started(low, like, x)
    wide = low.contiguous_buffer(sizes(like.shape), dtype.compute)
    _scatter(low, wide, shape, index, element(x, index, dtype))
    _scatter(low, wide, shape, index, value, mode)
    _scatter(low, target, shape, index, element(low.whole(wide), index, dtype))
    return low.whole(target)


# -- index_put -------------------------------------------------------------------------------


@rule("index_put", "_unsafe_index_put", "_index_put_impl_functional")
def _index_put(
    low: Lowering, like: torch.Tensor, x: View, indices: Sequence[View | None], values: View,
    accumulate: bool = False, *_: Any,
) -> View:  # fmt: skip
    dtype = dtype_of(like.dtype)
    tensors = [i for i in indices if i is not None]
    if any(i.dtype is BOOL for i in tensors):
        return _masked_put(low, like, x, indices, values, accumulate)
    require_indices(*tensors)
    _check_target(low, like, x)
    given = [d for d, i in enumerate(indices) if i is not None]
    looked_up = _broadcast_shape([i.shape for i in tensors])
    adjacent = given == list(range(given[0], given[0] + len(given)))
    start = given[0] if adjacent else 0
    rest = [s for d, s in enumerate(x.shape) if d >= len(indices) or indices[d] is None]
    shape = (*rest[:start], *looked_up, *rest[start:])
    here = positions(shape)
    found = here[start : start + len(looked_up)]
    left = iter(here[:start] + here[start + len(looked_up) :])
    place = []
    for d, extent in enumerate(x.shape):
        index = indices[d] if d < len(indices) else None
        if index is None:
            place.append(next(left))
        else:
            at = index.at(broadcast(index, found))
            place.append(checked_index(low, at, extent, IndexCheck(d, wraps=True)))
    value, mode = element(values, here, dtype), "add" if accumulate else "put"
    return _scatter_wide(low, like, x, shape, tuple(place), value, mode)


def _broadcast_shape(shapes: list[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    rank = max(len(s) for s in shapes)
    result = []
    for k in range(rank):
        sizes = {s[len(s) - rank + k] for s in shapes if len(s) - rank + k >= 0}
        wide = [n for n in sizes if n is not ONE]
        result.append(wide[0] if wide else next(iter(sizes)))
    return tuple(result)


def _masked_put(
    low: Lowering, like: torch.Tensor, x: View, indices: Sequence[View | None], values: View,
    accumulate: bool,
) -> View:  # fmt: skip
    """The same values wherever a mask over the leading dimensions is true."""
    mask = indices[0] if len(indices) == 1 else None
    if mask is None or mask.dtype is not BOOL:
        raise FallbackToAten("a mask among other indices")
    if mask.shape != x.shape[: len(mask.shape)]:
        raise FallbackToAten("a mask that eager refuses, or may refuse at some sizes")
    rest = len(x.shape) - len(mask.shape)
    if any(s is not ONE for s in values.shape[: max(len(values.shape) - rest, 0)]):
        raise FallbackToAten("a mask as index: how many values it takes depends on the data")
    dtype = dtype_of(like.dtype)

    def value(p: tuple[Expr, ...]) -> Expr:
        chosen = mask.at(p[: len(mask.shape)])
        old = element(x, p, dtype)
        new = element(values, (ZERO, *p[len(mask.shape) :]), dtype)
        both = apply("or" if dtype is BOOL else "add", old, new) if accumulate else new
        return apply("where", chosen, both, old)

    return low.pointwise(like, value)


# -- scatter ---------------------------------------------------------------------------------


def _scatter_along(
    low: Lowering, target: Buffer, x: View, dim: int, index: View, source: Value, mode: str
) -> None:
    place, value = _place_along(low, target.dtype, x, dim, index, source)
    _scatter(low, target, index.shape, place, value, mode)


def _place_along(
    low: Lowering, dtype: DType, x: View, dim: int, index: View, source: Value
) -> tuple[tuple[Expr, ...], Expr]:
    """The target index of a point of `index`, and the value to store."""
    require_indices(index)
    here = positions(index.shape)
    place = list(here) or [ZERO]  # a scalar is a row of one element
    value = (
        element(source, here, dtype)
        if not isinstance(source, View)
        else cast(source.at(_inside(source, here)), dtype.compute)
    )
    slices = low.original_aten.startswith("aten.index_add") and low.origin.op.startswith(REDUCED)
    how = IndexCheck(dim, kind="index" if slices else "gather")
    if x.shape:
        place[dim] = checked_index(low, index.at(here), x.shape[dim], how)
    else:  # a scalar, as a row of one element
        place, value = [], value_with_index_check(low, value, index.at(here), ONE, how)
    return tuple(place), value


def _inside(source: View, here: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The source may be larger than the index; only the part under the index is read."""
    if len(source.shape) != len(here):  # a scalar beside a row of one element
        return (ZERO,) * len(source.shape)
    return tuple(ZERO if s is ONE else p for s, p in zip(source.shape, here, strict=True))


def _is_empty(index: View) -> bool:
    return any(s is ZERO for s in index.shape)


@rule("scatter.src", "scatter.value")
def _scatter_set(
    low: Lowering, like: torch.Tensor, x: View, dim: int, index: View, source: Value
) -> View:
    return _scatter_combined(low, like, x, dim, index, source, "put")


@rule("scatter_add")
def _scatter_add(
    low: Lowering, like: torch.Tensor, x: View, dim: int, index: View, source: View
) -> View:
    return _scatter_combined(low, like, x, dim, index, source, "add")


@rule("scatter.reduce", "scatter.value_reduce")
def _scatter_old_reduce(
    low: Lowering, like: torch.Tensor, x: View, dim: int, index: View, source: Value, *,
    reduce: str,
) -> View:  # fmt: skip
    return _scatter_combined(low, like, x, dim, index, source, MODES[reduce])


def _scatter_combined(
    low: Lowering, like: torch.Tensor, x: View, dim: int, index: View, source: Value, mode: str
) -> View:
    _check_target(low, like, x)
    if _is_empty(index):
        return _finished(low, like, _started(low, like, x, mode))
    dtype = dtype_of(like.dtype)
    if not isinstance(source, View):  # a number is rounded to the tensor's dtype
        source = cast(cast(element(source, (), dtype), dtype), dtype.compute)
    along = dim % max(len(x.shape), 1)
    place, value = _place_along(low, dtype.compute, x, along, index, source)
    return _scatter_wide(low, like, x, index.shape, place, value, mode)


@rule("scatter_reduce.two")
def _scatter_reduce(
    low: Lowering, like: torch.Tensor, x: View, dim: int, index: View, source: View, reduce: str,
    *, include_self: bool = True,
) -> View:  # fmt: skip
    _check_target(low, like, x)
    mode = "add" if reduce == "mean" else MODES[reduce]
    target = _started(low, like, x, mode)
    dim %= max(len(x.shape), 1)
    if _is_empty(index):
        return _finished(low, like, target)
    if not include_self:  # written elements start from the identity of the reduction
        _scatter_along(low, target, x, dim, index, _neutral(mode, like.dtype), "put")
    _scatter_along(low, target, x, dim, index, source, mode)
    if reduce == "mean":
        return _mean(low, like, x, dim, index, low.whole(target), include_self)
    return _finished(low, like, target)


def _mean(
    low: Lowering, like: torch.Tensor, x: View, dim: int, index: View, total: View,
    include_self: bool,
) -> View:  # fmt: skip
    """A sum divided by how often each element was written; integers round down, as in eager. Eager
    counts in the dtype itself: 256 points wrap to 0 in an int8, and then nothing is divided."""
    dtype = dtype_of(like.dtype)
    count = low.contiguous_buffer(sizes(like.shape), I64)
    low.emit(count, positions(count.shape), const(int(include_self), I64))
    _scatter_along(low, count, x, dim, index, 1, "add")
    met = low.whole(count)

    def value(p: tuple[Expr, ...]) -> Expr:
        often, none = cast(met.at(p), dtype.compute), const(0, dtype.compute)
        often = apply("where", apply("eq", often, none), const(1, dtype.compute), often)
        op = "div" if dtype.is_float else "floordiv"
        return apply(op, element(total, p, dtype), often)

    return low.pointwise(like, value)


def _neutral(mode: str, dtype: torch.dtype) -> int | float | bool:
    if mode in ("add", "mul"):
        return int(mode == "mul")
    if dtype is torch.bool:
        return mode == "min"
    if dtype.is_floating_point:
        return float("-inf") if mode == "max" else float("inf")
    limits = torch.iinfo(dtype)
    return int(limits.min if mode == "max" else limits.max)


# -- masked_scatter --------------------------------------------------------------------------


@rule("masked_scatter")
def _masked_scatter(low: Lowering, like: torch.Tensor, x: View, mask: View, source: View) -> View:
    """The n-th true element takes the n-th element of the source: a running count numbers them."""
    dtype = dtype_of(like.dtype)
    shape = sizes(like.shape)
    if dtype.kind == "x" or any(s is ZERO for s in (*shape, *source.shape)):
        raise FallbackToAten("a type that is not generated, or an empty tensor")
    if mask.dtype is not BOOL:
        raise FallbackToAten("eager refuses other masks")
    count = low.contiguous_buffer((size_product(shape),), I64)
    (flat,) = positions(count.shape)

    def chosen(p: Sequence[Expr]) -> Expr:
        return truth(element(mask, p, mask.dtype))

    numbered = cast(chosen(unravel(flat, shape)), I64)
    numbered = numbered if flat is ZERO else scan("sum", flat, numbered)
    low.emit(count, (flat,), numbered)
    counted = low.whole(count)
    text = "Number of elements of source < number of ones in mask"
    site = Site("count", low.original_aten, low.origin.line, text=text)
    available = size_product(source.shape)
    if not at_least(available, ONE):  # then no element is taken, but an index still needs a bound
        available = apply("max", available, ONE)

    def value(p: tuple[Expr, ...]) -> Expr:
        here = chosen(p)
        number = apply("sub", counted.at((ravel(p, shape),)), const(1, I64))
        number = apply("where", here, number, const(0, I64))
        taken = source.at(unravel(low.check("check_index", site, number, available), source.shape))
        new = cast(taken, dtype.compute)
        if available is ONE:  # the element does not depend on the number, so check separately
            new = low.check("check", site, apply("lt", number, ONE), number, ONE, new)
        return apply("where", here, new, element(x, p, dtype))

    return low.pointwise(like, value)
