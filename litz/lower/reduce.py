"""Reductions: sum, mean, max, min, prod, any, all, argmax, argmin, var.

In: a view and the dimensions to reduce. Out: one loop with reduced axes. A variance has two: one
for an approximate mean m, one for sums of the distances d = x - m and of their squares. (A single
pass over squares of x loses all digits if x is far from zero.) Since m is rounded, the distances
have a mean of their own, which is subtracted; over n elements,

    mean = m + sum(d) / n        variance = (sum(d^2) - sum(d)^2 / n) / (n - correction)

For data far from zero d is exact, so both are as good as with an exact m. A row of equal numbers
has variance zero: its d are one small multiple of an ulp, and so is every sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from litz.ir.aten import dtype_of
from litz.ir.dtypes import BOOL, F32, F64, DType
from litz.ir.expr import Expr, apply, axis, cast, const, integer, reduce, substitute, walk
from litz.ir.index import ONE, ZERO, simplify_indices, size_product
from litz.ir.ops import REDUCTIONS
from litz.ir.program import Buffer
from litz.ir.sizes import at_least, count_of
from litz.lower.pointwise import arithmetic, truth
from litz.lower.registry import FallbackToAten, rule
from litz.lower.symbols import sizes
from litz.lower.values import Lowering, View, element, positions, widen

IDENTITIES = {"sum": 0, "wide_sum": 0, "prod": 1, "any": 0, "all": 1}
# One ulp of 1.0.
EPSILON = {F32: 2.0**-23, F64: 2.0**-52}
Dims = Sequence[int] | int | None


def reduced_dims(x: View, dims: Dims) -> list[int]:
    """Dimensions as sorted non-negative numbers; None and an empty list mean all."""
    rank = len(x.shape)
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    listed = [dims] if isinstance(dims, int) else list(dims)
    return sorted({d % rank for d in listed}) if rank else []


class Reducer:
    """One reduction of `x` over `dims` into `target`, whose shape may or may not keep them."""

    def __init__(self, low: Lowering, x: View, dims: list[int]) -> None:
        self.low, self.x, self.dims = low, x, dims
        self.extents = [x.shape[d] for d in dims]
        self.count = size_product(self.extents)
        self.bound = tuple(
            ZERO if e is ONE else axis(f"r{d}", e) for d, e in zip(dims, self.extents, strict=True)
        )
        self.axes = tuple(a for a in self.bound if a is not ZERO)

    def position(self, kept: Sequence[Expr]) -> tuple[Expr, ...]:
        """The operand's position: kept dimensions from the result, the others reduced axes."""
        rest, bound = iter(kept), iter(self.bound)
        rank = len(self.x.shape)
        return tuple(next(bound) if d in self.dims else next(rest) for d in range(rank))

    def kept(self, place: Sequence[Expr]) -> list[Expr]:
        """A result position without the size-one dimensions of keepdim."""
        rank = len(self.x.shape)
        if len(place) == rank and len(place) != rank - len(self.dims):
            return [p for d, p in enumerate(place) if d not in self.dims]
        return list(place)

    def value(self, kind: str, element_at: Callable[[tuple[Expr, ...]], Expr], kept: Any) -> Expr:
        """The reduced value; small reductions are unrolled, empty ones are the identity."""
        at = self.position(kept)
        if self.count is ZERO:
            return identity(kind, _given(kind, element_at(tuple(ZERO for _ in at)).dtype))
        if kind not in IDENTITIES and not at_least(self.count, ONE):
            raise FallbackToAten("an extreme of what may be nothing")
        if not self.axes:
            one = element_at(at)
            one = cast(one, _given(kind, one.dtype))
            return integer(0) if REDUCTIONS[kind].gives_index else from_zero(kind, one)
        return reduce_or_unroll(self.low, kind, self.axes, element_at(at))

    def emit(self, target: Any, value_at: Callable[[list[Expr]], Expr]) -> View:
        value = value_at(self.kept(positions(target.shape)))
        return emit_reduced(self.low, target, value, self.axes)


def reduce_or_unroll(
    low: Lowering, kind: str, axes: tuple[Expr, ...], value: Expr, kept: bool = False
) -> Expr:
    """`value` combined over `axes`: one reduction, or unrolled if it has few points and `kept` does
    not forbid it."""
    count = count_of(axes)
    long = not count.is_const or count.number > low.config.unroll_reductions_threshold
    long = long or (kept and count.number > 1)
    if long or REDUCTIONS[kind].gives_index:
        return reduce(kind, axes, value)
    terms = []
    for point in product(*(range(a.extent.number) for a in axes)):
        place = dict(zip(axes, map(integer, point), strict=True))
        term = simplify_indices(substitute(value, place))
        terms.append(cast(term, _given(kind, term.dtype)))
    while len(terms) > 1:  # pairwise, as eager's sums are
        pairs = [
            arithmetic(REDUCTIONS[kind].combine, a, b)
            for a, b in zip(terms[::2], terms[1::2], strict=False)
        ]
        terms = pairs + ([terms[-1]] if len(terms) % 2 else [])
    return from_zero(kind, terms[0])


