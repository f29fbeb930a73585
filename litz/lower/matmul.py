"""Matmuls: a sum over k of a[i, k] * b[k, j], as one loop that `schedule` tiles as a GEMM.

In: two matrices, or batches of them. Out: a reduction loop whose right operand is in panels, as
many columns wide as registers fit. It is prepacked if it is a parameter, or packed at each call
where that pays. Other matmuls stay with ATen. Example: `x @ w.t()` with w of 768 x 768 and panels
of 64 columns reads `packed[j // 64, k, j % 64]`, where `packed` is made of w alone and kept until w
changes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from litz.ir.aten import dtype_of
from litz.ir.dtypes import BF16, F16, F32, F64, FP8_DTYPES, I8, U8, DType
from litz.ir.expr import Expr, apply, axis, cast, const, integer, load, reduce, substitute
from litz.ir.gemm import MMA_ACCUMULATORS
from litz.ir.index import ONE, coefficient, flat_index, floordiv, modulo, simplify_indices
from litz.ir.packing import Strides, copies_left, packs_right, split_k_of
from litz.ir.program import Buffer
from litz.ir.sizes import is_known
from litz.lower.panels import in_panels, packed_panels
from litz.lower.registry import FallbackToAten, rule
from litz.lower.values import Lowering, View, element, positions
from litz.lower.weight_only_quant import QuantizedOperand, quantized_operand

# A matmul of fewer multiply-adds is as quick in ATen; a shorter K does not fill the pipelines.
MIN_MACS = 1 << 12
FLOATS = (F32, F64, BF16, F16)
HALF_DTYPES = (BF16, F16)
MIN_K = 16


@rule("mm", "bmm", "_int_mm")
def _mm(low: Lowering, like: torch.Tensor, a: View, b: View) -> View:
    target = low.buffer(like)
    emit_gemm(low, target, a, b)
    return low.whole(target)


@rule("addmm", "baddbmm")
def _addmm(
    low: Lowering, like: torch.Tensor, bias: View, a: View, b: View, *, beta: Any = 1,
    alpha: Any = 1,
) -> View:  # fmt: skip
    product = low.contiguous_buffer((*a.shape[:-1], b.shape[-1]), a.dtype.compute)
    emit_gemm(low, product, a, b)

    def value(place: tuple[Expr, ...]) -> Expr:
        found = element(low.whole(product), place, a.dtype)
        if alpha != 1:
            found = apply("mul", found, const(float(alpha), found.dtype))
        if beta == 0:  # then a NaN in the bias does not count
            return found
        added = element(bias, place, a.dtype)
        if beta != 1:
            added = apply("mul", added, const(float(beta), added.dtype))
        return apply("add", found, added)

    return low.pointwise(like, value)


@rule("_scaled_mm")
def _scaled_mm(
    low: Lowering, like: torch.Tensor, a: View, b: View, scale_a: View, scale_b: View,
    bias: View | None = None, scale_result: View | None = None, out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> View:  # fmt: skip
    """(a @ b) * scale_a * scale_b + bias, accumulated in f32. `use_fast_accum` permits less exact
    sums, which ours never are; `scale_result` is for fp8 results, which are ATen's."""
    product = low.contiguous_buffer((a.shape[0], b.shape[1]), F32)
    try:
        _check_scales(low, dtype_of(like.dtype), a, b, (scale_a, scale_b))
        emit_gemm(low, product, a, b)
    except FallbackToAten as why:
        low.decide("refused", low.origin.node, f"{low.origin.op} is left to ATen: {why}")
        raise

    def value(place: tuple[Expr, ...]) -> Expr:
        scale = apply("mul", *(element(s, place, F32) for s in (scale_a, scale_b)))
        found = apply("mul", element(low.whole(product), place, F32), scale)
        return found if bias is None else apply("add", found, element(bias, place, F32))

    return low.pointwise(like, value)


def _check_scales(
    low: Lowering, made: DType, a: View, b: View, scales: tuple[View, View]
) -> None:  # fmt: skip
    """One scale per operand, or one per row of the left and per column of the right operand."""
    if low.target.panels:
        raise FallbackToAten("products of fp8 floats are ATen's on this target")
    if {a.dtype, b.dtype} - set(FP8_DTYPES) or made in FP8_DTYPES:
        raise FallbackToAten("a scaled matmul from or to another type")
    known = ((a.shape[0], ONE), (ONE, b.shape[1]))
    single = all(n is ONE for scale in scales for n in scale.shape)
    if any(s.dtype is not F32 for s in scales) or not (
        single or tuple(s.shape for s in scales) == known
    ):
        raise FallbackToAten("scales that are neither one number nor one for each row and column")
    if not gemm_requested(low, low.config.max_autotune_gemm_backends):
        raise FallbackToAten("cuBLAS computes it, unless timing or the user says else")


