"""Ops that join or repeat tensors: cat, pad, flip, repeat, slice_scatter and other scatters.

In: views. Out: a loop with guarded loads: each reads its tensor only inside its own part of the
result, so the join can fuse into its readers. Example, a cat of two vectors:
`y[i0] = where(i0 < 4, guarded(i0 < 4, a[i0]), guarded(i0 >= 4, b[i0 - 4]))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import torch

from litz.ir.aten import dtype_of
from litz.ir.dtypes import BOOL
from litz.ir.expr import Expr, apply, cast, const, integer
from litz.ir.index import ONE, ZERO, bounds, floordiv, from_poly, modulo, simplify, to_poly
from litz.ir.program import Loop, Store
from litz.ir.sizes import at_least, difference, total
from litz.lower.registry import FallbackToAten, rule
from litz.lower.symbols import size_of
from litz.lower.values import Lowering, View, element, positions, to_storage, widen
from litz.lower.view import counted, first_of

# With more parts, each part has its own loop: a `where` costs one comparison per part and element.
MOST_CHOSEN_PARTS = 4


def _shift(i: Expr, by: Expr | int) -> Expr:
    return simplify(apply("add", i, size_of(by)))


@rule("cat")
def _concatenate(low: Lowering, like: torch.Tensor, parts: Sequence[View], dim: int = 0) -> View:
    dtype = dtype_of(like.dtype)
    # Eager accepts an empty 1-d tensor beside tensors of any rank.
    used = [v for v in parts if not any(s is ZERO for s in v.shape)]
    if dtype.kind == "x" or any(v.dtype.kind == "x" for v in used):
        raise FallbackToAten("a type that is not generated")
    rank = like.dim()
    dim %= max(rank, 1)
    if len(used) > MOST_CHOSEN_PARTS:
        return _store_parts(low, like, used, dim)

    def value(p: tuple[Expr, ...]) -> Expr:
        end = total(v.shape[dim] for v in used)
        chosen: Expr | None = None
        for v in reversed(used):
            start = difference(end, v.shape[dim])
            inside = between(p[dim], start, end)
            place = list(p)
            place[dim] = difference(p[dim], start)
            here = cast(v.at(place, inside), dtype.compute)
            below = apply("lt", p[dim], end)
            end = start
            chosen = here if chosen is None else apply("where", below, here, chosen)
        return const(0, dtype.compute) if chosen is None else chosen

    return low.pointwise(like, value)


def between(i: Expr, low: Expr | int, high: Expr | int) -> Expr:
    """low <= i < high, without comparisons that the range of i already decides."""
    span = bounds(to_poly(simplify(i)))
    first, end = size_of(low), size_of(high)
    tests = []
    if span is None or not at_least(from_poly(span[0]), first):
        tests.append(apply("ge", i, first))
    if span is None or not at_least(end, apply("add", from_poly(span[1]), ONE)):
        tests.append(apply("lt", i, end))
    return all_of(tests)


def all_of(tests: Sequence[Expr]) -> Expr:
    """The conjunction of conditions, without those known to hold."""
    open_tests = [t for t in tests if not (t.is_const and t.attr)]
    return reduce(partial(apply, "and"), open_tests) if open_tests else const(True, BOOL)


def _store_parts(low: Lowering, like: torch.Tensor, parts: Sequence[View], dim: int) -> View:
    """One loop per part, each storing into its own slice of the result."""
    target = low.buffer(like)
    start: Expr = ZERO
    for part in parts:
        here = positions(part.shape)
        place = list(here)
        place[dim] = _shift(here[dim], start)
        value = to_storage(cast(part.at(here), target.dtype.compute), target.dtype)
        axes = tuple(a for a in here if a is not ZERO)
        low.body.append(Loop(axes, (), (Store(target, tuple(place), value),), (low.origin,)))
        start = total((start, part.shape[dim]))
    return low.whole(target)


@rule("constant_pad_nd")
def _pad(low: Lowering, like: torch.Tensor, x: View, pad: Sequence[int], fill: Any = 0) -> View:
    dtype = dtype_of(like.dtype)
    before: list[Expr] = [ZERO] * len(x.shape)
    for k in range(len(pad) // 2):
        before[len(x.shape) - 1 - k] = size_of(pad[2 * k])

    def value(p: tuple[Expr, ...]) -> Expr:
        inside = all_of(
            [between(i, b, total((b, n))) for i, b, n in zip(p, before, x.shape, strict=True)]
        )
        place = [difference(i, start) for i, start in zip(p, before, strict=True)]
        here = cast(x.at(place, inside), dtype.compute)
        if inside.is_const:
            return here
        return apply("where", inside, here, const(fill, dtype.compute))

    return low.pointwise(like, value)


@rule("flip")
def _flip(low: Lowering, like: torch.Tensor, x: View, dims: Sequence[int]) -> View:
    flipped = {d % len(x.shape) for d in dims} if x.shape else set()

    def value(p: tuple[Expr, ...]) -> Expr:
        place = [
            difference(difference(x.shape[d], ONE), i) if d in flipped else i
            for d, i in enumerate(p)
        ]
        return widen(x.at(place), x.dtype)

    return low.pointwise(like, value)


@rule("repeat")
def _repeat(low: Lowering, like: torch.Tensor, x: View, _: Sequence[int]) -> View:

    def value(p: tuple[Expr, ...]) -> Expr:
        tail = p[len(p) - len(x.shape) :]
        place = [modulo(i, s) for i, s in zip(tail, x.shape, strict=True)]
        return widen(x.at(place), x.dtype)

    return low.pointwise(like, value)


@rule("slice_scatter")
def _slice_scatter(
    low: Lowering, like: torch.Tensor, x: View, source: View, dim: int = 0, start: Any = None,
    end: Any = None, step: int = 1,
) -> View:  # fmt: skip
    """x with a slice replaced."""
    dim %= len(x.shape)
    first = first_of(start, x.shape[dim])
    by = size_of(step)
    reach = apply("mul", difference(source.shape[dim], ONE), by)
    dtype = dtype_of(like.dtype)

    def value(p: tuple[Expr, ...]) -> Expr:
        inside = between(p[dim], first, total((first, reach, ONE)))
        place = list(p)
        place[dim] = difference(p[dim], first)
        if by is not ONE:
            inside = all_of([inside, apply("eq", modulo(place[dim], by), ZERO)])
            place[dim] = simplify(apply("floordiv", place[dim], by))
        new = cast(source.at(place, inside), dtype.compute)
        return new if inside.is_const else apply("where", inside, new, element(x, p, dtype))

    return low.pointwise(like, value)


@rule("select_scatter")
def _select_scatter(
    low: Lowering, like: torch.Tensor, x: View, source: View, dim: int, place: int
) -> View:
    """x with one row along `dim` replaced."""
    dim %= len(x.shape)
    row = counted(place, x.shape[dim])
    dtype = dtype_of(like.dtype)

    def value(p: tuple[Expr, ...]) -> Expr:
        rest = p[:dim] + p[dim + 1 :]
        chosen = apply("eq", p[dim], row)
        return apply("where", chosen, element(source, rest, dtype), element(x, p, dtype))

    return low.pointwise(like, value)


@rule("diagonal_scatter")
def _diagonal_scatter(
    low: Lowering, like: torch.Tensor, x: View, source: View, offset: int = 0, dim1: int = 0,
    dim2: int = 1,
) -> View:  # fmt: skip
    """x with a diagonal replaced."""
    first, second = dim1 % len(x.shape), dim2 % len(x.shape)
    dtype = dtype_of(like.dtype)

    def value(p: tuple[Expr, ...]) -> Expr:
        rest = [i for d, i in enumerate(p) if d not in (first, second)]
        along = _shift(p[first], min(offset, 0))
        on = apply("eq", simplify(apply("sub", p[second], p[first])), integer(offset))
        new = cast(source.at((*rest, along), on), dtype.compute)
        return apply("where", on, new, element(x, p, dtype))

    return low.pointwise(like, value)


@rule("as_strided_scatter")
def _as_strided_scatter(
    low: Lowering, like: torch.Tensor, x: View, source: View, size: Sequence[int],
    stride: Sequence[int], start: int | None = None,
) -> View:  # fmt: skip
    """x with a strided window of its storage replaced: the digits of an address are its index."""
    dtype = dtype_of(like.dtype)
    if any(n == 0 for n in size):
        return low.pointwise(like, lambda p: element(x, p, dtype))
    begins = total((low.base_offset[x.buffer], x.offset))  # in eager's storage
    order = sorted((d for d in range(len(size)) if size[d] > 1), key=lambda d: -stride[d])
    reach = 1
    for d in reversed(order):
        if stride[d] < reach:
            raise FallbackToAten("a window that shows an element twice")
        reach = stride[d] * size[d]

    def value(p: tuple[Expr, ...]) -> Expr:
        left = ZERO if start is None else difference(begins, size_of(start))
        for i, step in zip(p, like.stride(), strict=True):
            left = simplify(apply("add", left, apply("mul", i, integer(step))))
        tests = [between(left, 0, reach)]
        place = [ZERO] * len(size)
        for d in order:
            place[d] = floordiv(left, integer(stride[d]))
            tests.append(between(place[d], 0, size[d]))
            left = modulo(left, integer(stride[d]))
        tests.append(apply("eq", left, ZERO))
        new = cast(source.at(place, all_of(tests)), dtype.compute)
        return apply("where", all_of(tests), new, element(x, p, dtype))

    return low.pointwise(like, value)
