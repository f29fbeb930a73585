"""Pools over one to three dimensions: maximum, average, adaptive, and their backward.

In: a view and the geometry of the windows. Out: a reduction over the taps of a window, with guarded
loads at the borders; small windows are unrolled, except over long rows. Example, a maximum of two
with a stride of two and a padding of one, where `in` stands for `i0 * 2 + r0 >= 1`:

    y[i0] = reduce.max(where(in, guarded(in, x[i0 * 2 + r0 - 1]), -inf), r0)

The backward is a gather as well: an element of the input sums over the windows that contain it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Protocol

import torch

from litz.ir.expr import Expr, apply, axis, cast, const, integer
from litz.ir.index import ONE, ZERO, floordiv, modulo, ravel, simplify
from litz.ir.program import buffer_bytes
from litz.lower.join import all_of, between
from litz.lower.reduce import emit_reduced, reduce_or_unroll
from litz.lower.registry import FallbackToAten, rule
from litz.lower.values import Lowering, View, positions, widen

Sizes = int | Sequence[int]
Position = tuple[Expr, ...]
Count = Callable[[Position], list[Expr]]  # a window's position -> its size along each dimension


# -- windows ---------------------------------------------------------------------------------


class Taps(Protocol):
    """One dimension of a window: the positions that the window at `i` reads."""

    @property
    def count(self) -> int:
        """The maximum number of taps of any window."""

    def place(self, i: Expr, r: Expr) -> Expr:
        """The position of tap `r`."""

    def inside(self, i: Expr, r: Expr) -> Expr:
        """Whether the window has a tap `r`, and it is inside the tensor."""


def _affine(i: Expr, scale: int, shift: int) -> Expr:
    return simplify(apply("add", apply("mul", i, integer(scale)), integer(shift)))


def _plus(i: Expr, r: Expr) -> Expr:
    return simplify(apply("add", i, r))


@dataclass(frozen=True)
class Strided:
    """Taps at equal distances: tap r of window i is at i * stride - padding + r * dilation."""

    extent: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    @property
    def count(self) -> int:
        return self.kernel

    def place(self, i: Expr, r: Expr) -> Expr:
        return _plus(_affine(i, self.stride, -self.padding), _affine(r, self.dilation, 0))

    def inside(self, i: Expr, r: Expr) -> Expr:
        return between(self.place(i, r), 0, self.extent)

    def size(self, i: Expr, with_padding: bool) -> Expr:
        """The number of taps that an average divides by; the padding is the limit."""
        first = _affine(i, self.stride, -self.padding)
        room = self.extent + (self.padding if with_padding else 0)
        end = _least(_plus(first, integer(self.kernel)), room)
        return simplify(apply("sub", end, first if with_padding else _positive(first)))


@dataclass(frozen=True)
class Adaptive:
    """Window i of n is i * extent / n (rounded down) up to (i + 1) * extent / n (rounded up)."""

    extent: int
    windows: int

    @property
    def count(self) -> int:
        n, extent = self.windows, self.extent
        return max((-(-(i + 1) * extent // n) - i * extent // n for i in range(n)), default=0)

    def place(self, i: Expr, r: Expr) -> Expr:
        return _plus(self._first(i), r)

    def inside(self, i: Expr, r: Expr) -> Expr:
        return all_of([]) if self._even else apply("lt", self.place(i, r), self._end(i))

    def size(self, i: Expr) -> Expr:
        return simplify(apply("sub", self._end(i), self._first(i)))

    @property
    def _even(self) -> bool:
        return self.extent % self.windows == 0

    def _first(self, i: Expr) -> Expr:
        return floordiv(_affine(i, self.extent, 0), integer(self.windows))

    def _end(self, i: Expr) -> Expr:
        if self._even:
            return _plus(self._first(i), integer(self.count))
        above = _affine(i, self.extent, self.extent + self.windows - 1)
        return floordiv(above, integer(self.windows))


@dataclass(frozen=True)
class Covering:
    """The windows of `of` that contain position i of its operand, the last one first."""

    of: Strided
    windows: int

    @property
    def span(self) -> int:
        return (self.of.kernel - 1) * self.of.dilation + 1

    @property
    def count(self) -> int:
        return -(-self.span // self.of.stride)

    def place(self, i: Expr, r: Expr) -> Expr:
        last = floordiv(_affine(i, 1, self.of.padding), integer(self.of.stride))
        return simplify(apply("sub", last, r))

    def inside(self, i: Expr, r: Expr) -> Expr:
        step = self.of.stride
        into = modulo(_affine(i, 1, self.of.padding), integer(step))
        reached = between(_plus(into, _affine(r, step, 0)), 0, self.span)
        return all_of([reached, between(self.place(i, r), 0, self.windows)])


def _least(i: Expr, limit: int) -> Expr:
    return apply("min", i, integer(limit))


def _times(a: Expr, b: Expr) -> Expr:
    return integer(a.number * b.number) if a.is_const and b.is_const else apply("mul", a, b)


def _positive(i: Expr) -> Expr:
    return apply("max", i, ZERO)


class Window:
    """Windows over the last dimensions of an operand; the others stay as they are."""

    def __init__(self, taps: Sequence[Taps]) -> None:
        self.taps = taps
        self.bound = [ZERO if t.count == 1 else axis(f"r{k}", t.count) for k, t in enumerate(taps)]
        self.axes = tuple(r for r in self.bound if r is not ZERO)

    def at(self, p: Position) -> tuple[Position, Expr]:
        """The operand's position under the window at `p`, and whether it is inside."""
        lead, here = p[: -len(self.taps)], p[-len(self.taps) :]
        taps = list(zip(self.taps, here, self.bound, strict=True))
        inside = all_of([t.inside(i, r) for t, i, r in taps])
        return (*lead, *(t.place(i, r) for t, i, r in taps)), inside


