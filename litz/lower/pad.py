"""Reflection and replication padding, and their backward.

In: a view and the padding before and after each of its last dimensions. Out: one loop that reads
each element from its source position. The backward is a gather too: an element sums the gradients
of the positions that read it. Example, replication by one at both ends of four elements:
`y[i0] = x[min(max(i0 - 1, 0), 3)]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from litz.ir.expr import Expr, apply, integer
from litz.ir.index import ZERO, simplify
from litz.lower.join import all_of, between
from litz.lower.pool import Window
from litz.lower.reduce import emit_reduced, reduce_or_unroll
from litz.lower.registry import rule
from litz.lower.values import Lowering, View, positions, widen


def _shifted(i: Expr, by: int) -> Expr:
    return simplify(apply("add", i, integer(by)))


def _mirrored(i: Expr, around: int) -> Expr:
    return simplify(apply("sub", integer(around), i))


@dataclass(frozen=True)
class Reflected:
    """Mirrored at each end: an element appears in its own place, left of it and right of it."""

    extent: int
    before: int
    behind: int

    @property
    def count(self) -> int:
        return 3

    def source(self, i: Expr) -> Expr:
        """The operand's position that position `i` of the result reads."""
        last = self.extent - 1
        into = apply("abs", _shifted(i, -self.before))
        return _mirrored(apply("abs", _mirrored(into, last)), last)

    def place(self, i: Expr, r: Expr) -> Expr:
        left = _mirrored(i, self.before)
        right = _mirrored(i, self.before + 2 * (self.extent - 1))
        mirrored = apply("where", apply("eq", r, integer(1)), left, right)
        return apply("where", apply("eq", r, ZERO), _shifted(i, self.before), mirrored)

    def inside(self, i: Expr, r: Expr) -> Expr:
        """The end elements themselves are not mirrored; a negative pad crops."""
        first = apply("and", apply("eq", r, integer(1)), apply("eq", i, ZERO))
        end = apply("eq", i, integer(self.extent - 1))
        last = apply("and", apply("eq", r, integer(2)), end)
        inner = apply("not", apply("or", first, last))
        return all_of([inner, _within(self, self.place(i, r))])


@dataclass(frozen=True)
class Replicated:
    """The first and the last element are repeated."""

    extent: int
    before: int
    behind: int

    @property
    def count(self) -> int:
        only = self.extent == 1
        most = self.before + self.behind if only else max(self.before, self.behind)
        return 1 + max(most, 0)

    def source(self, i: Expr) -> Expr:
        into = apply("max", _shifted(i, -self.before), ZERO)
        return apply("min", into, integer(self.extent - 1))

    def place(self, i: Expr, r: Expr) -> Expr:
        if self.extent == 1:
            return r
        away = apply("where", apply("eq", i, ZERO), apply("neg", r), r)
        return apply("add", _shifted(i, self.before), away)

    def inside(self, i: Expr, r: Expr) -> Expr:
        ends = apply("or", apply("eq", i, ZERO), apply("eq", i, integer(self.extent - 1)))
        shown = apply("or", apply("eq", r, ZERO), ends)
        return all_of([shown, _within(self, self.place(i, r))])


Side = Reflected | Replicated


def _within(side: Side, place: Expr) -> Expr:
    return between(place, 0, side.before + side.extent + side.behind)


def _sides(kind: type[Side], extents: Sequence[Expr], pad: Sequence[int]) -> list[Side]:
    """`pad` lists the last dimension first."""
    pairs = reversed(list(zip(pad[::2], pad[1::2], strict=True)))
    rank = len(pad) // 2
    return [kind(n.number, *pair) for n, pair in zip(extents[-rank:], pairs, strict=True)]


def _lower_pad(
    kind: type[Side], low: Lowering, like: torch.Tensor, x: View,
    pad: Sequence[int],
) -> View:  # fmt: skip
    sides = _sides(kind, x.shape, pad)

    def value(p: tuple[Expr, ...]) -> Expr:
        lead, here = p[: -len(sides)], p[-len(sides) :]
        place = [side.source(i) for side, i in zip(sides, here, strict=True)]
        return widen(x.at((*lead, *place)), x.dtype)

    return low.pointwise(like, value)


def _lower_pad_backward(
    kind: type[Side], low: Lowering, like: torch.Tensor, grad: View,
    x: View, pad: Sequence[int],
) -> View:  # fmt: skip
    window = Window(_sides(kind, x.shape, pad))
    target = low.buffer(like)
    place, inside = window.at(positions(target.shape))
    total = reduce_or_unroll(low, "sum", window.axes, widen(grad.at(place, inside), grad.dtype))
    return emit_reduced(low, target, total, window.axes)


for _rank in (1, 2, 3):
    rule(f"reflection_pad{_rank}d")(partial(_lower_pad, Reflected))
    rule(f"replication_pad{_rank}d")(partial(_lower_pad, Replicated))
    rule(f"reflection_pad{_rank}d_backward")(partial(_lower_pad_backward, Reflected))
    rule(f"replication_pad{_rank}d_backward")(partial(_lower_pad_backward, Replicated))
