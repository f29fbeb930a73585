"""Random tensors: rand, randn, uniform, randint, bernoulli, dropout, by Philox inside the kernels.

In: sizes and ranges. Out: loops whose values are a function of a seed and the element's flat index.
Each random op has a seed, drawn from torch's generator at the start of each call. A run is
therefore reproducible by `torch.manual_seed`, calls differ, and the generator advances.
`fallback_random` leaves these ops to ATen, whose numbers equal eager's bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from litz.ir import random_op as random_op  # registers the op that has a rule here
from litz.ir.aten import dtype_of
from litz.ir.dtypes import BF16, BOOL, F16, F32, F64, I64, DType
from litz.ir.expr import Expr, apply, cast, const, integer
from litz.ir.index import ravel
from litz.ir.program import Extern
from litz.lower.registry import FallbackToAten, rule
from litz.lower.runtime_checks import checked_between
from litz.lower.symbols import sizes
from litz.lower.values import Lowering, Value, View, element

FRACTION_BITS = {BF16: 8, F16: 11, F32: 24, F64: 53}


def _seed(low: Lowering) -> Expr:
    """A fresh seed: one element of a tensor that ATen fills before anything else runs."""
    if low.config.fallback_random:
        raise FallbackToAten("fallback_random asks for eager's numbers")
    seed = low.contiguous_buffer((), I64)
    limits = (-(2**63), 2**63 - 1)
    options = (("dtype", torch.int64), ("device", torch.device(low.target.device)))
    call = Extern(
        "aten.randint.low",
        (*limits, ()),
        options,
        (seed,),
        single=True,
        ordered=True,
        origins=(low.origin,),
    )
    low.body.append(call)
    return low.whole(seed).at(())


def _bits(seed: Expr, number: Expr) -> Expr:
    return apply("random_bits", seed, number)


def _uniform(bits: Expr, dtype: DType, shift: int = 0) -> Expr:
    """A number in [0, 1) from the bits above `shift`, with as many bits as its dtype can represent.

    More bits would round up to 1 in a half type.
    """
    count = FRACTION_BITS[dtype]
    moved = apply("shr", bits, const(shift, I64)) if shift else bits
    kept = apply("and", moved, const((1 << count) - 1, I64))
    return apply("mul", cast(kept, dtype.compute), const(2.0**-count, dtype.compute))


def _normal(seed: Expr, number: Expr, dtype: DType) -> Expr:
    """Box-Muller: a radius from one uniform number, an angle from another."""
    if dtype is F64:  # 106 bits: two blocks
        pairs = apply("mul", number, integer(2))
        first = _bits(seed, pairs)
        u, v = _uniform(first, dtype), _uniform(_bits(seed, apply("add", pairs, integer(1))), dtype)
    else:
        first = _bits(seed, number)
        u, v = _uniform(first, dtype), _uniform(first, dtype, shift=32)
    nonzero = apply("sub", const(1, dtype), u)  # in (0, 1]: its logarithm is finite
    radius = apply("sqrt", apply("mul", const(-2, dtype), apply("log", nonzero)))
    return apply("mul", radius, apply("cos", apply("mul", const(2 * math.pi, dtype), v)))


def _drawn(low: Lowering, like: torch.Tensor, draw: Any) -> View:
    """Each element is drawn with its flat index, under one seed."""
    dtype = dtype_of(like.dtype)
    if dtype.kind == "x":
        raise FallbackToAten("a type that is not generated")
    seed = _seed(low)
    shape = sizes(like.shape)
    return low.pointwise(like, lambda p: draw(p, seed, ravel(p, shape)))


@rule("random_bits", namespace="litz")
def _of_seed(low: Lowering, like: torch.Tensor, seed: View, _: Any) -> View:
    shape = sizes(like.shape)
    return low.pointwise(like, lambda p: _bits(element(seed, (), I64), ravel(p, shape)))


@rule("rand", "rand_like")
def _rand(low: Lowering, like: torch.Tensor, *_: Any, **__: Any) -> View:
    dtype = dtype_of(like.dtype)
    return _drawn(low, like, lambda p, seed, n: _uniform(_bits(seed, n), dtype))


@rule("uniform")
def _between(
    low: Lowering, like: torch.Tensor, _: View, start: float = 0.0, stop: float = 1.0, **__: Any
) -> View:
    dtype = dtype_of(like.dtype)
    most = torch.finfo(like.dtype).max
    if not (-most <= start <= stop <= most and stop - start <= most):
        raise FallbackToAten("eager refuses such a range")
    span, first = const(stop - start, dtype.compute), const(start, dtype.compute)

    def draw(p: tuple[Expr, ...], seed: Expr, number: Expr) -> Expr:
        return apply("add", apply("mul", _uniform(_bits(seed, number), dtype), span), first)

    return _drawn(low, like, draw)


@rule("randn", "randn_like")
def _randn(low: Lowering, like: torch.Tensor, *_: Any, **__: Any) -> View:
    dtype = dtype_of(like.dtype).compute
    return _drawn(low, like, lambda p, seed, n: _normal(seed, n, dtype))


def _integers(low: Lowering, like: torch.Tensor, start: int, stop: int) -> View:
    dtype = dtype_of(like.dtype)
    if stop - start >= 2**63:
        raise FallbackToAten("a range that int64 cannot count")

    def draw(p: tuple[Expr, ...], seed: Expr, number: Expr) -> Expr:
        positive = apply("and", _bits(seed, number), const(2**63 - 1, I64))
        inside = apply("mod", positive, const(stop - start, I64))
        return cast(apply("add", inside, const(start, I64)), dtype.compute)

    return _drawn(low, like, draw)


@rule("randint.default", "randint_like.default")
def _randint(low: Lowering, like: torch.Tensor, *args: Any, **_: Any) -> View:
    return _integers(low, like, 0, int(args[-2] if _is_shape(args[-1]) else args[-1]))


@rule("randint.low", "randint_like.low_dtype")
def _randint_from(low: Lowering, like: torch.Tensor, *args: Any, **_: Any) -> View:
    start, stop = args[:2] if _is_shape(args[-1]) else args[-2:]
    return _integers(low, like, int(start), int(stop))


def _is_shape(value: Any) -> bool:
    return isinstance(value, (list, tuple))


@rule("bernoulli.default", "bernoulli.Tensor", "bernoulli.p")
def _bernoulli(low: Lowering, like: torch.Tensor, x: View, p: Value = None, **_: Any) -> View:
    """1 with the probability given by `p` or, without it, by the tensor itself."""
    chance = x if p is None else p
    if not isinstance(chance, View | Expr) and not 0 <= float(chance) <= 1:
        raise FallbackToAten("eager refuses such a probability")

    def draw(place: tuple[Expr, ...], seed: Expr, number: Expr) -> Expr:
        below = element(chance, place, F32)
        if isinstance(chance, View):
            exact = element(chance, place, chance.dtype)
            checked = checked_between(low, exact, 0.0, 1.0, "bernoulli expects p to be in [0, 1]")
            below = cast(checked, F32)
        return cast(apply("lt", _uniform(_bits(seed, number), F32), below), _computed(like))

    return _drawn(low, like, draw)


def _computed(like: torch.Tensor) -> DType:
    return dtype_of(like.dtype).compute


@rule("native_dropout")
def _dropout(
    low: Lowering, like: list[torch.Tensor], x: View, p: float, train: bool | None
) -> list[View]:
    if train is False or p == 0.0:
        raise FallbackToAten("a dropout that drops nothing")
    if p == 1.0:  # eager draws nothing here, though the op itself would
        kept = low.pointwise(like[1], lambda _: const(False, BOOL))
    else:
        kept = _drawn(
            low,
            like[1],
            lambda place, seed, n: apply("lt", _uniform(_bits(seed, n), F32), const(1 - p, F32)),
        )
    dtype = dtype_of(like[0].dtype)

    scale, none = (const(n, dtype.compute) for n in (1 / (1 - p) if p < 1 else 0.0, 0.0))

    def value(place: tuple[Expr, ...]) -> Expr:
        """Multiplied, as in eager: a dropped infinity or NaN does not become zero."""
        factor = apply("where", kept.at(place), scale, none)
        return apply("mul", element(x, place, dtype), factor)

    return [low.pointwise(like[0], value), kept]
