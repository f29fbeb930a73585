"""Attention spelt by hand: a product, pointwise ops, a softmax over the last dimension, a product.

In: the nodes of a graph. Out: for each place where it ends, `Spelt`; and the loop that it becomes.
Scale, mask, bias, softcap and views in between are whatever the graph has: lowered aside, they are
part of the score (`lower/aside.py`). What is read elsewhere too, as the weights are by a backward
pass, stays as it is. Example: `softmax(q @ k.transpose(-1, -2) / 8 + mask, -1) @ v`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from litz.ir.attention import weighed_mean
from litz.ir.expr import Expr, apply, axis, const, walk
from litz.ir.graph import origin_of
from litz.ir.program import Buffer
from litz.lower.aside import value_aside
from litz.lower.attention import check_sums, dot_product, refused, store_mean
from litz.lower.registry import RULES, NotGenerated
from litz.lower.values import Lowering, View, element, positions

aten = torch.ops.aten

PRODUCTS = (aten.bmm.default, aten.mm.default)
DOTS = (*PRODUCTS, aten.baddbmm.default)
# Nodes between the product and the softmax: more than anyone spells.
MOST_NODES = 64


@dataclass(frozen=True)
class Spelt:
    """`dot` gives the product of queries and keys; `before` leads from it to `scores`; `weights` is
    the softmax of these, `behind` leads from it to the operand of the product `mix` with values,
    and `after` on to where the result is stored. `nodes` are all but the last."""

    dot: Node
    before: tuple[Node, ...]
    scores: Node
    weights: Node
    behind: tuple[Node, ...]
    mix: Node
    after: tuple[Node, ...]
    zeros: bool
    nodes: tuple[Node, ...]

    @property
    def last(self) -> Node:
        return self.after[-1] if self.after else self.mix


def find_spelt(nodes: list[Node]) -> dict[Node, Spelt]:
    """Every attention, by the node that ends it."""
    places = {n: k for k, n in enumerate(nodes)}
    found = (_spelt(n, places) for n in nodes if n.target in PRODUCTS)
    return {s.last: s for s in found if s is not None}


def _spelt(mix: Node, places: dict[Node, int]) -> Spelt | None:
    behind = []
    weights = mix.args[0]
    while isinstance(weights, Node) and _is_view(weights):
        behind.append(weights)
        weights = weights.args[0]
    softmax = _softmax(weights)
    if softmax is None:
        return None
    assert isinstance(weights, Node)
    scores, inside, zeros = softmax
    path = _path(scores)
    if path is None:
        return None
    dot, before = path
    after = _after(mix)
    members = {dot, *before, *inside, *behind, mix, *after}
    last = after[-1] if after else mix
    if any(user not in members for n in members - {last} for user in n.users):
        return None
    ordered = sorted(members - {last}, key=places.__getitem__)
    return Spelt(
        dot, tuple(n for n in ordered if n in before), scores, weights,
        tuple(reversed(behind)), mix, tuple(after), zeros, tuple(ordered),
    )  # fmt: skip


def _is_view(node: Node) -> bool:
    rule = RULES.get(node.target)
    return rule is not None and rule.__module__ == "litz.lower.view"


def _after(mix: Node) -> list[Node]:
    """Views behind the product and the copy that makes one of them contiguous: it is where the
    result may lie from the beginning."""
    chain, node = [], mix
    while len(node.users) == 1:
        (node,) = node.users
        chain.append(node)
        if node.target is aten.clone.default:
            return chain
        if not _is_view(node):
            break
    return []


def _softmax(weights: Any) -> tuple[Node, set[Node], bool] | None:
    """The scores below a softmax over the last dimension, as torch takes it apart, its nodes, and
    whether rows of nothing but -inf are set to zero."""
    found, inside, zeros = weights, set(), False
    if _calls(found, aten.where.self):
        empty, filled, found = found.args
        inside |= {weights, empty}
        zeros = True
    if not _calls(found, aten.div.Tensor) or not _calls(found.args[1], aten.sum.dim_IntList):
        return None
    above, total = found.args
    if total.args[0] is not above or not _along_last(total) or not _calls(above, aten.exp.default):
        return None
    (below,) = above.args
    if not _calls(below, aten.sub.Tensor) or not _calls(below.args[1], aten.amax.default):
        return None
    scores, top = below.args
    if below.kwargs or top.args[0] is not scores or not _along_last(top):
        return None
    inside |= {found, above, total, below, top}
    if zeros:
        checks = _empty_rows(empty, filled, found, scores)
        return None if checks is None else (scores, inside | checks, True)
    return scores, inside, False


def _calls(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.target is target


def _along_last(node: Node) -> bool:
    rank = node.args[0].meta["val"].dim()  # type: ignore[union-attr]
    dims = node.args[1]
    return len(node.args) == 3 and node.args[2] is True and dims in ([-1], [rank - 1])


def _empty_rows(empty: Any, filled: Any, divided: Node, scores: Node) -> set[Node] | None:
    """not any(not scores == -inf), and zeros: how torch's safe softmax finds such rows."""
    if not _calls(empty, aten.logical_not.default):
        return None
    # Zeros made without looking at anything may well be those of other layers too.
    own = {filled} if _calls(filled, aten.full_like.default) else set()
    if not own and not _calls(filled, aten.full.default):
        return None
    if filled.args[1] != 0 or (own and filled.args[0] is not divided):
        return None
    (some,) = empty.args
    if not _calls(some, aten.any.dim) or some.args[1:] not in (
        (-1, True),
        (scores.meta["val"].dim() - 1, True),
    ):
        return None
    (seen,) = some.args[:1]
    if not _calls(seen, aten.logical_not.default) or not _calls(seen.args[0], aten.eq.Scalar):
        return None
    compared = seen.args[0]
    if compared.args != (scores, -math.inf):
        return None
    return {empty, some, seen, compared, *own}