def _geometry(
    x: View, rank: int, kernel: Sizes, stride: Sizes = (), padding: Sizes = 0, dilation: Sizes = 1
) -> list[Strided]:
    """One number may stand for all dimensions; without a stride it is the kernel's size."""

    def listed(sizes: Sizes) -> list[int]:
        given = [sizes] if isinstance(sizes, int) else list(sizes)
        return given * rank if len(given) == 1 else given

    kernels = listed(kernel)
    columns = (kernels, listed(stride) or kernels, listed(padding), listed(dilation))
    extents = [n.number for n in x.shape[-rank:]]
    return [Strided(*row) for row in zip(extents, *columns, strict=True)]


def _generated(x: View) -> None:
    if x.dtype.kind not in "fiu":
        raise FallbackToAten("a type that is not generated")


def _has_long_rows(low: Lowering, x: View, rank: int) -> bool:
    """Whether each tap of a window is a row of channels that is best read whole. Such a window
    stays a reduction however small it is: unrolled, its rows would be read side by side."""
    if len(x.shape) == rank or x.strides[-rank - 1] is not ONE:
        return False
    return low.target.reads_row_by_row(
        x.shape[-rank - 1].hint * x.dtype.bytes, buffer_bytes(x.buffer)
    )


# -- maximum ---------------------------------------------------------------------------------


def _lower_max(
    low: Lowering, like: Sequence[torch.Tensor], x: View, taps: Sequence[Taps]
) -> list[View]:
    """The maximum, then its index, found by comparing, so that unused indices cost nothing."""
    _generated(x)
    window = Window(taps)
    dtype = x.dtype.compute
    target = low.buffer(like[0])
    place, inside = window.at(positions(target.shape))
    here = widen(x.at(place, inside), x.dtype)
    least = const(-math.inf if dtype.is_float else torch.iinfo(like[0].dtype).min, dtype)
    candidate = here if inside.is_const else apply("where", inside, here, least)
    best = reduce_or_unroll(low, "max", window.axes, candidate, _has_long_rows(low, x, len(taps)))
    values = emit_reduced(low, target, best, window.axes)

    found = widen(values.at(positions(target.shape)), x.dtype)
    flat = ravel(place[-len(taps) :], x.shape[-len(taps) :])
    where = _first_hit(low, window, here, inside, found, flat, _volume(x, len(taps)) - 1)
    return [values, emit_reduced(low, low.buffer(like[1]), where, window.axes)]


