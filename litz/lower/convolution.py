"""Convolutions: implicit GEMM, its left operand read through windows, and depthwise sums.

In: an image, a weight that is a parameter, and the geometry. Out: a reduction over the taps of a
window and its channels, channels last; an epilogue fuses as with any GEMM. Where oneDNN is faster
(`litz/ir/convolution.py` says why) the op stays with it. Example, 3 x 3:

    t[n, y, x, j] = sum over (r0, r1, c) of a[n, y + r0 - 1, x + r1 - 1, c] * w[r0, r1, c, j]
"""

from __future__ import annotations

from typing import Any

import torch

from litz.ir.convolution import Convolution, convolution_of, has_onednn, library_reason
from litz.ir.dtypes import F32
from litz.ir.expr import Expr, apply, axis, cast, integer, load, reduce, substitute
from litz.ir.index import ZERO, coefficient, flat_index, ravel, simplify, unravel
from litz.ir.program import Buffer
from litz.ir.sizes import is_known
from litz.lower.matmul import HALF_DTYPES, gemm_requested
from litz.lower.panels import in_panels, packed_panels
from litz.lower.pool import Strided, Window
from litz.lower.registry import FallbackToAten, rule
from litz.lower.values import Lowering, View, positions


@rule("convolution")
def _convolution(
    low: Lowering, like: torch.Tensor, x: View, weight: View, bias: View | None, *where: Any
) -> View:
    if not is_known(*x.shape, *weight.shape):
        low.decide("refused", low.origin.node, "the library convolves: an image of unknown size")
        raise FallbackToAten("an image of unknown size")
    sizes = ([n.number for n in v.shape] for v in (x, weight))
    conv = convolution_of(*sizes, list(like.shape), *where)
    if low.config.max_autotune_conv_backends == "ATEN" or low.gemm_choice.backend == "ATEN":
        low.decide("refused", low.origin.node, "the library convolves: max_autotune_conv_backends"
                   " names ATEN alone, or ATen is quicker")  # fmt: skip
        raise FallbackToAten("ATEN alone, or ATen is quicker")
    if _uses_mma(low, x, weight, conv):
        return _biased(low, like, _conv_1x1_mma(low, x, weight, conv), bias)
    why_not = library_reason(conv, low.target.gemm_lanes, low.config.conv_1x1_as_mm)
    if x.dtype is not F32 or weight.dtype is not F32:
        why_not = "a convolution of this type"
    elif not (
        _is_channels_last_3d(like)
        or (low.config.cpp.weight_prepack and low.is_static(weight.buffer))
    ):
        why_not = "a weight that would have to be packed at each call"
    elif len(x.shape) > 3 and has_onednn() and not _is_channels_last(x):
        why_not = why_not or "its channels do not lie side by side (layout_optimization)"
    if why_not:
        low.decide("refused", low.origin.node, f"the library convolves: {why_not}")
        raise FallbackToAten(why_not)
    shape = (x.shape[0], *map(integer, conv.outputs), integer(conv.results))
    sums = low.contiguous_buffer(shape, F32)
    (_depthwise if conv.is_depthwise else _implicit_gemm)(low, sums, x, weight, conv)
    return _biased(low, like, sums, bias)


def _biased(low: Lowering, like: torch.Tensor, sums: Buffer, bias: View | None) -> View:
    def value(place: tuple[Expr, ...]) -> Expr:
        found = load(sums, (place[0], *place[2:], place[1]))
        return found if bias is None else apply("add", found, cast(bias.at((place[1],)), F32))

    return low.pointwise(like, value)


def _uses_mma(low: Lowering, x: View, weight: View, conv: Convolution) -> bool:
    """Whether a GPU's tensor cores compute it as our GEMM: a 1 x 1 convolution whose positions are
    consecutive in memory, if the user or timing asks for it. By default it is cuDNN's: with the
    rule for GEMMs, which ignores what follows, ResNet-50 took 1.89 ms, not 1.74."""
    if low.target.panels or not conv.is_pointwise or not low.config.conv_1x1_as_mm:
        return False
    if x.dtype not in HALF_DTYPES or weight.dtype is not x.dtype or len(conv.outputs) != 2:
        return False
    if conv.places < 2 or not gemm_requested(low, low.config.max_autotune_conv_backends):
        return False
    image, channel, *place = positions(x.shape)
    flat = flat_index(x.buffer, x.at((image, channel, *place)).index)
    step = _coefficient(flat, channel)
    far = [_coefficient(flat, variable) for variable in (image, *place)]
    rows, columns = conv.extents
    last = conv.channels if far[2] is None else far[2]
    wanted = [rows * columns * last, columns * last, last]
    in_order = all(n in (None, w) for n, w in zip(far, wanted, strict=True))
    return step == 1 and in_order


