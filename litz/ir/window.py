"""Windows in the loop IR: the parts of a depthwise convolution, read off a nest by its tag.

In: a step that is tagged as `Depthwise`. Out: `Windows`, a sum over taps of a[..., x * stride +
tap, c] * w[..., tap, c] with channels side by side; taps may lie outside of the image. Example: 3 x
3 with a stride of 2 reads a[... + x * 192 + r1 * 96 + c].
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
class Test:
    """along * window + last * tap + rest, compared with zero."""

    op: str
    along: int
    last: int
    rest: int

    def holds(self, window: int, tap: int) -> bool:
        number = self.along * window + self.last * tap + self.rest
        return bool(_COMPARISONS[self.op](number, 0))


@dataclass(frozen=True)
class Windows:
    """`node` sums `image` times `weight` over taps. Windows lie side by side `along` an axis; the
    `last` tap moves along it as well, the `others` do not. `tests` say whether a tap lies inside
    of the image: `across` those of the other taps, `beside` those of the last one."""

    node: Expr
    image: Expr
    weight: Expr
    channel: Expr
    along: Expr
    last: Expr
    others: tuple[Expr, ...]
    across: tuple[Expr, ...]
    beside: tuple[Test, ...]

    def holds(self, window: int, tap: int) -> bool:
        """Whether a tap of a window lies inside of the image."""
        return all(test.holds(window, tap) for test in self.beside)


def windows_of(step: Loop | Kernel) -> Windows | None:
    """The windows of a step that is tagged as a depthwise convolution."""
    found = tagged(step, Depthwise)
    if found is None:
        return None
    tag, stores = found
    return windows_by(tag, next(n for n in walk(stores[0].value) if n.op == "reduce"))


def windows_by(tag: Depthwise, node: Expr) -> Windows | None:
    """The windows of a sum by the roles of its axes; None if its guards are no such tests."""
    image, weight = node.args[0].args[::-1] if tag.flipped else node.args[0].args
    (channel,), (along,), (*others, last) = tag.channel, tag.along, tag.taps
    tests = list(_tests(image.guard))
    across = tuple(t for t in tests if along not in t.axes and last not in t.axes)
    beside = [_test(t, along, last) for t in tests if t not in across]
    if None in beside or any(channel in t.axes for t in across):
        return None
    found = tuple(t for t in beside if t is not None)
    return Windows(node, image, weight, channel, along, last, tuple(others), across, found)


def _tests(guard: Expr | None) -> Iterator[Expr]:
    if guard is not None and guard.op == "and":
        for part in guard.args:
            yield from _tests(part)
    elif guard is not None:
        yield guard


def _test(test: Expr, along: Expr, last: Expr) -> Test | None:
    """A comparison of a sum of both axes."""
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
    return Test(test.op, factors[0], factors[1], number.number) if number.is_const else None