def from_zero(kind: str, total: Expr) -> Expr:
    """A sum starts with zero: the sum of negative zeros is a positive zero."""
    adds_floats = kind in ("sum", "wide_sum") and total.dtype.is_float
    return apply("add", total, const(0.0, total.dtype)) if adds_floats else total


def _given(kind: str, dtype: DType) -> DType:
    """The dtype in which values of a dtype are combined."""
    return F64 if REDUCTIONS[kind].widens else dtype


def number_as(count: Expr, dtype: DType) -> Expr:
    """A number of elements, as a value to compute with."""
    return const(count.number, dtype) if count.is_const else cast(count, dtype)


def emit_reduced(low: Lowering, target: Buffer, value: Expr, axes: tuple[Expr, ...]) -> View:
    """Store a value that contains reductions over `axes`, or their unrolled form."""
    reduces = any(node.op == "reduce" for node in walk(value))
    low.emit(target, positions(target.shape), value, axes if reduces else ())
    return low.whole(target)


def identity(kind: str, dtype: DType) -> Expr:
    """The result of an empty reduction."""
    if kind not in IDENTITIES:
        raise FallbackToAten("an extreme of nothing")
    return const(IDENTITIES[kind], dtype)


def computable(x: View, like: torch.Tensor) -> None:
    if x.dtype.kind == "x" or dtype_of(like.dtype).kind == "x":
        raise FallbackToAten("a type that is not generated")


def _lower_reduction(
    kind: str, low: Lowering, like: torch.Tensor, x: View, dim: Dims = None, keepdim: bool = False,
    **_: Any,
) -> View:  # fmt: skip
    computable(x, like)
    dtype = dtype_of(like.dtype)
    work = Reducer(low, x, reduced_dims(x, dim))
    return work.emit(
        low.buffer(like),
        lambda kept: work.value(kind, lambda p: element(x, p, dtype), kept),
    )


rule("sum.dim_IntList", "sum.default")(partial(_lower_reduction, "sum"))
rule("amax")(partial(_lower_reduction, "max"))
rule("amin")(partial(_lower_reduction, "min"))
rule("max.default")(partial(_lower_reduction, "max"))
rule("min.default")(partial(_lower_reduction, "min"))


@rule("prod.default", "prod.dim_int")
def _prod(
    low: Lowering, like: torch.Tensor, x: View, dim: Dims = None, keepdim: bool = False, **_: Any
) -> View:
    """In f64 where that is cheap. With factors near one, short products in f32 round towards one
    side: a value between two floats above one rounds to the lower one more often if a factor is
    below one. A long product would accumulate that bias."""
    computable(x, like)
    dtype = dtype_of(like.dtype)
    work = Reducer(low, x, reduced_dims(x, dim))
    wide = F64 if dtype is F32 and low.target.cheap_f64_sums else dtype.compute

    def value_at(kept: list[Expr]) -> Expr:
        whole = work.value("prod", lambda p: cast(element(x, p, dtype), wide), kept)
        return cast(whole, dtype.compute)

    return work.emit(low.buffer(like), value_at)


def _lower_truth(
    kind: str, low: Lowering, like: torch.Tensor, x: View, dim: Dims = None, keepdim: bool = False
) -> View:
    """With an empty `dim` nothing is reduced; other reductions take an empty list for all."""
    computable(x, like)
    listed = dim is not None and not isinstance(dim, int)
    work = Reducer(low, x, reduced_dims(x, dim) if not listed or dim else [])

    def value_at(kept: list[Expr]) -> Expr:
        value = work.value(kind, lambda p: truth(element(x, p, x.dtype)), kept)
        return cast(value, dtype_of(like.dtype))  # uint8 keeps its type in eager

    return work.emit(low.buffer(like), value_at)


rule("any")(partial(_lower_truth, "any"))
rule("all")(partial(_lower_truth, "all"))


@rule("mean.default", "mean.dim")
def _mean(
    low: Lowering, like: torch.Tensor, x: View, dim: Dims = None, keepdim: bool = False, **_: Any
) -> View:
    computable(x, like)
    dtype = dtype_of(like.dtype)
    work = Reducer(low, x, reduced_dims(x, dim))

    def value_at(kept: list[Expr]) -> Expr:
        total = work.value("sum", lambda p: element(x, p, dtype), kept)
        return apply("div", total, number_as(work.count, total.dtype))

    return work.emit(low.buffer(like), value_at)


def _lower_argument(
    kind: str, low: Lowering, like: torch.Tensor, x: View, dim: int | None = None,
    keepdim: bool = False,
) -> View:  # fmt: skip
    computable(x, like)
    work = Reducer(low, x, reduced_dims(x, dim))
    if not at_least(work.count, ONE):
        raise FallbackToAten("the position of an extreme of nothing")
    return work.emit(
        low.buffer(like), lambda kept: work.value(kind, lambda p: comparable(x, p), kept)
    )


def comparable(x: View, position: tuple[Expr, ...]) -> Expr:
    """A bool is compared as a small integer."""
    value = widen(x.at(position), x.dtype)
    return cast(value, dtype_of(torch.uint8)) if value.dtype is BOOL else value