def _first_hit(
    low: Lowering, window: Window, here: Expr, inside: Expr, best: Expr, flat: Expr, last: int
) -> Expr:
    """The first position of the maximum, as in eager; with NaNs, the last NaN."""
    end = integer(last)
    hit = apply("eq", here, best)
    if not here.dtype.is_float:
        chosen = apply("where", all_of([inside, hit]), flat, end)
        return reduce_or_unroll(low, "min", window.axes, chosen)
    backwards = apply("isnan", best)
    hit = all_of([inside, apply("or", hit, apply("isnan", here))])
    number = apply("where", backwards, apply("sub", end, flat), flat)
    first = reduce_or_unroll(low, "min", window.axes, apply("where", hit, number, end))
    return apply("where", backwards, apply("sub", end, first), first)


def _volume(x: View, rank: int) -> int:
    return math.prod(n.number for n in x.shape[-rank:])


def _lower_max_backward(
    low: Lowering, like: torch.Tensor, grad: View, indices: View, taps: Sequence[Taps]
) -> View:
    """Each element sums the gradients of the windows whose maximum it is."""
    _generated(grad)
    window = Window(taps)
    target = low.buffer(like)
    here = positions(target.shape)
    place, inside = window.at(here)
    mine = ravel(here[-len(taps) :], target.shape[-len(taps) :])
    given = widen(grad.at(place, inside), grad.dtype)
    is_mine = apply("eq", indices.at(place, inside), mine)
    share = apply("where", is_mine, given, const(0, given.dtype))
    return emit_reduced(low, target, reduce_or_unroll(low, "sum", window.axes, share), window.axes)


def _max_pool(
    rank: int, low: Lowering, like: Any, x: View, kernel: Sizes, stride: Sizes = (),
    padding: Sizes = 0, dilation: Sizes = 1, ceil_mode: bool = False,
) -> list[View]:  # fmt: skip
    return _lower_max(low, like, x, _geometry(x, rank, kernel, stride, padding, dilation))


def _max_pool_backward(
    rank: int, low: Lowering, like: torch.Tensor, grad: View, x: View, kernel: Sizes,
    stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool, indices: View,
) -> View:  # fmt: skip
    forward = _geometry(x, rank, kernel, stride, padding, dilation)
    return _lower_max_backward(low, like, grad, indices, _covering(forward, grad))


def _adaptive_max_pool(rank: int, low: Lowering, like: Any, x: View, _: Sizes) -> list[View]:
    return _lower_max(low, like, x, _adaptive(x, like[0], rank))


def _adaptive_max_pool_backward(
    rank: int, low: Lowering, like: torch.Tensor, grad: View, x: View, indices: View
) -> View:
    return _lower_max_backward(low, like, grad, indices, _adaptive(grad, like, rank))


def _covering(forward: Sequence[Strided], grad: View) -> list[Covering]:
    windows = [n.number for n in grad.shape[-len(forward) :]]
    return [Covering(f, n) for f, n in zip(forward, windows, strict=True)]


def _adaptive(x: View, like: torch.Tensor, rank: int) -> list[Adaptive]:
    """Windows of `like` over x; with swapped operands, the windows that contain an element."""
    pairs = zip(x.shape[-rank:], like.shape[-rank:], strict=True)
    return [Adaptive(n.number, int(windows)) for n, windows in pairs]


# -- average ---------------------------------------------------------------------------------


def _quotient(total: Expr, count: Expr) -> Expr:
    """Integers are divided as C++ divides them."""
    op = "div" if total.dtype.is_float else "truncdiv"
    return apply(op, total, cast(count, total.dtype))


