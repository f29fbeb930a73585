"""Which ops are decomposed before lowering, and which are not.

In: nothing. Out: `decompositions()`, the table AOTAutograd applies while it traces. Torch supplies
most decompositions; the choice is ours: core ATen's set, and composite ops that fuse well once they
are loops (softmax, norms, activations), without ops that a kernel or ATen does better whole.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._decomp import decompositions as torch_decompositions
from torch._prims_common import (
    make_channels_last_strides_for,
    make_contiguous_strides_for,
    suggest_memory_format,
)
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

from litz.capture.foreach import foreach_decompositions
from litz.capture.losses import loss_decompositions
from litz.ir.dtypes import BF16, F16, F32
from litz.ir.expr import const
from litz.ir.overflow import overflows
from litz.ir.refused import may_refuse, refuses
from litz.target import HOST, eager_on

aten = torch.ops.aten

# Decomposed beyond core ATen: each becomes pointwise loops and reductions that fuse into one.
DECOMPOSED = (
    aten._softmax,
    aten._log_softmax,
    aten._softmax_backward_data,
    aten._log_softmax_backward_data,
    aten.native_layer_norm,
    aten.native_layer_norm_backward,
    aten.native_group_norm,
    aten.native_group_norm_backward,
    aten.native_batch_norm,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training,
    aten.native_batch_norm_backward,
    aten._batch_norm_with_update_functional,
    aten._batch_norm_no_update,
    aten.batch_norm_backward,
    aten.gelu,
    aten.gelu_backward,
    aten.elu,
    aten.hardtanh,
    aten.leaky_relu,
    aten.rrelu_with_noise_backward,
    aten.linalg_vector_norm,
    aten.dist,
    aten.tril_indices,
    aten.triu_indices,
)

# A copy of a view is the view, cloned: it needs no lowering rule beyond the view's.
VIEW_COPY_OPS = """
    as_strided detach diagonal expand narrow permute select slice split split_with_sizes squeeze t
    transpose unbind unfold unsqueeze view
