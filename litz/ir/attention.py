"""Attention in the loop IR: which stored values are one, and what its parts are.

In: a stored value. Out: `Attention`, or None. Nothing marks attention but its form, a mean of
values weighed by the exponentials of scores, in which a score is any expression that holds one dot
product of a query and a key: scale, bias, mask and softcap are part of it. Example, over r0 < 64
and r1 < 128:

    s = sum over r0 of q[i0, r0] * k[r1, r0] * 0.125
    w = exp(s - max over r1 of s)
    o[i0, i1] = (sum over r1 of w * v[r1, i1]) / (sum over r1 of w)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from litz.ir.dtypes import BOOL, U8, DType
from litz.ir.expr import Expr, apply, const, integer, reduce, walk
from litz.ir.index import coefficient, flat_index, simplify, to_poly
from litz.ir.program import Kernel, Loop

Axes = tuple[Expr, ...]


@dataclass(frozen=True)
class Attention:
    """`dot` is the sum over `depth` of query times key; `score` holds it, at a row and a column;
    `value` is what a column has at each place of `width`. Query, key and value are loads."""

    dot: Expr
    query: Expr
    key: Expr
    value: Expr
    score: Expr
    row: Expr | None  # None if there is but one
    column: Expr
    depth: Expr
    width: Expr
    zeros: bool  # a row whose scores are all -inf gives zeros, not NaN

    @property
    def walked(self) -> tuple[tuple[Expr, Axes], ...]:
        """The operands, each with the axes that it is walked along."""
        rows = () if self.row is None else (self.row,)
        return (
            (self.query, (*rows, self.depth)),
            (self.key, (self.column, self.depth)),
            (self.value, (self.column, self.width)),
        )


def weighed_mean(score: Expr, value: Expr, column: Expr, zeros: bool = False) -> Expr:
    """The mean of `value` over `column`, each weighed by the exponential of its score."""
    top = reduce("max", (column,), score)
    weight = apply("exp", apply("sub", score, top))
    total = reduce("sum", (column,), weight)
    mean = apply("div", reduce("sum", (column,), apply("mul", weight, value)), total)
    if not zeros:
        return mean
    nothing = apply("eq", top, const(-math.inf, top.dtype))
    return apply("where", nothing, const(0.0, mean.dtype), mean)


def log_sum(score: Expr, column: Expr) -> Expr:
    """The logarithm of what the exponentials of a row's scores add up to; zero if all are -inf, as
    ATen has it. Its backward pass makes the weights of it."""
    top = reduce("max", (column,), score)
    total = reduce("sum", (column,), apply("exp", apply("sub", score, top)))
    nothing = apply("eq", top, const(-math.inf, top.dtype))
    found = apply("add", top, apply("log", total))
    return apply("where", nothing, const(0.0, found.dtype), found)


def attention_in(value: Expr, axes: Axes) -> Attention | None:
    """The attention that a value is, over these parallel axes."""
    whole = value.args[0] if value.op in ("cast", "narrow") else value
    zeros = whole.op == "where"
    mean = whole.args[2] if zeros else whole
    if mean.op != "div" or any(n.op != "reduce" for n in mean.args):
        return None
    term, weight, (column, *_) = mean.args[0].args[0], mean.args[1].args[0], mean.args[1].attr[1]
    if term.op != "mul" or weight.op != "exp" or weight.args[0].op != "sub":
        return None
    score, summand = weight.args[0].args[0], term.args[1]
    # Expressions are shared: an equal one is the same one.
    if weighed_mean(score, summand, column, zeros) is not whole:
        return None
    return _parts(score, _operand(summand), column, axes, zeros)


def _operand(node: Expr) -> Expr:
    """A load, seen through a widening."""
    return node.args[0] if node.op == "cast" else node


def _parts(score: Expr, value: Expr, column: Expr, axes: Axes, zeros: bool) -> Attention | None:
    dots = [n for n in walk(score) if n.op == "reduce"]
    if len(dots) != 1 or dots[0].attr[0] != "sum" or dots[0].args[0].op != "mul":
        return None
    (dot,) = dots
    (depth, *more), sides = dot.attr[1], [_operand(n) for n in dot.args[0].args]
    if more or any(n.op != "load" or n.guard is not None for n in (*sides, value)):
        return None
    for query, key in (sides, sides[::-1]):
        rows = [a for a in axes if a in query.axes and a not in key.axes | value.axes]
        # An expanded operand's index does not name what it is expanded along, once it is flat: the
        # width is no axis of the scores, and the last of these.
        widths = [a for a in axes if a not in score.axes]
        if widths and column not in query.axes:
            row = rows[-1] if rows else None
            named = (row, column, depth, widths[-1])
            found = Attention(dot, query, key, value, score, *named, zeros)
            even = all(walk_of(node, along) is not None for node, along in found.walked)
            return found if even else None
    return None


def walk_of(node: Expr, axes: Axes) -> tuple[list[int], Expr] | None:
    """How a load moves, in elements, along axes; None if not by constants."""
    return steps_along(flat_index(node.buffer, node.index), axes)


def steps_along(index: Expr, axes: Axes) -> tuple[list[int], Expr] | None:
    """How far an index moves with one step along each axis, and what is left of it without."""
    steps = []
    for variable in axes:
        found = coefficient(index, variable)
        if found is None or not found[0].is_const:
            return None
        steps.append(found[0].number)
        index = found[1]
    return steps, simplify(index)


def loop_attention(loop: Loop) -> Attention | None:
    """The attention that a loop stores."""
    (store,) = loop.stores
    return attention_in(store.value, loop.axes) if len(loop.reduced) == 2 else None


def is_log_sum(loop: Loop, of: Attention) -> bool:
    """Whether a loop stores the logarithms of the sums of an attention."""
    return loop.stores[0].value is log_sum(of.score, of.column)


def kernel_attention(kernel: Kernel) -> Attention | None:
    """The attention that a kernel is, with or without the logarithms of its sums beside it."""
    mean, *sums = kernel.stores
    found = attention_in(mean.value, kernel.outer)
    if found is None or len(sums) > 1:
        return None
    expected = log_sum(found.score, found.column)
    return found if all(s.value is expected and s.mode == "put" for s in sums) else None


# -- what a mask leaves out ------------------------------------------------------------------


def reach(a: Attention) -> tuple[int | None, int | None]:
    """Scores are -inf but for columns from row + low to row + high, where that can be seen."""
    low: int | None = None
    high: int | None = None
    for kind, offset in _limits(a.score, a.row, a.column) if a.row is not None else ():
        if kind == "low":
            low = offset if low is None else max(low, offset)
        else:
            high = offset if high is None else min(high, offset)
    return low, high


def _limits(score: Expr, row: Expr, column: Expr) -> Iterator[tuple[str, int]]:
    if score.op != "where":
        return
    condition, chosen, other = score.args
    for kept, dropped, truth in ((chosen, other, True), (other, chosen, False)):
        if dropped.is_const and dropped.attr == -math.inf:
            yield from _of_condition(condition, truth, row, column)
            yield from _limits(kept, row, column)


_FLIPPED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def _of_condition(node: Expr, truth: bool, row: Expr, column: Expr) -> Iterator[tuple[str, int]]:
    """What must hold of the column where a condition is `truth`."""
    if node.op == "not":
        yield from _of_condition(node.args[0], not truth, row, column)
    elif node.op == ("and" if truth else "or"):
        for part in node.args:
            yield from _of_condition(part, truth, row, column)
    elif node.op in _FLIPPED and None not in (counted := [_counted(n) for n in node.args]):
        kind = node.op if truth else _FLIPPED[node.op]
        left, right = (to_poly(n) for n in counted if n is not None)
        if kind in ("lt", "le"):
            left, right = right, left
        ahead = {m: left.get(m, 0) - right.get(m, 0) for m in {*left, *right}}
        ahead = {m: c for m, c in ahead.items() if c or not m}  # ... >= 0, or > 0
        slack = ahead.pop((), 0) - (kind in ("lt", "gt"))
        if ahead == {(row,): 1, (column,): -1}:
            yield "high", slack
        elif ahead == {(row,): -1, (column,): 1}:
            yield "low", -slack


# More positions than any sequence has; where the number of them is symbolic, there are fewer.
MOST_POSITIONS = 1 << 30


def _counted(node: Expr) -> Expr | None:
    """An integer made of positions, without its type: a position in a narrower integer is still
    that position, as long as nothing wraps. None if something may, or if it is made of more."""
    if node.dtype.is_float or _span(node) is None:
        return None
    if node.is_const:
        return integer(node.number)
    if node.op == "axis":
        return node
    parts = [_counted(n) for n in node.args]
    if node.op == "cast":
        return parts[0]
    known = [n for n in parts if n is not None]
    return apply(node.op, *known) if len(known) == len(parts) else None


def _span(node: Expr) -> tuple[int, int] | None:
    """The least and the greatest value of sums of positions; None if it is none, or if it or a
    part of it may leave its type."""
    spans = [_span(n) for n in node.args]
    if node.is_const:
        found = (node.number, node.number)
    elif node.op == "axis":
        found = (0, (node.extent.number if node.extent.is_const else MOST_POSITIONS) - 1)
    elif node.op not in ("cast", "add", "sub", "mul") or None in spans:
        return None
    else:
        (low, high), (least, most) = (n for n in (spans[0], spans[-1]) if n is not None)
        ends = [a * b for a in (low, high) for b in (least, most)]
        found = {
            "cast": (low, high),
            "add": (low + least, high + most),
            "sub": (low - most, high - least),
            "mul": (min(ends), max(ends)),
        }[node.op]
    first, last = _limits_of(node.dtype)
    return found if first <= found[0] and found[1] <= last else None


def _limits_of(dtype: DType) -> tuple[int, int]:
    """The least and the greatest number that an integer type holds."""
    if dtype is BOOL:
        return 0, 1
    bits = 8 * dtype.bytes
    return (0, 2**bits - 1) if dtype is U8 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