def _path(scores: Node) -> tuple[Node, set[Node]] | None:
    """The one product that scores come from, and the pointwise nodes and views between."""
    dots, order = [], list(_ancestors(scores))
    shape = scores.meta["val"].shape[-2:]
    for node in order:
        if node.target in DOTS and node.meta["val"].shape[-2:] == shape:
            dots.append(node)
    if len(dots) != 1 or len(order) > MOST_NODES:
        return None
    between: set[Node] = set()
    for node in reversed(order):  # operands first
        if any(n is dots[0] or n in between for n in node.all_input_nodes) and node is not dots[0]:
            between.add(node)
    return dots[0], between


def _ancestors(scores: Node) -> Iterator[Node]:
    """Users before operands, through what an expression can hold."""
    seen = {scores}
    front = [scores]
    while front:
        front.sort()
        node = front.pop()
        yield node
        tags = getattr(node.target, "tags", ())
        if node.target in DOTS or not (_is_view(node) or torch.Tag.pointwise in tags):
            continue
        for operand in node.all_input_nodes:
            if operand not in seen:
                seen.add(operand)
                front.append(operand)


# -- the loop --------------------------------------------------------------------------------


def lower_spelt(low: Lowering, spelt: Spelt, known: dict[Node, Any]) -> None:
    """One loop for all of it; where that does not go, its nodes one by one."""
    low.origin = origin_of(spelt.mix)
    try:
        known[spelt.last] = _streamed(low, spelt, known)
    except NotGenerated:
        for node in (*spelt.nodes, spelt.last):
            low.origin = origin_of(node)
            known[node] = low.lower_node(low, node, known)


def _streamed(low: Lowering, spelt: Spelt, outside: dict[Node, Any]) -> View:
    known = dict(outside)
    with low.aside() as steps:
        made = {n: _stand_in(low, n) for n in (spelt.dot, spelt.weights, spelt.mix)}
        known.update({n: low.whole(b) for n, b in made.items()})
        for node in (*spelt.before, *spelt.behind, *spelt.after):
            known[node] = low.lower_node(low, node, known)
    target = low.buffer(spelt.last.meta["val"])
    v = _operand(low, spelt.mix.args[1], known)
    check_sums(low, known[spelt.dot.args[-2]].shape[-1], v.shape[-2])
    column = axis("r1", v.shape[-2])
    result = value_aside(known[spelt.last], positions(target.shape), steps, {})
    *front, row, width = _index(low, result, made[spelt.mix])
    p = _operand(low, spelt.mix.args[0], known)
    weight = value_aside(p, (*front, row, column), steps, {})
    *others, along = place = _index(low, weight, made[spelt.weights])
    if along is not column or any(node is column for index in others for node in walk(index)):
        raise refused(low, "its softmax does not run along the columns")
    if made[spelt.weights].shape[-1] is not v.shape[-2]:
        raise refused(low, "only a part of what its softmax adds up is weighed")
    dots = _Dots(low, spelt.dot, known)
    given = {made[spelt.dot]: dots.at}
    score = value_aside(known[spelt.scores], place, steps, given)
    value = v.at((*front, column, width))
    mean = weighed_mean(score, value, column, spelt.zeros)
    store_mean(low, target, mean, (dots.depth, column))
    return low.whole(target)


def _stand_in(low: Lowering, node: Node) -> Buffer:
    value = node.meta["val"]
    if value.dtype not in (torch.float32, torch.float64):
        raise refused(low, "its type is not generated")
    return low.buffer(value)


def _operand(low: Lowering, node: Any, known: dict[Node, Any]) -> View:
    found = known[node]
    assert isinstance(found, View)
    return found


def _index(low: Lowering, node: Expr, buffer: Buffer) -> tuple[Expr, ...]:
    """Where in a buffer a load reads."""
    if node.op != "load" or node.buffer != buffer or node.guard is not None:
        raise refused(low, "what follows its softmax is more than a view")
    return node.index


class _Dots:
    """Elements of the product of queries and keys."""

    def __init__(self, low: Lowering, node: Node, known: dict[Node, Any]) -> None:
        self.node, self.bias = node, None
        *more, q, k = (known[n] for n in node.args[:3] if isinstance(n, Node))
        self.q, self.k = q, k
        if more:
            (self.bias,) = more
        self.depth = axis("r0", q.shape[-1])

    def at(self, index: tuple[Expr, ...]) -> Expr:
        *front, row, column = index
        left, right = self.q.at((*front, row, self.depth)), self.k.at((*front, self.depth, column))
        dot = dot_product(left, right, self.depth)
        if self.bias is None:
            return dot
        alpha, beta = (self.node.kwargs.get(n, 1) for n in ("alpha", "beta"))
        scaled = apply("mul", dot, const(alpha, dot.dtype)) if alpha != 1 else dot
        if beta == 0:  # then not even a NaN of the bias counts
            return scaled
        added = element(self.bias, index, self.bias.dtype)
        added = apply("mul", added, const(beta, dot.dtype)) if beta != 1 else added
        return apply("add", scaled, added)