"""

# Kept whole: attention and batched matmuls are ATen's (or a template's); eager's random numbers
# come from eager's ops; a matmul decomposed into sums of products would no longer be a GEMM; an op
# with a lowering rule of its own is one loop, where torch's decomposition is dozens.
NOT_DECOMPOSED = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten.baddbmm,
    aten.bernoulli,
    aten.native_dropout,
    aten.clamp,
    aten.masked_scatter,
    aten.select_scatter,
    aten._unsafe_index,
    aten.reflection_pad1d,
    aten.reflection_pad2d,
    aten.reflection_pad3d,
    aten.reflection_pad1d_backward,
    aten.reflection_pad2d_backward,
    aten.reflection_pad3d_backward,
    aten.replication_pad1d,
    aten.replication_pad2d,
    aten.replication_pad3d,
)

# The softmax of an empty dimension is empty in eager.
MAYBE_EMPTY_SOFTMAX = (aten._softmax.default, aten._log_softmax.default)
# Eager's result has the dtype of the first operand, where torch's decompositions promote.
IN_FIRST_DTYPE = (aten.huber_loss.default, aten.soft_margin_loss.default)
BEFORE_TORCH_2_13 = not hasattr(torch_decompositions, "_softmax_unbacked_safe_amax")


def _attention_f64(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0,
    is_causal: bool = False, *, attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Before 2.13, torch predicts the logsumexp in float32 where the op returns float64, so the
    gradient would be compiled for wrong inputs. The op stays whole; its logsumexp is recomputed."""
    if q.dtype is not torch.float64 or dropout_p or _DEPTH.is_whole:
        return NotImplemented
    op, _DEPTH.is_whole = aten._scaled_dot_product_flash_attention_for_cpu.default, True
    try:
        found, _ = op(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    finally:
        _DEPTH.is_whole = False
    if scale is None:
        scale = 1 / math.sqrt(q.shape[-1]) if q.shape[-1] else math.inf
    score = q @ k.mT * scale
    if attn_mask is not None:
        score = score + attn_mask
    if is_causal:
        score = score.masked_fill(~torch.ones_like(score, dtype=torch.bool).tril(), -math.inf)
    return found, score.logsumexp(-1)


def _norm_of_rows(
    decomp: Callable[..., Any], x: torch.Tensor, ord: Any = 2, dim: Any = None,
    keepdim: bool = False, *, dtype: Any = None,
) -> Any:  # fmt: skip
    """Before 2.13, torch keeps the reduced dimension where the norm is of a single number."""
    found = decomp(x, ord, dim, keepdim, dtype=dtype)
    gone = [d % max(x.dim(), 1) for d in pytree.tree_leaves(dim) if d is not None]
    gone = gone or list(range(x.dim()))
    shape = [n for d, n in enumerate(x.shape) if d not in gone]
    return found if keepdim or found.dim() == len(shape) else found.reshape(shape)


def _in_first_dtype(
    decomp: Callable[..., Any], first: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    return decomp(first, *args, **kwargs).to(first.dtype)


def _softmax_of_maybe_empty(
    decomp: Callable[..., Any], x: torch.Tensor, dim: int, half_to_float: bool
) -> torch.Tensor:
    """A softmax along a dimension that may be empty at run time. An empty row has no maximum, and
    torch before 2.13 assumes that it has one. Each row therefore gets one more element, minus
    infinity, which has no weight."""
    if not x.dim() or statically_known_true(x.shape[dim] > 0):
        return decomp(x, dim, half_to_float)  # type: ignore[no-any-return]
    shape = list(x.shape)
    shape[dim] = 1
    longer = torch.cat([x, x.new_full(shape, -math.inf)], dim)
    found = decomp(longer, dim, half_to_float)
    return found.narrow(dim, 0, x.shape[dim]).contiguous()  # type: ignore[no-any-return]


def _cloned(view: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """ATen's copying ops return contiguous tensors, whatever the operand's layout is."""
    clone = partial(torch.clone, memory_format=torch.contiguous_format)
    return pytree.tree_map_only(torch.Tensor, clone, view(*args, **kwargs))


def _logsumexp(decomp: Any, x: torch.Tensor, dim: Any, keepdim: bool = False) -> Any:
    """With an empty `dim`, eager either reduces nothing or refuses: the op stays eager's."""
    if not isinstance(dim, int) and not dim and x.dim():
        return NotImplemented
    return decomp(x, dim, keepdim)


# The index dtypes that eager accepts for slices.
SLICE_INDICES = (torch.int32, torch.int64)


def _index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *,
    include_self: bool = True,
) -> Any:  # fmt: skip
    """Reduce whole slices into the positions that the index names: a scatter of their elements."""
    if index.dtype not in SLICE_INDICES or x.dtype is torch.bool:  # eager takes no bools
        return NotImplemented
    if not x.dim():  # a scalar is treated as a row of one element
        x, index, source = (t.reshape(1) for t in (x, index, source))
        return _index_reduce(x, 0, index, source, reduce, include_self=include_self).reshape(())
    places = _spread_index(x, dim, index, source)
    return aten.scatter_reduce.two(x, dim, places, source, reduce, include_self=include_self)


def _put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, add: bool = False) -> Any:
    """Indices into a flattened tensor. Under deterministic algorithms eager refuses the op,
    whatever its indices are."""
    if torch.are_deterministic_algorithms_enabled():
        return NotImplemented
    if not x.is_contiguous() or index.dtype is not torch.int64:  # eager takes no other index
        return NotImplemented
    flat, places = x.reshape(-1), [index.reshape(-1)]
    return aten.index_put(flat, places, source.reshape(-1), add).view(x.shape)


def _linspace(decomp: Callable[..., Any], *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """For integers, eager truncates a float whose rounding depends on its vector loop: an element
    that should be 1 may be 0. ATen therefore computes them."""
    if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
        return NotImplemented
    return decomp(*args, dtype=dtype, **kwargs)


def _roll(decomp: Callable[..., Any], x: torch.Tensor, shifts: Any, dims: Any = ()) -> Any:
    """Along one dimension, eager's CPU roll is a cat and has the layout of a cat. Torch's decomp,
    which reads at indices and is quicker, is always row-major, as a GPU's roll is."""
    one = len(shifts) == len(dims) == 1 and x.dim() > 0 and eager_on(x.device).keeps_memory_format
    if not one or x.numel() == 0 or x.is_contiguous():
        return decomp(x, shifts, dims)
    size = x.shape[dims[0]]
    start = (size - shifts[0]) % size
    return aten.cat([x.narrow(dims[0], start, size - start), x.narrow(dims[0], 0, start)], dims[0])


def _nan_to_num(decomp: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Torch's decomposition tests for infinities, and takes no complex numbers."""
    return NotImplemented if x.dtype.is_complex else decomp(x, *args, **kwargs)


def _channel_shuffle(decomp: Callable[..., Any], x: torch.Tensor, groups: int) -> Any:
    """Eager's CPU result has its operand's layout; torch's decomp is row-major, as a GPU's is."""
    found = decomp(x, groups)
    if not eager_on(x.device).keeps_memory_format or not x.numel():
        return found
    return found.contiguous(memory_format=suggest_memory_format(x))


def _threshold(x: torch.Tensor, threshold: float, value: float) -> Any:
    """Both numbers in the tensor's dtype; torch's decomposition takes integers through floats,
    which do not represent all of them. On a CPU, halves are compared with a float32."""

    def number(given: float, half: Any) -> float:
        if half is not None:
            return float(const(given, half).attr)
        return given if x.dtype.is_floating_point else int(given)

    half = {torch.float16: F16, torch.bfloat16: BF16}.get(x.dtype)
    wide = F32 if half is not None and eager_on(x.device).compares_half_in_f32 else half
    return torch.where(x <= number(threshold, wide), number(value, half), x)


def _addcmul(
    decomp: Callable[..., Any], x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, *, value: Any = 1
) -> Any:
    """For integers, eager truncates `value` to an integer; torch's decomposition refuses it."""
    is_float = isinstance(value, (float, torch.SymFloat))
    if is_float and not any(t.is_floating_point() or t.is_complex() for t in (x, y, z)):
        value = torch.sym_int(value)
    return decomp(x, y, z, value=value)


def _powers_of_number(base: Any, exponent: torch.Tensor) -> Any:
    """Eager's result is row-major; torch predicts the strides of the exponents."""
    steps = zip(exponent.stride(), make_contiguous_strides_for(exponent.shape), strict=True)
    if all(statically_known_true(step == dense) for step, dense in steps):
        return NotImplemented
    return aten.pow.Scalar(base, exponent.clone(memory_format=torch.contiguous_format))


def _index_add(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> Any:  # fmt: skip
    """Add whole slices at the positions that the index names. Torch's own decomposition goes
    through `index_put`, which accepts negative indices; eager refuses them."""
    if x.dtype.is_complex or index.dtype not in SLICE_INDICES:
        return NotImplemented
    if x.dtype is torch.bool:  # the factor of bools is a bool as well
        alpha = bool(alpha != 0)
    if not x.dim():
        x, index, source = (t.reshape(1) for t in (x, index, source))
        return _index_add(x, 0, index, source, alpha=alpha).reshape(())
    places = _spread_index(x, dim, index, source)
    outermost = x.dim() > 1 and dim % x.dim() in (0, x.dim() - 1)
    if alpha == 1 and outermost and index.dtype is torch.int64:
        return aten.scatter_add(x, dim, places, source)
    # Here eager runs another kernel, with another error for an index out of range.
    scaled = source if alpha == 1 else source * alpha
    return aten.scatter_reduce.two(x, dim, places, scaled, "sum")


def _index_copy(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    """Copy whole slices to the positions that the index names; see `_index_add`."""
    if x.dtype.is_complex or index.dtype is not torch.int64:  # eager takes no other index
        return NotImplemented
    if not x.dim():
        x, index, source = (t.reshape(1) for t in (x, index, source))
        return _index_copy(x, 0, index, source).reshape(())
    if not source.dim():
        source = source.expand([1 if d == dim % x.dim() else n for d, n in enumerate(x.shape)])
    return aten.scatter.src(x, dim, _spread_index(x, dim, index, source), source)


def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> Any:
    """Fill slices with one number. Eager counts negative indices from the end; torch's own
    decomposition, made of `index_copy`, would refuse them."""
    if index.dtype is not torch.int64:  # eager takes no other index
        return NotImplemented
    row = x if x.dim() else x.reshape(1)
    if not isinstance(value, torch.Tensor):
        value = torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    places = [*[None] * (dim % row.dim()), index]
    return aten.index_put(row, places, value.to(x.dtype)).reshape(x.shape)


def _spread_index(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor
) -> torch.Tensor:
    """An index of slices, expanded to an index of their elements."""
    shape = [-1 if d == dim % x.dim() else 1 for d in range(x.dim())]
    return index.reshape(shape).to(torch.int64).expand_as(source)


def _max_unpool(
    x: torch.Tensor, indices: torch.Tensor, size: Sequence[int], rank: int
) -> torch.Tensor:
    """Put values back where they were before a pool. Torch's own decomposition indexes all planes
    as one, so an index outside of its plane, which eager refuses, would write into another one."""
    planes = x.shape[:-rank]
    zeros = x.new_zeros([*planes, math.prod(size)])
    places, values = (t.reshape([*planes, -1]) for t in (indices, x))
    return aten.scatter.src(zeros, -1, places, values).view([*planes, *size])


def _max_unpool2d(x: torch.Tensor, indices: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return _max_unpool(x, indices, size, 2).contiguous(memory_format=suggest_memory_format(x))


def _max_unpool3d(
    x: torch.Tensor, indices: torch.Tensor, size: Sequence[int], *_: Any
) -> torch.Tensor:
    return _max_unpool(x, indices, size, 3)


def _result_format(image: torch.Tensor) -> torch.memory_format:
    """The memory format that eager's batch norms give their result. Where dimensions of size one
    fit several formats, contiguous wins over channels-last, and both over the strides' suggestion.
    """
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    if image.is_contiguous():
        return torch.contiguous_format
    if last is not None and image.is_contiguous(memory_format=last):
        return last
    return suggest_memory_format(image)


def _in_memory_format(decomp: Callable[..., Any], place: int, *args: Any, **kwargs: Any) -> Any:
    """A batch norm with the layout that eager gives it on a CPU; its decomposition keeps any
    strides, as eager's kernel does on a GPU. The image is argument 0, or 1 in a backward."""
    first, *others = decomp(*args, **kwargs)
    if first is not None and eager_on(first.device).keeps_memory_format:
        layout = (_result_format, suggest_memory_format)[place](args[place])
        dense = layout is torch.contiguous_format
        strides_for = make_contiguous_strides_for if dense else make_channels_last_strides_for
        if tuple(first.stride()) != tuple(strides_for(first.shape)):
            first = first.clone(memory_format=layout)
    return (first, *others)


def _scatter_into_copy(scatter: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Replace a part of a tensor. Eager first copies the tensor with its strides. An expanded
    tensor, whose elements could not differ after that, it clones densely instead; torch before 2.13
    (for `as_strided_scatter` 2.13 too) predicts the expanded strides all the same. A tensor without
    elements stays as it is: its clone would be expanded, too."""
    if statically_known_true(x.numel() == 0):
        return NotImplemented
    steps = zip(x.stride(), x.shape, strict=True)
    if any(statically_known_true(s == 0) and statically_known_true(n > 1) for s, n in steps):
        return scatter(x.clone(), *args, **kwargs)
    return NotImplemented


SCATTER_OPS = (
    aten.select_scatter.default,
    aten.slice_scatter.default,
    aten.diagonal_scatter.default,
    aten.as_strided_scatter.default,
)


# Op -> the position of the image among its arguments.
BATCH_NORMS = {
    aten.native_batch_norm: 0,
    aten._native_batch_norm_legit: 0,
    aten._native_batch_norm_legit_functional: 0,
    aten._native_batch_norm_legit_no_training: 0,
    aten._batch_norm_with_update_functional: 0,
    aten._batch_norm_no_update: 0,
    aten.native_batch_norm_backward: 1,
    aten.batch_norm_backward: 1,
}


# Ours: torch has no decomposition of these, or one whose numbers differ from eager's, or one that
# accepts arguments that eager refuses.
CUSTOM_DECOMPOSITIONS = {
    aten.index_add.default: _index_add,
    aten.index_copy.default: _index_copy,
    aten.index_fill.int_Scalar: _index_fill,
    aten.index_fill.int_Tensor: _index_fill,
    aten.index_reduce.default: _index_reduce,
    aten.max_unpool2d.default: _max_unpool2d,
    aten.max_unpool3d.default: _max_unpool3d,
    aten.pow.Scalar: _powers_of_number,
    aten.put.default: _put,
    aten.threshold.default: _threshold,
}


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table, made once: torch's own construction of it takes a while."""
    table = dict(core_aten_decompositions())
    table.update(get_decompositions(list(DECOMPOSED)))
    for name in VIEW_COPY_OPS.split():
        copy, view = getattr(aten, f"{name}_copy"), getattr(aten, name)
        for overload in set(copy.overloads()) & set(view.overloads()):
            table[getattr(copy, overload)] = partial(_cloned, getattr(view, overload))
    table.update(CUSTOM_DECOMPOSITIONS)
    table.update(foreach_decompositions())
    table[aten.addcmul.default] = partial(_addcmul, table[aten.addcmul.default])
    table[aten.nan_to_num.default] = partial(_nan_to_num, table[aten.nan_to_num.default])
    for op in (aten.channel_shuffle.default, aten.native_channel_shuffle.default):
        if op in table:
            table[op] = partial(_channel_shuffle, table[op])
    table[aten.roll.default] = partial(_roll, table[aten.roll.default])
    table[aten.linspace.default] = partial(_linspace, table[aten.linspace.default])
    table[aten.logsumexp.default] = partial(_logsumexp, table[aten.logsumexp.default])
    for overload in IN_FIRST_DTYPE:
        table[overload] = partial(_in_first_dtype, table[overload])
    if BEFORE_TORCH_2_13:
        norm = aten.linalg_vector_norm.default
        table[norm] = partial(_norm_of_rows, table[norm])
        for overload in MAYBE_EMPTY_SOFTMAX:
            table[overload] = partial(_softmax_of_maybe_empty, table[overload])
    for packet, place in BATCH_NORMS.items():
        for overload in (getattr(packet, name) for name in packet.overloads()):
            if overload in table:
                table[overload] = partial(_in_memory_format, table[overload], place)
    table.update(loss_decompositions(table))
    for packet in NOT_DECOMPOSED:
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    if BEFORE_TORCH_2_13:
        table[aten._scaled_dot_product_flash_attention_for_cpu.default] = _attention_f64
    for scatter in SCATTER_OPS:
        assert scatter not in table, f"{scatter} is taken apart, and has a rule of its own"
        table[scatter] = partial(_scatter_into_copy, scatter)
    return {op: _unless_refused(op, decomp) for op, decomp in table.items()}


class _Depth(threading.local):
    """How many decompositions are nested in a thread, and whether one keeps its own op whole."""

    inside = 0
    is_whole = False


_DEPTH = _Depth()


def _unless_refused(op: Any, decomp: Callable[..., Any]) -> Callable[..., Any]:
    """An op stays whole for dtypes that eager's kernel refuses, and for numbers that its dtype
    cannot represent: ATen then raises as eager does. Ops inside a decomposition are not checked,
    since eager never sees them."""
    asked = may_refuse(str(op))

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        if not _DEPTH.inside and (
            (asked and _is_refused(op, args, kwargs)) or _overflows(op, args, kwargs)
        ):
            return NotImplemented
        _DEPTH.inside += 1
        try:
            return decomp(*args, **kwargs)
        finally:
            _DEPTH.inside -= 1

    return decomposed


def _is_refused(op: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    devices = [t.device for t in given] or [torch.device(kwargs.get("device") or HOST)]
    if not all(eager_on(device).refuses_types for device in devices):
        return False
    return refuses(str(op), (str(t.dtype) for t in given), kwargs.get("dtype"))


def _overflows(op: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    leaves = pytree.tree_leaves((args, kwargs))
    first = next((t.dtype for t in leaves if isinstance(t, torch.Tensor)), None)
    dtype = kwargs.get("dtype") or first
    if "_foreach_" in str(op) and any(isinstance(n, float) for n in leaves):
        dtype = first and torch.promote_types(first, torch.float16)  # foreach ops promote dtypes
    return dtype is not None and overflows(op, args, kwargs, dtype)