def emit_gemm(low: Lowering, target: Buffer, a: View, b: View) -> None:
    """target[..., i, j] = sum over k of a[..., i, k] * b[..., k, j], in the target's compute
    dtype."""
    *batch, i, j = positions(target.shape)
    k = axis("r0", a.shape[-1])
    plain = a.dtype in FLOATS and b.dtype is a.dtype and k.extent.hint > 0
    alone = low.gemm_choice.backend == "LOOP" and low.target.panels and plain
    if not alone:
        _check(low, a, b)
    if alone or not low.target.panels:
        operands = a.at((*batch, i, k)), b.at((*batch, k, j))
        split_k = low.gemm_choice.split_k or 1
        if split_k == 1 or batch or not k.extent.is_const or k.extent.number % split_k:
            _emit(low, target, (*batch, i, j), operands, k)
        else:
            _emit_split_k(low, target, (i, j, k), operands, split_k)
        return
    if not batch and target.dtype.compute is F32 and k.extent.is_const:
        width = low.panel_columns(F32.bytes, b.shape[-1].number)
        quantized = quantized_operand(low, b.at((k, j)), k, j, width)
        if quantized is not None:
            emit_quantized_gemm(low, target, a, quantized, (i, j, k))
            return
    right, group = _right(low, a, b, (*batch, k, j))
    left = _left(low, a, group, b.shape[-1].number).at((*batch, i, k))
    split_k = 1 if batch or not k.extent.is_const else _split_k(low, target, k.extent.number, group)
    if split_k == 1:
        _emit(low, target, (*batch, i, j), (left, right), k)
    else:
        _emit_split_k(low, target, (i, j, k), (left, right), split_k)


def _split_k(low: Lowering, target: Buffer, depth: int, group: int) -> int:
    """The number of parallel slices of K; one if the number of rows is symbolic."""
    if not target.shape[0].is_const:
        return 1
    rows, columns = (n.number for n in target.shape)
    width = low.panel_columns(target.dtype.compute.bytes, columns)
    blocks = (width, group, low.target.mr)
    return split_k_of(rows, depth, columns, *blocks, low.gemm_choice.split_k)


