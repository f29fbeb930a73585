"""Matrix products: a sum over k of a[i, k] * b[k, j], as one loop that `schedule` knows.

In: two matrices, or batches of them. Out: a reduction loop whose right operand lies as the kernel
reads it: in panels of as many columns as registers hold, packed once if it is a parameter, or at
each call where the product is worth it. Anything else stays with ATen. Example: `x @ w.t()` with w
of 768 x 768 and panels of 64 columns reads `packed[j // 64, k, j % 64]`, where `packed` is made of
w alone and kept until w changes.
"""

from __future__ import annotations

from typing import Any

import torch

from litz.ir.dtypes import BF16, F16, F32, F64, DType
from litz.ir.expr import Expr, apply, axis, cast, const, integer, reduce
from litz.ir.index import ZERO, coefficient, flat_index, floordiv, modulo, ravel
from litz.ir.program import Buffer, Loop, Store
from litz.lower.registry import NotGenerated, rule
from litz.lower.values import Lowering, View, element, positions

# A product of fewer points is as quick in ATen, and a sum over fewer does not fill the pipes.
FEWEST_POINTS = 1 << 12
SHORTEST_SUM = 16
# Rows for which packing the right operand at each call pays: it costs about as much as the products
# with six rows, and ATen packs as well. With fewer rows ATen reads it as it lies.
PACKED_ROWS = 64
# Bytes between rows from which every one of them lies on pages of its own: packed, they do not.
FAR_APART = 1 << 13


@rule("mm", "bmm")
def _mm(low: Lowering, like: torch.Tensor, a: View, b: View) -> View:
    target = low.buffer(like)
    emit_product(low, target, a, b)
    return low.whole(target)


@rule("addmm", "baddbmm")
def _addmm(
    low: Lowering, like: torch.Tensor, bias: View, a: View, b: View, *, beta: Any = 1,
    alpha: Any = 1,
) -> View:  # fmt: skip
    product = low.row_buffer((*a.shape[:-1], b.shape[-1]), a.dtype.compute)
    emit_product(low, product, a, b)

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


def emit_product(low: Lowering, target: Buffer, a: View, b: View) -> None:
    """target[..., i, j] = sum over k of a[..., i, k] * b[..., k, j], in the type of the target's
    computations."""
    _check(low, a, b)
    *batch, i, j = positions(target.shape)
    k = axis("r0", a.shape[-1].number)
    right, group = _right(low, a, b, (*batch, k, j))
    left = _left(low, a, group).at((*batch, i, k))
    terms = (cast(operand, target.dtype.compute) for operand in (left, right))
    low.emit(target, (*batch, i, j), reduce("sum", (k,), apply("mul", *terms)), (k,))


def _check(low: Lowering, a: View, b: View) -> None:
    rows, depth, columns = a.shape[-2].number, a.shape[-1].number, b.shape[-1].number
    if low.config.max_autotune_gemm_backends == "ATEN":
        raise NotGenerated("max_autotune_gemm_backends names ATEN alone")
    if a.dtype not in (F32, F64, BF16, F16) or b.dtype is not a.dtype:
        raise NotGenerated("a product of this type")
    if rows * depth * columns < FEWEST_POINTS or depth < SHORTEST_SUM:
        raise NotGenerated("a small product")
    lanes = low.target.vector_bytes // b.dtype.compute.bytes
    if lanes < 2 or columns < lanes:
        raise NotGenerated("a product with fewer columns than lanes")
    if len(a.shape) == 3 and a.shape[0].number > 1 and rows == 1:
        raise NotGenerated("a batch of single rows: each reads a matrix of its own once")


# -- the right operand -------------------------------------------------------------------------


