"""Ops that make tensors from numbers: full, arange, scalar_tensor, ones, zeros, eye, empty.

In: numbers. Out: a loop with no loads; fusion inlines it everywhere.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from litz.ir.aten import dtype_of
from litz.ir.expr import Expr, apply, cast, const
from litz.lower.registry import FallbackToAten, rule
from litz.lower.symbols import UNLIMITED, as_value, size_of
from litz.lower.values import Lowering, Value, View, element


def filled(low: Lowering, like: torch.Tensor, value: Any) -> View:
    """A tensor filled with one number."""
    dtype = dtype_of(like.dtype)
    if dtype.kind == "x":
        raise FallbackToAten("a type that is not generated")
    return low.pointwise(like, lambda p: element(value, p, dtype))


@rule("full")
def _full(low: Lowering, like: torch.Tensor, _: Any, value: Value, **__: Any) -> View:
    return filled(low, like, value)


@rule("full_like", "new_full", "fill.Scalar", "fill.Tensor")
def _full_like(low: Lowering, like: torch.Tensor, *args: Any, **__: Any) -> View:
    return filled(low, like, args[-1])


@rule("scalar_tensor")
def _scalar_tensor(low: Lowering, like: torch.Tensor, value: Value, **_: Any) -> View:
    return filled(low, like, value)


def _uniform(value: int, low: Lowering, like: torch.Tensor, *_: Any, **__: Any) -> View:
    return filled(low, like, value)


for _name in ("zeros", "zeros_like", "new_zeros"):
    rule(_name)(partial(_uniform, 0))
for _name in ("ones", "ones_like", "new_ones"):
    rule(_name)(partial(_uniform, 1))


def _undefined(low: Lowering, like: torch.Tensor, *_: Any, **__: Any) -> View:
    """An uninitialized tensor; zero costs nothing, since it is inlined.

    Under deterministic algorithms eager fills it with NaN or the largest integer.
    """
    shows = torch.are_deterministic_algorithms_enabled()
    if not (shows and torch.utils.deterministic.fill_uninitialized_memory):
        return filled(low, like, 0)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        return filled(low, like, math.nan)
    return filled(low, like, True if like.dtype is torch.bool else torch.iinfo(like.dtype).max)


rule("empty.memory_format", "empty_like", "empty_strided", "empty_permuted")(_undefined)
rule("new_empty", "new_empty_strided")(_undefined)


def _ramp(low: Lowering, like: torch.Tensor, start: Any, step: Any) -> View:
    dtype = dtype_of(like.dtype)
    # Eager computes start + step * i in double (or int64) and converts once. Whole numbers that a
    # double represents exactly are the same in int64.
    exact = all(isinstance(n, Expr) or float(n).is_integer() for n in (start, step))
    exact = exact and _most(start) + _most(step) * _most(size_of(like.shape[0])) < 1 << 53
    wide = dtype_of(torch.float64 if dtype.is_float and not exact else torch.int64)

    def number(given: Any) -> Expr:
        return cast(as_value(given), wide) if isinstance(given, Expr) else const(given, wide)

    def value(p: tuple[Expr, ...]) -> Expr:
        scaled = apply("mul", cast(p[0], wide), number(step))
        return cast(apply("add", scaled, number(start)), dtype)

    return low.pointwise(like, value)


def _most(given: Any) -> float:
    """The largest a number may be; no memory fits a tensor of more elements than UNLIMITED."""
    if isinstance(given, Expr):
        return abs(given.number) if given.is_const else UNLIMITED
    return float(abs(given))


@rule("arange.start_step")
def _arange(
    low: Lowering, like: torch.Tensor, start: Any, end: Any, step: Any = 1, **_: Any
) -> View:
    return _ramp(low, like, start, step)


@rule("arange.default")
def _arange_to(low: Lowering, like: torch.Tensor, end: Any, **_: Any) -> View:
    return _ramp(low, like, 0, 1)


@rule("arange.start")
def _arange_from(low: Lowering, like: torch.Tensor, start: Any, end: Any, **_: Any) -> View:
    return _ramp(low, like, start, 1)


@rule("iota", namespace="prims")
def _iota(
    low: Lowering, like: torch.Tensor, length: int, *, start: int, step: int, **_: Any
) -> View:
    return _ramp(low, like, start, step)


@rule("eye.default", "eye.m")
def _identity_matrix(low: Lowering, like: torch.Tensor, *_: Any, **__: Any) -> View:
    dtype = dtype_of(like.dtype)
    return low.pointwise(like, lambda p: cast(apply("eq", p[0], p[1]), dtype))
