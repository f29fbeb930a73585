"""Matrix products: a sum over k of a[i, k] * b[k, j], as one loop that `schedule` knows.

In: two matrices. Out: a reduction loop whose right operand lies as the kernel reads it: in panels
of as many columns as registers hold, packed once if it is a parameter. Anything else that a product
could be stays with ATen. Example: `x @ w.t()` with w of 768 x 768 and panels of 64 columns reads
`packed[j // 64, k, j % 64]`, where `packed` is made of w alone and kept until w changes.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.ir.dtypes import F32, F64
from litz.ir.expr import Expr, apply, axis, const, integer, reduce
from litz.ir.index import ZERO, coefficient, flat_index, floordiv, modulo, ravel
from litz.ir.program import Buffer, Loop, Store
from litz.lower.registry import NotGenerated, rule
from litz.lower.values import Lowering, View, element, positions

# A product of fewer points is as quick in ATen, and a sum over fewer does not fill the pipes.
FEWEST_POINTS = 1 << 12
SHORTEST_SUM = 16


@rule("mm")
def _mm(low: Lowering, like: torch.Tensor, a: View, b: View) -> View:
    target = low.buffer(like)
    _product(low, target, a, b)
    return low.whole(target)


@rule("addmm")
def _addmm(
    low: Lowering, like: torch.Tensor, bias: View, a: View, b: View, *, beta: Any = 1,
    alpha: Any = 1,
) -> View:  # fmt: skip
    rows, columns = a.shape[0], b.shape[1]
    product = low.row_buffer((rows, columns), a.dtype)
    _product(low, product, a, b)

    def value(place: tuple[Expr, ...]) -> Expr:
        found = element(low.whole(product), place, a.dtype)
        if alpha != 1:
            found = apply("mul", found, const(float(alpha), found.dtype))
        if beta == 0:  # then not even a NaN of the bias counts
            return found
        added = element(bias, place, a.dtype)
        if beta != 1:
            added = apply("mul", added, const(float(beta), added.dtype))
        return apply("add", found, added)

    return low.pointwise(like, value)


def _product(low: Lowering, target: Buffer, a: View, b: View) -> None:
    """target[i, j] = sum over k of a[i, k] * b[k, j]"""
    rows, depth, columns = a.shape[0].number, a.shape[1].number, b.shape[1].number
    _check(low, a, b, rows * depth * columns, depth)
    i, j = positions(target.shape)
    k = axis("r0", depth)
    left = a.at((i, k))
    width = low.target.panel_columns(a.dtype.bytes, columns)
    if b.buffer in low.static and low.config.cpp.weight_prepack:
        packed = _packed(low, b, width)
        right = low.whole(packed).at((floordiv(j, integer(width)), k, modulo(j, integer(width))))
    else:
        right = b.at((k, j))
        _readable(right, j, columns, width)
    low.emit(target, (i, j), reduce("sum", (k,), apply("mul", left, right)), (k,))


def _check(low: Lowering, a: View, b: View, points: int, depth: int) -> None:
    if low.config.max_autotune_gemm_backends == "ATEN":
        raise NotGenerated("max_autotune_gemm_backends names ATEN alone")
    if not low.target.products:
        raise NotGenerated("products are the library's on this target")
    if a.dtype not in (F32, F64) or b.dtype is not a.dtype:
        raise NotGenerated("a product of this type")
    if points < FEWEST_POINTS or depth < SHORTEST_SUM:
        raise NotGenerated("a small product")
    lanes = low.target.vector_bytes // b.dtype.bytes
    if lanes < 2 or b.shape[1].number < lanes:
        raise NotGenerated("a product with fewer columns than lanes")


def _readable(right: Expr, j: Expr, columns: int, width: int) -> None:
    """Neighbours along a row must be neighbours in memory, in whole panels."""
    step = coefficient(flat_index(right.buffer, right.index), j)
    if step is None or not step[0].is_const or step[0].number != 1 or columns % width:
        raise NotGenerated("a right operand that would have to be packed at each call")


def _packed(low: Lowering, b: View, width: int) -> Buffer:
    """A parameter in panels, the last one filled up with zeros; every product shares it."""
    found = low.packed.get((b, width))
    if found is not None:
        return found
    depth, columns = b.shape[0], b.shape[1].number
    panels = -(-columns // width)
    made = low.row_buffer((integer(panels), depth, integer(width)), b.dtype)
    place = positions(made.shape)
    column = ravel((place[0], place[2]), (integer(panels), integer(width)))
    guard = apply("lt", column, integer(columns)) if columns % width else None
    value = b.at((place[1], column), guard)
    axes = tuple(a for a in place if a is not ZERO)
    low.body.append(Loop(axes, (), (Store(made, place, value),), (low.origin,)))
    low.packed[b, width] = made
    return made