def _right(low: Lowering, a: View, b: View, place: tuple[Expr, ...]) -> tuple[Expr, int]:
    """The element of the right operand, and how many neighbours along the sum lie together."""
    rows, columns = a.shape[-2].number, b.shape[-1].number
    width = low.target.panel_columns(b.dtype.compute.bytes, columns)
    group = low.target.dot_group(a.dtype.name, b.dtype.name)
    kept = b.buffer in low.static and low.config.cpp.weight_prepack
    if group > 1 and not kept:
        raise NotGenerated("pairs of halves to be packed at each call: oneDNN's packing is faster")
    near, far = _steps(b.at(place), place)
    readable = near == 1 and columns % width == 0
    pays = rows >= PACKED_ROWS and (not readable or far * b.dtype.bytes >= FAR_APART)
    if kept or pays:
        packed = low.whole(packed_panels(low, b, width, group))
        return packed.at(_in_panels(place, width, group)), group
    if not readable:
        raise NotGenerated("a right operand that would have to be packed at each call")
    return b.at(place), 1


def _steps(node: Expr, place: tuple[Expr, ...]) -> tuple[int, int]:
    """How far apart neighbours along the last axis of a load lie, and those along the one before;
    0 if that changes from place to place."""
    flat = flat_index(node.buffer, node.index)
    found = [coefficient(flat, variable) for variable in (place[-1], place[-2])]
    near, far = (f[0].number if f is not None and f[0].is_const else 0 for f in found)
    return near, far


def _in_panels(place: tuple[Expr, ...], width: int, group: int) -> tuple[Expr, ...]:
    """Where element [..., k, j] lies: [..., j // width, k // group, j % width, k % group]."""
    *batch, k, j = place
    panel, inside = floordiv(j, integer(width)), modulo(j, integer(width))
    if group == 1:
        return (*batch, panel, k, inside)
    return (*batch, panel, floordiv(k, integer(group)), inside, modulo(k, integer(group)))


def packed_panels(low: Lowering, b: View, width: int, group: int) -> Buffer:
    """A matrix in panels, filled up with zeros; every product that reads it shares it."""
    found = low.packed.get((b, width, group))
    if found is not None:
        return found
    *batch, depth, columns = b.shape
    panels, steps = -(-columns.number // width), -(-depth.number // group)
    parts = (integer(width),) if group == 1 else (integer(width), integer(group))
    made = low.row_buffer((*batch, integer(panels), integer(steps), *parts), b.dtype)
    place = positions(made.shape)
    front, (panel, step, inside, *part) = place[: len(batch)], place[len(batch) :]
    column = ravel((panel, inside), (integer(panels), integer(width)))
    k = ravel((step, *part), (integer(steps), integer(group))) if part else step
    value = b.at((*front, k, column), _inside((column, columns, width), (k, depth, group)))
    axes = tuple(a for a in place if a is not ZERO)
    low.body.append(Loop(axes, (), (Store(made, place, value),), (low.origin,)))
    low.packed[b, width, group] = made
    return made


def _inside(*limits: tuple[Expr, Expr, int]) -> Expr | None:
    """Whether each number is below its limit, if that is not a whole multiple."""
    guard = None
    for number, limit, multiple in limits:
        if limit.number % multiple:
            below = apply("lt", number, limit)
            guard = below if guard is None else apply("and", guard, below)
    return guard


# -- the left operand --------------------------------------------------------------------------


def _left(low: Lowering, a: View, group: int) -> View:
    """The left operand as the kernel reads it: numbers one by one, in the type of the sums, or in
    groups of neighbours. What lies otherwise is copied: each element is read once a panel."""
    if group == 1 and a.dtype.compute is not a.dtype:
        return _copied(low, a, a.dtype.compute)
    place = positions(a.shape)
    near, _ = _steps(a.at(place), place)
    return a if near == 1 else _copied(low, a, a.dtype)


def _copied(low: Lowering, a: View, dtype: DType) -> View:
    """The same numbers row by row."""
    made = low.row_buffer(a.shape, dtype)
    place = positions(a.shape)
    low.emit(made, place, cast(a.at(place), dtype))
    return low.whole(made)
