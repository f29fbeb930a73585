"""Flash attention: the mean of values, weighted by a softmax of scores, as one streaming loop.

In: queries, keys, values, and a function of a score. Out: one loop that `ir/recognise.py` tags as
attention. Attention that does not fit stays with ATen, and `explain` has the reason. Example:
`F.scaled_dot_product_attention(q, k, v, is_causal=True)` is a loop over batch, head, row and width
whose score is `where(column <= row, dot * scale, -inf)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from litz.ir.attention import attention_of, row_logsumexp, softmax_weighted_mean, steps_along
from litz.ir.dtypes import BF16, F16, F32, F64
from litz.ir.expr import Expr, apply, axis, const, integer, reduce
from litz.ir.index import ONE, ZERO, flat_index, floordiv
from litz.ir.program import Buffer, Loop, Store
from litz.ir.recognise import recognised
from litz.ir.sizes import at_least, is_known, quotient
from litz.lower.registry import FallbackToAten, rule
from litz.lower.values import Lowering, View, broadcast, positions, widen

# Queries, weights and accumulators of a tile are on the stack, and grow with the head dimension.
MAX_HEAD_DIM = 512

# (dot product, position (batch ..., head, row), column) -> the score there.
ScoreMod = Callable[[Expr, tuple[Expr, ...], Expr], Expr]


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _scaled_dot_product(
    low: Lowering, like: Any, q: View, k: View, v: View, dropout_p: float = 0.0,
    is_causal: bool = False, *, attn_mask: View | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout_p:
        raise refused(low, "it drops weights at random")
    size = q.shape[-1].number
    usual = 1 / math.sqrt(size) if size else math.inf
    factor = usual if scale is None else scale
    if is_causal and not factor > 0:  # ATen's kernel scales the masked -inf as well
        raise refused(low, "a causal mask is scaled by a number that is not positive")

    def score(dot: Expr, row: tuple[Expr, ...], column: Expr) -> Expr:
        result = apply("mul", dot, const(factor, dot.dtype))
        if attn_mask is not None:
            place = broadcast(attn_mask, (*row, column))
            result = apply("add", result, widen(attn_mask.at(place), q.dtype))
        if is_causal:
            lowest = const(-math.inf, dot.dtype)
            result = apply("where", apply("le", column, row[-1]), result, lowest)
        return result

    sums = like[1] if 1 in low.used else None
    return emit_attention(low, like[0], (q, k, v), score, safe_softmax=True, sums=sums)


def emit_attention(
    low: Lowering, like: torch.Tensor, operands: tuple[View, View, View], score: ScoreMod,
    safe_softmax: bool = False, sums: torch.Tensor | None = None,
) -> tuple[View, View | None]:  # fmt: skip
    """Append the loop, and one for the row logsumexp if `sums` is given. Queries are (batch ...,
    head, row, depth). Keys and values may have fewer heads, each for a group of consecutive query
    heads (GQA)."""
    q, k, v = operands
    _check_gqa_heads(low, q, k, v)
    check_reduction_sizes(low, q.shape[-1], k.shape[-2])
    target = low.buffer(like)
    *front, row, width = positions(target.shape)
    depth, column = axis("r0", q.shape[-1]), axis("r1", k.shape[-2])
    places = [_kv_head(view, front) for view in (k, v)]
    dot = dot_product(
        q.at((*front, row, depth)), k.at((*places[0], column, depth)), depth
    )  # fmt: skip
    value = widen(v.at((*places[1], column, width)), q.dtype)
    found = score(dot, (*front, row), column)
    mean = softmax_weighted_mean(found, value, column, safe_softmax)
    if sums is None:
        emit_flash_attention(low, target, mean, (depth, column))
        return low.whole(target), None
    lse = low.buffer(sums)
    place, logarithm = positions(lse.shape), row_logsumexp(found, column)
    if row.op == "axis" and steps_along(flat_index(lse, place), (row,)) is None:
        raise refused(low, "the logarithms of its sums lie a symbolic number of heads apart")
    emit_flash_attention(low, target, mean, (depth, column))
    low.emit(lse, place, logarithm, (depth, column))
    return low.whole(target), low.whole(lse)


def check_reduction_sizes(low: Lowering, *sums: Expr) -> None:
    """Reductions need at least two elements: an axis of one element is no axis."""
    if not all(at_least(n, integer(2)) for n in sums):
        raise refused(low, "its sums are over one element")


def dot_product(query: Expr, key: Expr, depth: Expr) -> Expr:
    """The sum over `depth` of two loads, in their compute dtype."""
    sides = (widen(n, n.dtype) for n in (query, key))
    return reduce("sum", (depth,), apply("mul", *sides))


def emit_flash_attention(
    low: Lowering, target: Buffer, mean: Expr, reduced: tuple[Expr, ...]
) -> None:
    """Append the loop, if it is recognised as attention."""
    place = positions(target.shape)
    axes = tuple(a for a in place if a is not ZERO)
    found = attention_of(recognised(Loop(axes, reduced, (Store(target, place, mean),))))
    if found is None:
        raise refused(low, "its operands do not lie at even strides")
    if not low.target.generates_attention:
        raise refused(low, "it is the library's on this target")
    if low.config.max_autotune_gemm_backends == "ATEN":
        raise refused(low, "max_autotune_gemm_backends names ATEN alone")
    if found.query.dtype not in (F32, F64, BF16, F16) or {
        n.dtype for n in (found.key, found.value)
    } != {found.query.dtype}:
        raise refused(low, "its type is not generated")
    if low.target.vector_bytes // found.dot.dtype.bytes < 2:
        raise refused(low, "the target has no vectors")
    if not is_known(found.depth.extent, found.width.extent):
        raise refused(low, "the width of a head is symbolic")
    if max(found.depth.extent.number, found.width.extent.number) > MAX_HEAD_DIM:
        raise refused(low, f"a head is wider than {MAX_HEAD_DIM}")
    low.emit(target, place, mean, reduced)
    low.decide("rewritten", target.name, "attention runs as one flash-attention kernel")


def _kv_head(view: View, front: list[Expr]) -> list[Expr]:
    """The position of the key or value head that a query head reads."""
    found = []
    for place, size in zip(front, view.shape, strict=False):
        shared = quotient(place.extent if place.op == "axis" else ONE, size)
        found.append(place if shared is None else floordiv(place, shared))
    return found


def _check_gqa_heads(low: Lowering, q: View, k: View, v: View) -> None:
    uneven = [len(view.shape) != len(q.shape) for view in (k, v)]
    if not any(uneven):
        pairs = [zip(q.shape[:-2], view.shape[:-2], strict=True) for view in (k, v)]
        uneven = [quotient(a, b) is None for pair in pairs for a, b in pair]
    if any(uneven):
        raise refused(low, "heads of queries cannot share those of keys evenly")


def refused(low: Lowering, why: str) -> FallbackToAten:
    """Record the reason for `explain`; ATen computes the op."""
    low.decide("refused", low.origin.node, f"attention is left to ATen: {why}")
    return FallbackToAten(why)
