"""SDPA patterns: a matmul, pointwise ops, a softmax over the last dimension, a matmul.

In: the nodes of a graph. Out: an `SdpaPattern` by the node that ends it; and the loop that it
becomes. Scale, mask, bias, softcap and views in between may be any pointwise nodes: lowered into a
separate list of steps, they become part of the score (`lower/score_mod.py`). A pattern whose inner
nodes are read elsewhere, as the weights are by a backward pass, stays as it is. Example:
`softmax(q @ k.transpose(-1, -2) / 8 + mask, -1) @ v`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from litz.ir.attention import softmax_weighted_mean
from litz.ir.expr import Expr, apply, axis, const, walk
from litz.ir.graph import origin_of
from litz.ir.program import Buffer
from litz.lower.attention import check_reduction_sizes, dot_product, emit_flash_attention, refused
from litz.lower.registry import RULES, FallbackToAten
from litz.lower.score_mod import inline_value
from litz.lower.values import Lowering, View, element, positions

aten = torch.ops.aten

MATMULS = (aten.bmm.default, aten.mm.default)
QK_MATMULS = (*MATMULS, aten.baddbmm.default)
# Nodes between the QK matmul and the softmax: more than any program has.
MAX_PATTERN_NODES = 64


@dataclass(frozen=True)
class SdpaPattern:
    """`qk` is the matmul of queries and keys. `score_nodes` lead from it to `scores`. `weights` is
    the softmax of these. `weight_views` lead from it to the operand of `pv`, the matmul with
    values, and `output_views` from there to the stored result. `nodes` are all but the last."""

    qk: Node
    score_nodes: tuple[Node, ...]
    scores: Node
    weights: Node
    weight_views: tuple[Node, ...]
    pv: Node
    output_views: tuple[Node, ...]
    safe_softmax: bool
    nodes: tuple[Node, ...]

    @property
    def last(self) -> Node:
        return self.output_views[-1] if self.output_views else self.pv


def find_sdpa_patterns(nodes: list[Node]) -> dict[Node, SdpaPattern]:
    """Every attention pattern, by the node that ends it."""
    places = {n: k for k, n in enumerate(nodes)}
    found = (_sdpa_pattern(n, places) for n in nodes if n.target in MATMULS)
    return {s.last: s for s in found if s is not None}


def _sdpa_pattern(pv: Node, places: dict[Node, int]) -> SdpaPattern | None:
    weight_views = []
    weights = pv.args[0]
    while isinstance(weights, Node) and _is_view(weights):
        weight_views.append(weights)
        weights = weights.args[0]
    softmax = _softmax(weights)
    if softmax is None:
        return None
    assert isinstance(weights, Node)
    scores, inside, safe_softmax = softmax
    path = _path(scores)
    if path is None:
        return None
    qk, score_nodes = path
    output_views = _output_views(pv)
    members = {qk, *score_nodes, *inside, *weight_views, pv, *output_views}
    last = output_views[-1] if output_views else pv
    if any(user not in members for n in members - {last} for user in n.users):
        return None
    ordered = sorted(members - {last}, key=places.__getitem__)
    return SdpaPattern(
        qk, tuple(n for n in ordered if n in score_nodes), scores, weights,
        tuple(reversed(weight_views)), pv, tuple(output_views), safe_softmax, tuple(ordered),
    )  # fmt: skip


def _is_view(node: Node) -> bool:
    rule = RULES.get(node.target)
    return rule is not None and rule.__module__ == "litz.lower.view"


def _output_views(pv: Node) -> list[Node]:
    """Views after the matmul and the copy that makes them contiguous: the loop can store the result
    in that layout at once."""
    chain, node = [], pv
    while len(node.users) == 1:
        (node,) = node.users
        chain.append(node)
        if node.target is aten.clone.default:
            return chain
        if not _is_view(node):
            break
    return []


def _softmax(weights: Any) -> tuple[Node, set[Node], bool] | None:
    """The scores under a decomposed softmax over the last dimension, the nodes of the softmax, and
    whether it sets rows of nothing but -inf to zero."""
    found, inside, safe_softmax = weights, set(), False
    if _calls(found, aten.where.self):
        empty, filled, found = found.args
        inside |= {weights, empty}
        safe_softmax = True
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
    if safe_softmax:
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
    """not any(not scores == -inf), and zeros: torch's safe softmax finds masked rows like this."""
    if not _calls(empty, aten.logical_not.default):
        return None
    # `full` zeros have no operand, and other layers may share them.
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
    """The one matmul that scores come from, and the pointwise nodes and views in between."""
    qks, order = [], list(_ancestors(scores))
    shape = scores.meta["val"].shape[-2:]
    for node in order:
        if node.target in QK_MATMULS and node.meta["val"].shape[-2:] == shape:
            qks.append(node)
    if len(qks) != 1 or len(order) > MAX_PATTERN_NODES:
        return None
    between: set[Node] = set()
    for node in reversed(order):  # operands first
        if any(n is qks[0] or n in between for n in node.all_input_nodes) and node is not qks[0]:
            between.add(node)
    return qks[0], between