def _lower_average(
    low: Lowering, like: torch.Tensor, x: View, taps: Sequence[Taps], count: Count
) -> View:
    """A guarded load is zero outside, and so is padding in a sum."""
    _generated(x)
    window = Window(taps)
    target = low.buffer(like)
    here = positions(target.shape)
    place, inside = window.at(here)
    given = widen(x.at(place, inside), x.dtype)
    total = reduce_or_unroll(low, "sum", window.axes, given, _has_long_rows(low, x, len(taps)))
    size = reduce(_times, count(here[-len(taps) :]))
    return emit_reduced(low, target, _quotient(total, size), window.axes)


def _lower_average_backward(
    low: Lowering, like: torch.Tensor, grad: View, taps: Sequence[Taps], count: Count
) -> View:
    """Each element sums its shares of the windows that contain it; `count` is a window's size."""
    _generated(grad)
    window = Window(taps)
    target = low.buffer(like)
    place, inside = window.at(positions(target.shape))
    given = widen(grad.at(place, inside), grad.dtype)
    # Where there is no window there is no size either: divide zero by one.
    size = reduce(_times, count(place[-len(taps) :]))
    size = size if inside.is_const or size.is_const else apply("where", inside, size, integer(1))
    share = reduce_or_unroll(low, "sum", window.axes, _quotient(given, size))
    return emit_reduced(low, target, share, window.axes)


def _average_pool(
    rank: int, low: Lowering, like: torch.Tensor, x: View, kernel: Sizes, stride: Sizes = (),
    padding: Sizes = 0, ceil_mode: bool = False, with_padding: bool = True,
    divisor: int | None = None,
) -> View:  # fmt: skip
    taps = _geometry(x, rank, kernel, stride, padding)
    return _lower_average(low, like, x, taps, partial(_sizes, taps, with_padding, divisor))


def _average_pool_backward(
    rank: int, low: Lowering, like: torch.Tensor, grad: View, x: View, kernel: Sizes,
    stride: Sizes, padding: Sizes, ceil_mode: bool, with_padding: bool, divisor: int | None,
) -> View:  # fmt: skip
    forward = _geometry(x, rank, kernel, stride, padding)
    count = partial(_sizes, forward, with_padding, divisor)
    return _lower_average_backward(low, like, grad, _covering(forward, grad), count)


def _sizes(
    taps: Sequence[Strided], with_padding: bool, divisor: int | None, window: Position
) -> list[Expr]:
    if divisor is not None:
        return [integer(divisor)]
    return [t.size(i, with_padding) for t, i in zip(taps, window, strict=True)]


def _adaptive_average_pool(rank: int, low: Lowering, like: torch.Tensor, x: View, *_: Any) -> View:
    taps = _adaptive(x, like, rank)
    return _lower_average(low, like, x, taps, partial(_adaptive_sizes, taps))


def _adaptive_average_pool_backward(
    rank: int, low: Lowering, like: torch.Tensor, grad: View, x: View
) -> View:
    forward = [
        Adaptive(n.number, m.number)
        for n, m in zip(x.shape[-rank:], grad.shape[-rank:], strict=True)
    ]
    taps = _adaptive(grad, like, rank)
    return _lower_average_backward(low, like, grad, taps, partial(_adaptive_sizes, forward))


def _adaptive_sizes(taps: Sequence[Adaptive], window: Position) -> list[Expr]:
    return [t.size(i) for t, i in zip(taps, window, strict=True)]


for _rank in (2, 3):  # pools over one dimension are captured as pools over two
    rule(f"max_pool{_rank}d_with_indices")(partial(_max_pool, _rank))
    rule(f"max_pool{_rank}d_with_indices_backward")(partial(_max_pool_backward, _rank))
    rule(f"adaptive_max_pool{_rank}d")(partial(_adaptive_max_pool, _rank))
    rule(f"adaptive_max_pool{_rank}d_backward")(partial(_adaptive_max_pool_backward, _rank))
    rule(f"avg_pool{_rank}d")(partial(_average_pool, _rank))
    rule(f"avg_pool{_rank}d_backward")(partial(_average_pool_backward, _rank))
    rule(f"_adaptive_avg_pool{_rank}d")(partial(_adaptive_average_pool, _rank))
    rule(f"_adaptive_avg_pool{_rank}d_backward")(partial(_adaptive_average_pool_backward, _rank))
