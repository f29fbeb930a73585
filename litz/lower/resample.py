"""Interpolation: grid_sampler over two and three dimensions.

In: a view and a grid of coordinates, -1 to 1 along each dimension. Out: one loop that sums weighted
elements around each coordinate: two per dimension (linear), one (nearest) or four (cubic), each
read only if it is inside the tensor. Example, linear along one dimension, with f = x's coordinate:
`y = (1 - (f - floor(f))) * x[floor(f)] + (f - floor(f)) * x[floor(f) + 1]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import torch

from litz.ir.dtypes import I64
from litz.ir.expr import Expr, apply, cast, const, integer
from litz.lower.join import all_of
from litz.lower.registry import rule
from litz.lower.values import Lowering, View, widen

# ATen's codes of the interpolation and padding modes.
LINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
CUBIC_SHARPNESS = -0.75  # the coefficient of cubic convolution, as in eager


def _calculate(op: str, x: Expr, y: float | Expr) -> Expr:
    return apply(op, x, y if isinstance(y, Expr) else const(y, x.dtype))


_plus, _minus, _times = (partial(_calculate, op) for op in ("add", "sub", "mul"))


@dataclass(frozen=True)
class Tap:
    """An element along one dimension: its position, whether it exists, and its weight."""

    place: Expr
    inside: Expr
    weight: Expr | None = None


@dataclass(frozen=True)
class Dimension:
    """One dimension of the operand, and how coordinates map to it."""

    extent: int
    padding: int
    corners: bool  # -1 and 1 are the centres of the outermost elements, not their outer edges

    def located(self, coordinate: Expr) -> Expr:
        """A coordinate in units of elements."""
        scaled = _times(_plus(coordinate, 1), (self.extent - self.corners) / 2)
        return scaled if self.corners else _minus(scaled, 0.5)

    def padded(self, f: Expr) -> Expr:
        """A position outside, moved inside by the padding mode."""
        if self.padding == ZEROS:
            return f
        return self._clipped(self._reflected(f) if self.padding == REFLECTION else f)

    def _clipped(self, f: Expr) -> Expr:
        """NaN becomes zero, as in eager."""
        positive = apply("where", _calculate("gt", f, 0), f, const(0, f.dtype))
        return _calculate("min", positive, self.extent - 1)

    def _reflected(self, f: Expr) -> Expr:
        low = 0.0 if self.corners else -0.5
        span = 2 * (self.extent - self.corners)
        if span == 0:
            return const(0, f.dtype)
        away = apply("abs", _minus(f, low))
        turns = apply("trunc", _calculate("div", away, span))
        rest = apply("sub", away, _times(turns, span))
        back = apply("sub", const(span, f.dtype), rest)
        return _plus(apply("min", rest, back), low)

    def tap(self, f: Expr, weight: Expr | None = None) -> Tap:
        """The element at a whole number; NaN is outside."""
        above, below = _calculate("ge", f, 0), _calculate("le", f, self.extent - 1)
        inside = all_of([above, below])
        place = cast(apply("where", inside, f, const(0, f.dtype)), I64)
        return Tap(place, inside, weight)

    def taps(self, coordinate: Expr, interpolation: int) -> list[Tap]:
        """The elements that are read for a coordinate."""
        f = self.located(coordinate)
        if interpolation == NEAREST:
            return [self.tap(apply("round", self.padded(f)))]
        f = f if interpolation == CUBIC else self.padded(f)
        first = apply("floor", f)
        past = apply("sub", f, first)
        if interpolation == CUBIC:
            weights = _cubic_weights(past)
            places = [self.padded(_plus(first, k - 1)) for k in range(4)]
            return [self.tap(p, w) for p, w in zip(places, weights, strict=True)]
        left = apply("sub", const(1, f.dtype), past)
        return [self.tap(first, left), self.tap(_plus(first, 1), past)]


def _cubic_weights(t: Expr) -> list[Expr]:
    """Cubic convolution of elements at -1, 0, 1 and 2, read at t."""
    a = CUBIC_SHARPNESS

    def near(x: Expr) -> Expr:
        """((a + 2) x - (a + 3)) x^2 + 1"""
        return _plus(_times(_times(_minus(_times(x, a + 2), a + 3), x), x), 1)

    def far(x: Expr) -> Expr:
        """((a x - 5 a) x + 8 a) x - 4 a"""
        return _minus(_times(_plus(_times(_minus(_times(x, a), 5 * a), x), 8 * a), x), 4 * a)

    one, two = const(1, t.dtype), const(2, t.dtype)
    return [far(_plus(t, 1)), near(t), near(apply("sub", one, t)), far(apply("sub", two, t))]


def _weighed(
    taps: Sequence[Sequence[Tap]], read: Callable[[list[Tap]], Expr], chosen: list[Tap]
) -> Expr:
    """The weighted sum over the taps of each dimension, the last dimension innermost."""
    if not taps:
        return read(chosen)
    terms = []
    for tap in taps[0]:
        value = _weighed(taps[1:], read, [*chosen, tap])
        terms.append(value if tap.weight is None else apply("mul", value, tap.weight))
    return reduce(partial(apply, "add"), terms)


def _lower_grid_sampler(
    rank: int, low: Lowering, like: torch.Tensor, x: View, grid: View, interpolation: int,
    padding: int, corners: bool,
) -> View:  # fmt: skip
    dimensions = [Dimension(n.number, padding, corners) for n in x.shape[-rank:]]

    def value(p: tuple[Expr, ...]) -> Expr:
        batch, channel, *here = p

        def coordinate(d: int) -> Expr:
            """The grid lists the last dimension first."""
            return widen(grid.at((batch, *here, integer(rank - 1 - d))), grid.dtype)

        def read(chosen: list[Tap]) -> Expr:
            place = (batch, channel, *(tap.place for tap in chosen))
            return widen(x.at(place, all_of([tap.inside for tap in chosen])), x.dtype)

        taps = [dim.taps(coordinate(d), interpolation) for d, dim in enumerate(dimensions)]
        return _weighed(taps, read, [])

    return low.pointwise(like, value)


rule("grid_sampler_2d")(partial(_lower_grid_sampler, 2))
rule("grid_sampler_3d")(partial(_lower_grid_sampler, 3))
