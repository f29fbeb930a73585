"""Attention in the loop IR: how it is written, and its parts, read off a nest by its tag.

In: a step that is tagged as `Attention`. Out: `AttentionParts`. Attention is a mean of values,
weighted by the exponentials of scores. A score is any expression around one dot product of a query
and a key: scale, bias, mask and softcap are part of it. Example, over r0 < 64 and r1 < 128:

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
from litz.ir.patterns import Attention, Axes
from litz.ir.program import Kernel, Loop, tagged


@dataclass(frozen=True)
class AttentionParts:
    """`dot` is the sum over `depth` of query times key; `score` is the expression around it, at a
    row and a column; `value` is loaded at a column and a point of `width`. Query, key and value are
    loads."""

    dot: Expr
    query: Expr
    key: Expr
    value: Expr
    score: Expr
    row: Expr | None  # None if there is only one row
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

    @property
    def is_even(self) -> bool:
        """Whether each operand has a constant stride along each axis that it is walked along."""
        return all(walk_of(node, along) is not None for node, along in self.walked)


def softmax_weighted_mean(score: Expr, value: Expr, column: Expr, zeros: bool = False) -> Expr:
    """The mean of `value` over `column`, each weighted by the exponential of its score."""
    top = reduce("max", (column,), score)
    weight = apply("exp", apply("sub", score, top))
    total = reduce("sum", (column,), weight)
    mean = apply("div", reduce("sum", (column,), apply("mul", weight, value)), total)
    if not zeros:
        return mean
    nothing = apply("eq", top, const(-math.inf, top.dtype))
    return apply("where", nothing, const(0.0, mean.dtype), mean)


def row_logsumexp(score: Expr, column: Expr) -> Expr:
    """The logarithm of the sum of the exponentials of a row's scores; zero if all are -inf, as in
    ATen. ATen's backward pass computes the weights from it."""
    top = reduce("max", (column,), score)
    total = reduce("sum", (column,), apply("exp", apply("sub", score, top)))
    nothing = apply("eq", top, const(-math.inf, top.dtype))
    found = apply("add", top, apply("log", total))
    return apply("where", nothing, const(0.0, found.dtype), found)


def attention_of(step: Loop | Kernel) -> AttentionParts | None:
    """The parts of the attention that a loop or a kernel is tagged as."""
    found = tagged(step, Attention)
    return None if found is None else parts_by(found[0], found[1][0].value)


def parts_by(tag: Attention, value: Expr) -> AttentionParts:
    """The parts of a stored value by the roles of its axes; factors are seen through a widening
    cast."""
    whole = value.args[0] if value.op in ("cast", "narrow") else value
    zeros = whole.op == "where"
    total, weights = (whole.args[2] if zeros else whole).args
    score = weights.args[0].args[0].args[0]
    dot = next(n for n in walk(score) if n.op == "reduce")
    first, second, last = (_operand(n) for n in (*dot.args[0].args, total.args[0].args[1]))
    query, key = (second, first) if tag.flipped else (first, second)
    row = tag.row[0] if tag.row else None
    (column,), (depth,), (width,) = tag.column, tag.depth, tag.width
    return AttentionParts(dot, query, key, last, score, row, column, depth, width, zeros)


def _operand(node: Expr) -> Expr:
    return node.args[0] if node.op == "cast" else node


def walk_of(node: Expr, axes: Axes) -> tuple[list[int], Expr] | None:
    """The strides of a load along axes, in elements, and the rest of its index; None if a stride
    is not constant."""
    return steps_along(flat_index(node.buffer, node.index), axes)


def steps_along(index: Expr, axes: Axes) -> tuple[list[int], Expr] | None:
    """The coefficient of each axis in an index, and the rest of the index without them."""
    steps = []
    for variable in axes:
        found = coefficient(index, variable)
        if found is None or not found[0].is_const:
            return None
        steps.append(found[0].number)
        index = found[1]
    return steps, simplify(index)


def is_logsumexp(loop: Loop, of: AttentionParts) -> bool:
    """Whether a loop stores the logsumexp of each row of an attention."""
    return loop.stores[0].value is row_logsumexp(of.score, of.column)


# -- the band that a mask keeps ----------------------------------------------------------------


def mask_band(a: AttentionParts) -> tuple[int | None, int | None]:
    """(low, high): scores are -inf except in columns from row + low to row + high. None where the
    score shows no such limit."""
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
    """The limits of the column that follow from a condition being `truth`."""
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


# More positions than any sequence has: the bound of an axis whose extent is symbolic.
MOST_POSITIONS = 1 << 30


def _counted(node: Expr) -> Expr | None:
    """Integer arithmetic on positions, without its casts: a position in a narrower integer is still
    that position, as long as nothing wraps. None if it may wrap, or has other operands."""
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
    """The least and the greatest value of arithmetic on positions; None if it is something else, or
    if it or a part of it may overflow its type."""
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
