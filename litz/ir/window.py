"""Windows in the loop IR: which kernels convolve each channel by itself, and what their axes are.

In: a `Loop` or a `Kernel`. Out: `Windows`, or None. Nothing marks it but its form, a sum over taps
of a[..., x * stride + tap, c] * w[..., tap, c] with channels side by side; taps may lie outside of
the image. Example: 3 x 3 with a stride of 2 reads a[... + x * 192 + r1 * 96 + c].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from litz.ir.dtypes import F32
from litz.ir.expr import Expr, apply, extent_of
from litz.ir.index import coefficient, simplify
from litz.ir.magnitude import is_exact
from litz.ir.product import stride_of
from litz.ir.program import Kernel, Loop, only_reduction

# A longer sum is put aside from time to time, to stay exact: it is a reduction like others.
MOST_TAPS = 1024


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


def loop_windows(loop: Loop) -> Windows | None:
    """The windows of a loop that slides them over an image: one of its indices moves with both the
    window and the tap."""
    (store,) = loop.stores
    found = _windows_in(store.value, loop.axes)
    if found is None or store.scatters:
        return None
    both = any({found.along, found.last} <= i.axes for i in found.image.index)
    return found if both else None


def kernel_windows(kernel: Kernel) -> Windows | None:
    """The windows of a kernel, if what follows works on its elements one by one."""
    node = only_reduction(kernel)
    return None if node is None else _windows_in(node, kernel.outer)


def _windows_in(node: Expr, outer: tuple[Expr, ...]) -> Windows | None:
    if node.op != "reduce" or node.attr[0] != "sum" or extent_of(node.attr[1]) > MOST_TAPS:
        return None
    (term,) = node.args
    if term.op != "mul" or term.dtype is not F32:
        return None
    for image, weight in (term.args, term.args[::-1]):
        if image.op == weight.op == "load" and weight.guard is None:
            found = _windows(outer, node, image, weight)
            if found is not None:
                return found
    return None


def _windows(outer: tuple[Expr, ...], node: Expr, image: Expr, weight: Expr) -> Windows | None:
    *others, last = node.attr[1]
    lanes = [a for a in outer if a in weight.axes]
    around = [a for a in outer if a in image.axes and a not in lanes]
    if len(lanes) != 1 or not around or set(outer) - image.axes:
        return None
    (channel,), along = lanes, around[-1]
    if any(stride_of(n, channel) != 1 or stride_of(n, last) is None for n in (image, weight)):
        return None
    if stride_of(image, along) is None:
        return None
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