def _emit_split_k(
    low: Lowering, target: Buffer, place: tuple[Expr, Expr, Expr], operands: tuple[Expr, Expr],
    split_k: int,
) -> None:  # fmt: skip
    """partials[s, i, j] = sum over slice s;  target[i, j] = sum over s of partials[s, i, j]"""
    partials = low.contiguous_buffer((integer(split_k), *target.shape), target.dtype.compute)
    number, *front = positions(partials.shape)
    inside = axis("r0", place[2].extent.number // split_k)
    whole = apply("add", apply("mul", number, inside.extent), inside)
    moved = dict(zip(place, (*front, whole), strict=True))
    left, right = (simplify_indices(substitute(n, moved)) for n in operands)
    _emit(low, partials, (number, *front), (left, right), inside)
    piece = axis("r0", split_k)
    total = reduce("sum", (piece,), load(partials, (piece, *place[:2])))
    low.emit(target, place[:2], total, (piece,))


def emit_quantized_gemm(
    low: Lowering,
    target: Buffer,
    a: View,
    quantized: QuantizedOperand,
    place: tuple[Expr, Expr, Expr],
) -> None:
    """The same with a weight that stays quantized; its per-column scale follows the sum."""
    i, j, k = place
    left = _left(low, a, 1, target.shape[-1].number).at((i, k))
    if quantized.scale is None:
        _emit(low, target, (i, j), (left, quantized.value), k)
        return
    sums = low.contiguous_buffer(target.shape, F32)
    _emit(low, sums, (i, j), (left, quantized.value), k)
    low.emit(target, (i, j), apply("mul", load(sums, (i, j)), quantized.scale))


def _emit(
    low: Lowering, target: Buffer, place: tuple[Expr, ...], operands: tuple[Expr, Expr], k: Expr
) -> None:
    terms = (cast(operand, target.dtype.compute) for operand in operands)
    low.emit(target, place, reduce("sum", (k,), apply("mul", *terms)), (k,))


def _check(low: Lowering, a: View, b: View) -> None:
    if low.config.max_autotune_gemm_backends == "ATEN" or low.gemm_choice.backend == "ATEN":
        raise FallbackToAten("max_autotune_gemm_backends names ATEN alone, or ATen is quicker")
    if not low.target.panels:
        _check_device(low, a, b)
    rows, columns = a.shape[-2].hint, b.shape[-1].number
    # A sum of symbolic length takes one element a step, which only floats do.
    depth = a.shape[-1].hint if a.dtype in (F32, F64) else a.shape[-1].number
    in_fours = a.dtype is I8 and (low.target.dot_group("i8", "i8") > 1 or not low.target.panels)
    scaled = a.dtype in FP8_DTYPES and b.dtype in FP8_DTYPES
    if not scaled and (b.dtype is not a.dtype or not (in_fours or a.dtype in FLOATS)):
        raise FallbackToAten("a matmul of this type")
    if rows * depth * columns < MIN_MACS or depth < MIN_K:
        raise FallbackToAten("a small matmul")
    lanes = low.target.vector_bytes // max(b.dtype.compute.bytes, 4)
    if lanes < 2 or columns < lanes:
        raise FallbackToAten("a matmul with fewer columns than lanes")
    if len(a.shape) == 3 and a.shape[0] is not ONE and a.shape[-2] is ONE:
        raise FallbackToAten("a batch of single rows: each reads a matrix of its own once")


# -- the right operand -------------------------------------------------------------------------


def _right(low: Lowering, a: View, b: View, place: tuple[Expr, ...]) -> tuple[Expr, int]:
    """The element of the right operand, and how many neighbours along k are packed together."""
    rows, columns = a.shape[-2].hint, b.shape[-1].number
    width = low.panel_columns(max(b.dtype.compute.bytes, 4), columns)
    group = low.target.dot_group(a.dtype.name, b.dtype.name)
    kept = low.config.cpp.weight_prepack and low.is_static(b.buffer)
    steps = _steps(b.at(place), place)
    packs = packs_right(rows, columns, width, group, steps, b.dtype, kept)
    if isinstance(packs, str):
        raise FallbackToAten(packs)
    if not packs:
        return b.at(place), 1
    packed = low.whole(packed_panels(low, b, width, group))
    return packed.at(in_panels(place, width, group)), group


def _check_device(low: Lowering, a: View, b: View) -> None:
    """On a target without packing, the library computes matmuls of more than a few rows, unless
    timing or the user says otherwise. Operands must have the strides that a tile reads."""
    rows = a.shape[-2].hint
    known = is_known(*a.shape, *b.shape)
    sizes = (rows, a.shape[-1].hint, b.shape[-1].hint) if known and len(a.shape) == 2 else None
    backends = low.config.max_autotune_gemm_backends
    if rows > low.target.gemm_max_rows and not generates_gemm(low, sizes, a.dtype, backends):
        raise FallbackToAten("matmuls of so many rows are the library's on this target")
    if rows > 1 and not known:
        raise FallbackToAten("a matmul of symbolic sizes")
    place = positions(b.shape)
    near, far = _steps(b.at(place), place)
    if rows == 1 and far != 1:
        raise FallbackToAten("a right operand whose columns do not lie together")
    few = rows <= low.target.gemm_max_rows
    kinds = (*HALF_DTYPES, *FP8_DTYPES) if few else MMA_ACCUMULATORS
    if rows > 1 and (1 not in (near, far) or a.dtype not in kinds):
        raise FallbackToAten("operands that tensor cores do not take as they lie")


def gemm_requested(low: Lowering, backends: str) -> bool:
    """Whether the user, or autotuning, asks for our own GEMM on a GPU."""
    return "ATEN" not in backends or low.gemm_choice.form is not None


def generates_gemm(
    low: Lowering, sizes: tuple[int, int, int] | None, dtype: DType, backends: str
) -> bool:
    """Whether we compute a GEMM of (rows, depth, columns) on a GPU: the user or autotuning asks for
    it, or only elementwise ops read the result and the GEMM is bound by memory."""
    if gemm_requested(low, backends):
        return True
    joins = low.pointwise_users and low.config.epilogue_fusion and dtype in HALF_DTYPES
    return joins and sizes is not None and low.target.gemm_is_memory_bound(*sizes)


def _steps(node: Expr, place: tuple[Expr, ...]) -> Strides:
    """The strides of a load along its last axis and the one before; 0 if not constant."""
    flat = flat_index(node.buffer, node.index)
    found = [coefficient(flat, variable) for variable in (place[-1], place[-2])]
    near, far = (f[0].number if f is not None and f[0].is_const else 0 for f in found)
    return near, far


# -- the left operand --------------------------------------------------------------------------


def _left(low: Lowering, a: View, group: int, columns: int) -> View:
    """The left operand as the kernel reads it: in the accumulator's dtype, or in groups along k."""
    if group == 1 and a.dtype.compute is not a.dtype:
        return _copied(low, a, a.dtype.compute)
    place = positions(a.shape)
    copied = copies_left(columns, group, _steps(a.at(place), place), a.dtype)
    return _copied(low, a, a.dtype) if copied else a


def _copied(low: Lowering, a: View, dtype: DType) -> View:
    """A row-major copy."""
    made = low.contiguous_buffer(a.shape, dtype)
    place = positions(a.shape)
    low.emit(made, place, cast(a.at(place), dtype))
    return low.whole(made)


# -- quantized weights ------------------------------------------------------------------------


@rule("_weight_int8pack_mm")
def _weight_int8pack_mm(low: Lowering, like: torch.Tensor, a: View, b: View, scales: View) -> View:
    """x @ (w * scales[:, None]).t() with w of [columns, depth] in int8."""

    def value(k: Expr, j: Expr) -> Expr:
        return apply("mul", cast(b.at((j, k)), F32), cast(scales.at((j,)), F32))

    return _weight_only_gemm(low, like, a, value)


@rule("_weight_int4pack_mm_for_cpu")
def _weight_int4pack_mm(
    low: Lowering, like: torch.Tensor, a: View, b: View, group: int, scales_and_zeros: View
) -> View:
    """x @ ((w - 8) * scale + zero).t(), with one scale and zero per column and group.

    ATen's packing has, for each 64 columns and each k, a row of 32 bytes: column c in the low half
    of byte c, column c + 32 in the high half.
    """
    half = b.shape[1].number
    if a.dtype is BF16:
        raise FallbackToAten("4-bit weights with bf16: ATen's own kernel is faster for few rows")
    if b.shape[0].number % 64 or not _packs_by_64():
        raise FallbackToAten("another packing of 4-bit weights")

    def value(k: Expr, j: Expr) -> Expr:
        block, column = floordiv(j, integer(64)), modulo(j, integer(64))
        row = apply("add", apply("mul", block, integer(2 * half)), k)
        place = apply("add", apply("mul", row, integer(32)), modulo(column, integer(32)))
        byte = b.at((floordiv(place, integer(half)), modulo(place, integer(half))))
        halves = apply("and", byte, const(15, U8)), apply("shr", byte, const(4, U8))
        bits = apply("where", apply("lt", column, integer(32)), *halves)
        number = apply("sub", cast(bits, F32), const(8.0, F32))
        where = floordiv(k, integer(group))
        scale, zero = (cast(scales_and_zeros.at((where, j, integer(n))), F32) for n in (0, 1))
        return apply("add", apply("mul", number, scale), zero)

    return _weight_only_gemm(low, like, a, value)


def _weight_only_gemm(
    low: Lowering, like: torch.Tensor, a: View, value: Callable[[Expr, Expr], Expr]
) -> View:
    target = low.buffer(like)
    i, j = positions(target.shape)
    k = axis("r0", a.shape[1].number)
    lanes = low.target.vector_bytes // F32.bytes
    if not low.target.panels:
        if a.shape[0] is not ONE or low.config.max_autotune_gemm_backends == "ATEN":
            raise FallbackToAten("matmuls with quantized weights are the library's on this target")
        _emit(low, target, (i, j), (a.at((i, k)), value(k, j)), k)
        return low.whole(target)
    if lanes < 2 or target.shape[1].number < lanes or a.shape[1].number < MIN_K:
        raise FallbackToAten("a small matmul")
    width = low.panel_columns(F32.bytes, target.shape[1].number)
    quantized = quantized_operand(low, value(k, j), k, j, width)
    if low.config.max_autotune_gemm_backends == "ATEN" or quantized is None:
        raise FallbackToAten("a quantized weight that is no parameter, or with ATEN alone")
    emit_quantized_gemm(low, target, a, quantized, (i, j, k))
    return low.whole(target)


@cache
def _packs_by_64() -> bool:
    """Whether this machine's ATen packs 4-bit weights in blocks of 64 columns."""
    numbers = torch.arange(64 * 16, dtype=torch.int32, device="cpu").reshape(64, 16) % 15
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1).reshape(16, 32)
    low, high = numbers.t()[:, :32], numbers.t()[:, 32:]
    return bool(torch.equal(packed.int(), low + 16 * high))