rule("argmax")(partial(_lower_argument, "argmax"))
rule("argmin")(partial(_lower_argument, "argmin"))


def _lower_extreme(
    kind: str, low: Lowering, like: list[torch.Tensor], x: View, dim: int, keepdim: bool = False
) -> list[View]:
    values = _lower_reduction(kind, low, like[0], x, dim, keepdim)
    return [values, _lower_argument("arg" + kind, low, like[1], x, dim, keepdim)]


rule("max.dim")(partial(_lower_extreme, "max"))
rule("min.dim")(partial(_lower_extreme, "min"))


def _var_mean(
    low: Lowering, like: torch.Tensor, x: View, dim: Dims, correction: Any
) -> tuple[View, Callable[[torch.Tensor], View]]:
    """The variance over `dim`, and a function that emits the mean."""
    computable(x, like)
    dtype = dtype_of(like.dtype)
    work = Reducer(low, x, reduced_dims(x, dim))
    shape = sizes(like.shape)
    about = low.contiguous_buffer(shape, dtype.compute)

    def about_at(kept: list[Expr]) -> Expr:
        total = work.value("sum", lambda p: element(x, p, dtype), kept)
        return apply("div", total, number_as(work.count, total.dtype))

    center = work.emit(about, about_at)
    summing = "wide_sum" if low.target.cheap_f64_sums else "sum"

    def distance(p: tuple[Expr, ...]) -> Expr:
        return apply("sub", element(x, p, dtype), center.at(positions(shape)))

    def squared(p: tuple[Expr, ...]) -> Expr:
        return apply("mul", distance(p), distance(p))

    def sums_at(kept: list[Expr]) -> tuple[Expr, Expr]:
        """The sums of squares and of distances; the latter, small corrections, need no f64."""
        squares = work.value(summing, squared, kept)
        return squares, cast(work.value("sum", distance, kept), squares.dtype)

    def variance_at(kept: list[Expr]) -> Expr:
        squares, off = sums_at(kept)
        spread = _corrected_variance(squares, off, dtype.compute, work.count, correction)
        return cast(spread, dtype.compute)

    def mean_at(kept: list[Expr]) -> Expr:
        squares, off = sums_at(kept)
        wide = cast(center.at(positions(shape)), off.dtype)
        mean = apply("add", wide, _mean_correction(squares, off, dtype.compute, work.count))
        return cast(mean, dtype.compute)

    variance = work.emit(low.buffer(like), variance_at)
    return variance, lambda like: work.emit(low.buffer(like), mean_at)


def _mean_correction(squares: Expr, off: Expr, given: DType, count: Expr) -> Expr:
    """The correction of the mean. If it is less than an ulp of a typical distance, as for data
    about zero, it is only rounding error of the distances, and is dropped."""
    dtype, unit = off.dtype, EPSILON[given]
    number = number_as(count, dtype)
    share = apply("div", off, number)
    if count.is_const and count is not ZERO and dtype is not given:
        share = apply("mul", off, const(1 / count.number, dtype))
    least = apply("mul", apply("mul", number, squares), const(unit * unit, dtype))
    counts = apply("gt", apply("mul", off, off), least)
    return apply("where", counts, share, apply("mul", share, const(0.0, dtype)))


def _corrected_variance(
    squares: Expr, off: Expr, given: DType, count: Expr, correction: Any
) -> Expr:
    """The variance from the sums of squared distances and of distances, for values of the dtype
    `given`. Rounding must not make it negative."""
    dtype, lost = squares.dtype, 1 if correction is None else correction
    number = number_as(count, dtype)
    if squares.dtype is not given and count.is_const:
        # Squares of f32 do not overflow in f64, and this form waits for no division:
        # (n sum(d^2) - sum(d)^2) / (n (n - lost)).
        both = apply("mul", number, squares), apply("mul", off, off)
        total = apply("max", apply("sub", *both), const(0, dtype))
        whole = count.number * max(count.number - lost, 0)
        return apply("mul", total, const(1 / whole if whole else math.inf, dtype))
    total = apply("sub", squares, apply("mul", off, apply("div", off, number)))
    total = apply("max", total, const(0, dtype))
    if count.is_const:
        return apply("div", total, const(max(count.number - lost, 0), dtype))
    left = apply("sub", cast(count, F64), const(lost, F64))
    freedom = apply("max", left, const(0, F64))
    return apply("div", total, cast(freedom, dtype))


@rule("var.correction")
def _variance(
    low: Lowering, like: torch.Tensor, x: View, dim: Dims = None, *, correction: Any = None,
    keepdim: bool = False,
) -> View:  # fmt: skip
    return _var_mean(low, like, x, dim, correction)[0]


@rule("var_mean.correction")
def _variance_and_mean(
    low: Lowering, like: list[torch.Tensor], x: View, dim: Dims = None, *, correction: Any = None,
    keepdim: bool = False,
) -> list[View]:  # fmt: skip
    variance, mean = _var_mean(low, like[0], x, dim, correction)
    return [variance, mean(like[1])]
