"""Depthwise convolutions in the loop IR: the parts of one, read off a nest by its tag.

In: a step that is tagged as `Depthwise`. Out: `DepthwiseParts`: a sum over taps of
`a[..., x * stride + tap, c] * w[..., tap, c]`, channels contiguous; taps may be outside the image.
Example: 3 x 3 with a stride of 2 reads `a[... + x * 192 + r1 * 96 + c]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from litz.ir.expr import Expr, apply, walk
from litz.ir.index import coefficient, simplify
from litz.ir.magnitude import is_exact
from litz.ir.patterns import Depthwise
from litz.ir.program import Kernel, Loop, tagged

_COMPARISONS = {"ge": int.__ge__, "gt": int.__gt__, "le": int.__le__, "lt": int.__lt__}


@dataclass(frozen=True)
class TapBound:
    """A condition on a tap: `along * window + last * tap + rest`, compared with zero by `op`."""

    op: str
    along: int
    last: int
    rest: int

    def holds(self, window: int, tap: int) -> bool:
        number = self.along * window + self.last * tap + self.rest
        return bool(_COMPARISONS[self.op](number, 0))


@dataclass(frozen=True)
class DepthwiseParts:
    """`node` sums `image` times `weight` over taps. Neighbouring windows are `along` an axis; the
    `last` tap axis moves along it as well, the `others` do not. Conditions say whether a tap is
    inside the image: `guards` those on the other taps, `tap_bounds` those on the last one."""

    node: Expr
    image: Expr
    weight: Expr
    channel: Expr
    along: Expr
    last: Expr
    others: tuple[Expr, ...]
    guards: tuple[Expr, ...]
    tap_bounds: tuple[TapBound, ...]

    def holds(self, window: int, tap: int) -> bool:
        """Whether a tap of a window is inside the image."""
        return all(test.holds(window, tap) for test in self.tap_bounds)


def depthwise_of(step: Loop | Kernel) -> DepthwiseParts | None:
    """The parts of a step that is tagged as a depthwise convolution."""
    found = tagged(step, Depthwise)
    if found is None:
        return None
    tag, stores = found
    return depthwise_by(tag, next(n for n in walk(stores[0].value) if n.op == "reduce"))


def depthwise_by(tag: Depthwise, node: Expr) -> DepthwiseParts | None:
    """The parts of a sum by the roles of its axes; None if a guard is no such condition."""
    image, weight = node.args[0].args[::-1] if tag.flipped else node.args[0].args
    (channel,), (along,), (*others, last) = tag.channel, tag.along, tag.taps
    tests = list(_tests(image.guard))
    guards = tuple(t for t in tests if along not in t.axes and last not in t.axes)
    tap_bounds = [_test(t, along, last) for t in tests if t not in guards]
    if None in tap_bounds or any(channel in t.axes for t in guards):
        return None
    found = tuple(t for t in tap_bounds if t is not None)
    return DepthwiseParts(node, image, weight, channel, along, last, tuple(others), guards, found)


def _tests(guard: Expr | None) -> Iterator[Expr]:
    if guard is not None and guard.op == "and":
        for part in guard.args:
            yield from _tests(part)
    elif guard is not None:
        yield guard


def _test(test: Expr, along: Expr, last: Expr) -> TapBound | None:
    """A guard as an affine condition on both axes; None if it is none."""
    if test.op not in _COMPARISONS or not test.axes <= {along, last}:
        return None
    if not all(is_exact(a) for a in test.args):
        return None
    number = simplify(apply("sub", *test.args))
    factors: list[int] = []
    for variable in (along, last):
        found = coefficient(number, variable)
        if found is None or not found[0].is_const:
            return None
        factors.append(found[0].number)
        number = found[1]
    return TapBound(test.op, factors[0], factors[1], number.number) if number.is_const else None