def _coefficient(flat: Expr, variable: Expr) -> int | None:
    """The stride along an axis; None if its extent is one, 0 if the stride is not constant."""
    if variable is ZERO:
        return None
    found = coefficient(flat, variable)
    return found[0].number if found is not None and found[0].is_const else 0


def _conv_1x1_mma(low: Lowering, x: View, weight: View, conv: Convolution) -> Buffer:
    """sums[n, y, x, j] = sum over r0 of a[n, r0, y, x] * w[j, r0]"""
    shape = (x.shape[0], *map(integer, conv.outputs), integer(conv.results))
    sums, over = low.contiguous_buffer(shape, F32), axis("r0", conv.channels)
    image, *place, column = positions(shape)
    operands = x.at((image, over, *place)), weight.at((column, over, ZERO, ZERO))
    term = apply("mul", *(cast(operand, F32) for operand in operands))
    low.emit(sums, (image, *place, column), reduce("sum", (over,), term), (over,))
    return sums


def _is_channels_last_3d(like: torch.Tensor) -> bool:
    """Whether `litz/passes/channels_last.py` moved a volume to channels last for us."""
    return like.dim() == 5 and not like.is_contiguous()


def _windows(conv: Convolution) -> Window:
    sides = (conv.extents, conv.kernel, conv.stride, conv.padding, conv.dilation)
    return Window([Strided(*side) for side in zip(*sides, strict=True)])


def _implicit_gemm(low: Lowering, sums: Buffer, x: View, weight: View, conv: Convolution) -> None:
    """Rows are windows, columns the output channels, and the sum runs over taps and channels."""
    window, channel = _windows(conv), axis(f"r{len(conv.kernel)}", conv.channels)
    *row, column = positions(sums.shape)
    (image, *place), inside = window.at(tuple(row))
    left = _to_channels_last(low, x).at((image, channel, *place), inside)
    step = ravel((*window.bound, channel), (*map(integer, conv.kernel), channel.extent))
    width = low.target.panel_columns(F32.bytes, conv.results)
    packed = low.whole(packed_panels(low, _as_matrix(weight, conv), width, 1))
    right = packed.at(in_panels((step, column), width, 1))
    over = (*window.axes, channel)
    total = reduce("sum", over, apply("mul", left, right))
    low.emit(sums, (*row, column), total, over)


def _as_matrix(weight: View, conv: Convolution) -> View:
    """w[j, c, r0, r1] as a matrix [(r0, r1, c), j]."""
    channels = integer(conv.channels)
    shape = (integer(conv.taps * conv.channels), integer(conv.results))
    step, column = positions(shape)
    *taps, channel = unravel(step, (*map(integer, conv.kernel), channels))
    return _mapped(weight, shape, (column, channel, *taps))


def _depthwise(low: Lowering, sums: Buffer, x: View, weight: View, conv: Convolution) -> None:
    """Each channel by itself: the weight is stored tap by tap, with channels contiguous."""
    window = _windows(conv)
    *row, channel = positions(sums.shape)
    (image, *place), inside = window.at(tuple(row))
    left = _to_channels_last(low, x).at((image, channel, *place), inside)
    taps = low.contiguous_buffer((*map(integer, conv.kernel), integer(conv.results)), F32)
    *tap, lane = positions(taps.shape)
    low.emit(taps, (*tap, lane), weight.at((lane, ZERO, *tap)))
    right = load(taps, (*window.bound, channel))
    total = reduce("sum", window.axes, apply("mul", left, right))
    low.emit(sums, (*row, channel), total, window.axes)


def _to_channels_last(low: Lowering, x: View) -> View:
    """The image in channels last: copied if it is not."""
    if _is_channels_last(x):
        return x
    image, channels, *extents = x.shape
    made = low.contiguous_buffer((image, *extents, channels), x.dtype)
    first, *rest, last = positions(made.shape)
    low.emit(made, (first, *rest, last), x.at((first, last, *rest)))
    first, channel, *rest = positions(x.shape)
    return View(made, x.shape, (first, *rest, channel), made.strides, ZERO)


def _is_channels_last(x: View) -> bool:
    place = positions(x.shape)
    found = coefficient(flat_index(x.buffer, x.at(place).index), place[1])
    return found is not None and found[0].is_const and found[0].number == 1


def _mapped(view: View, shape: tuple[Expr, ...], index: tuple[Expr, ...]) -> View:
    """The same elements in another shape."""
    places = dict(zip(positions(view.shape), index, strict=True))
    places = {k: v for k, v in places.items() if k is not ZERO}
    moved = tuple(simplify(substitute(i, places)) for i in view.index)
    return View(view.buffer, shape, moved, view.strides, view.offset)