def _ancestors(scores: Node) -> Iterator[Node]:
    """Users before operands, through nodes that an expression can contain."""
    seen = {scores}
    front = [scores]
    while front:
        front.sort()
        node = front.pop()
        yield node
        tags = getattr(node.target, "tags", ())
        if node.target in QK_MATMULS or not (_is_view(node) or torch.Tag.pointwise in tags):
            continue
        for operand in node.all_input_nodes:
            if operand not in seen:
                seen.add(operand)
                front.append(operand)


# -- the loop --------------------------------------------------------------------------------


def lower_sdpa_pattern(low: Lowering, pattern: SdpaPattern, known: dict[Node, Any]) -> None:
    """One loop for the pattern; if it is refused, its nodes one by one."""
    low.origin = origin_of(pattern.pv)
    try:
        known[pattern.last] = _flash_attention(low, pattern, known)
    except FallbackToAten:
        for node in (*pattern.nodes, pattern.last):
            low.origin = origin_of(node)
            known[node] = low.lower_node(low, node, known)


def _flash_attention(low: Lowering, pattern: SdpaPattern, outside: dict[Node, Any]) -> View:
    known = dict(outside)
    with low.subgraph_body() as steps:
        made = {n: _stand_in(low, n) for n in (pattern.qk, pattern.weights, pattern.pv)}
        known.update({n: low.whole(b) for n, b in made.items()})
        for node in (*pattern.score_nodes, *pattern.weight_views, *pattern.output_views):
            known[node] = low.lower_node(low, node, known)
    target = low.buffer(pattern.last.meta["val"])
    v = _operand(low, pattern.pv.args[1], known)
    check_reduction_sizes(low, known[pattern.qk.args[-2]].shape[-1], v.shape[-2])
    column = axis("r1", v.shape[-2])
    result = inline_value(known[pattern.last], positions(target.shape), steps, {})
    *front, row, width = _index(low, result, made[pattern.pv])
    p = _operand(low, pattern.pv.args[0], known)
    weight = inline_value(p, (*front, row, column), steps, {})
    *others, along = place = _index(low, weight, made[pattern.weights])
    if along is not column or any(node is column for index in others for node in walk(index)):
        raise refused(low, "its softmax does not run along the columns")
    if made[pattern.weights].shape[-1] is not v.shape[-2]:
        raise refused(low, "only a part of what its softmax adds up is weighed")
    qks = _QkProduct(low, pattern.qk, known)
    given = {made[pattern.qk]: qks.at}
    score = inline_value(known[pattern.scores], place, steps, given)
    value = v.at((*front, column, width))
    mean = softmax_weighted_mean(score, value, column, pattern.safe_softmax)
    emit_flash_attention(low, target, mean, (qks.depth, column))
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
    """The index at which a load reads a buffer."""
    if node.op != "load" or node.buffer != buffer or node.guard is not None:
        raise refused(low, "what follows its softmax is more than a view")
    return node.index


class _QkProduct:
    """Elements of the matmul of queries and keys."""

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
        qk = dot_product(left, right, self.depth)
        if self.bias is None:
            return qk
        alpha, beta = (self.node.kwargs.get(n, 1) for n in ("alpha", "beta"))
        scaled = apply("mul", qk, const(alpha, qk.dtype)) if alpha != 1 else qk
        if beta == 0:  # then a NaN in the bias does not count
            return scaled
        added = element(self.bias, index, self.bias.dtype)
        added = apply("mul", added, const(beta, qk.dtype)) if beta != 1 else added
        return apply("add", scaled, added)
