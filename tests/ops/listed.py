"""The ops that Litz promises to generate, by the names of `op_db`: the first list of issue 3.

In: nothing. Out: `LISTED`, a set of names; the sweep reports which share of it is generated.
"""

from __future__ import annotations

from torch.testing._internal.common_methods_invocations import (
    BinaryUfuncInfo,
    ReductionOpInfo,
    UnaryUfuncInfo,
    op_db,
)

from tests.ops.opinfo import name_of

# Pointwise by class, but of complex numbers, or compiled from CUDA source that eager brings along.
COMPLEX_OR_CUDA = """
    angle conj conj_physical imag real complex polar resolve_conj cdouble cfloat chalf hash_tensor
    jiterator_binary jiterator_unary jiterator_binary_return_by_ref nn.functional.silu.complex
    __rmatmul__
"""

POINTWISE = """
    addcdiv addcmul clamp clone deg2rad heaviside isclose lerp masked_fill nan_to_num
    nn.functional.celu nn.functional.elu nn.functional.gelu nn.functional.hardshrink
    nn.functional.hardsigmoid nn.functional.hardswish nn.functional.hardtanh
    nn.functional.leaky_relu nn.functional.logsigmoid nn.functional.mish nn.functional.prelu
    nn.functional.relu nn.functional.relu6 nn.functional.selu nn.functional.silu
    nn.functional.softplus nn.functional.softshrink nn.functional.softsign
    nn.functional.tanhshrink nn.functional.threshold polygamma.polygamma_n_0 where xlogy fill
    rsub frexp bfloat16 bool byte char double float half int long short to
    nn.functional.glu native_dropout_backward
"""
REDUCTIONS = """
    aminmax cumsum cumprod cummax cummin logcumsumexp logsumexp count_nonzero std std.unbiased
    std_mean std_mean.unbiased var var.unbiased var_mean var_mean.unbiased norm norm.fro norm.inf
    linalg.norm linalg.vector_norm max.reduction_no_dim max.reduction_with_dim
    min.reduction_no_dim min.reduction_with_dim mean sum prod amax amin argmax argmin all any
    nansum nanmean masked.cumsum masked.cumprod trace diff
"""
INDEXING = """
    __getitem__ index_put gather scatter scatter_add scatter_reduce.amax scatter_reduce.amin
    scatter_reduce.mean scatter_reduce.prod scatter_reduce.sum index_add index_copy index_fill
    index_select masked_scatter take_along_dim nn.functional.embedding nn.functional.one_hot
    index_reduce.amax index_reduce.amin index_reduce.mean index_reduce.prod take put
    _unsafe_masked_index _unsafe_masked_index_put_accumulate bucketize searchsorted
"""
MOVING = """
    cat stack split split.list_args split_with_sizes split_with_sizes_copy chunk unsafe_chunk
    unsafe_split roll flip fliplr flipud rot90 repeat repeat_interleave tile tril triu diag
    diag_embed diagflat diagonal diagonal_copy diagonal_scatter slice_scatter select_scatter slice
    select as_strided as_strided.partial_views as_strided_copy as_strided_scatter unfold
    unfold_copy nn.functional.unfold nn.functional.pixel_shuffle nn.functional.pixel_unshuffle
    nn.functional.channel_shuffle nn.functional.pad.constant nn.functional.pad.reflect
    nn.functional.pad.replicate nn.functional.pad.replicate_negative nn.functional.pad.circular
    constant_pad_nd hstack vstack dstack column_stack block_diag expand expand_as expand_copy
    permute permute_copy transpose transpose_copy t t_copy T mT reshape reshape_as view view_as
    view_copy squeeze squeeze.multiple squeeze_copy unsqueeze unsqueeze_copy narrow narrow_copy
    movedim flatten ravel unflatten unbind unbind_copy broadcast_to broadcast_tensors contiguous
    alias_copy atleast_1d atleast_2d atleast_3d tensor_split hsplit vsplit dsplit
    meshgrid.list_of_tensors meshgrid.variadic_tensors _chunk_cat
"""
NEURAL = """
    nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d
    max_pool2d_with_indices_backward nn.functional.avg_pool1d nn.functional.avg_pool2d
    nn.functional.avg_pool3d nn.functional.adaptive_avg_pool1d nn.functional.adaptive_avg_pool2d
    nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool1d
    nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d
    nn.functional.interpolate.area nn.functional.interpolate.bicubic
    nn.functional.interpolate.bilinear nn.functional.interpolate.linear
    nn.functional.interpolate.nearest nn.functional.interpolate.nearest-exact
    nn.functional.interpolate.trilinear nn.functional.upsample_bilinear
    nn.functional.upsample_nearest grid_sampler_2d grid_sampler_3d nn.functional.grid_sample
    nn.functional.batch_norm native_batch_norm _native_batch_norm_legit _batch_norm_with_update
    nn.functional.layer_norm native_layer_norm nn.functional.group_norm native_group_norm
    nn.functional.instance_norm nn.functional.rms_norm nn.functional.local_response_norm
    nn.functional.normalize softmax softmax.with_dtype log_softmax log_softmax.with_dtype
    nn.functional.softmin nn.functional.softmin.with_dtype _softmax_backward_data
    torch.ops.aten._safe_softmax.default masked.softmax masked.softmin masked.log_softmax
    nn.functional.cross_entropy nn.functional.nll_loss nn.functional.mse_loss
    nn.functional.binary_cross_entropy nn.functional.binary_cross_entropy_with_logits
    nn.functional.smooth_l1_loss nn.functional.huber_loss nn.functional.l1_loss
    nn.functional.kl_div nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
    nn.functional.alpha_dropout nn.functional.feature_alpha_dropout.with_train
    nn.functional.feature_alpha_dropout.without_train
"""
MAKING = """
    arange linspace linspace.tensor_overload full full_like ones ones_like zeros zeros_like
    new_full new_ones new_zeros new_empty empty empty_like empty_strided empty_permuted
    new_empty_strided eye scalar_tensor tril_indices triu_indices zero_
    rand_like randn randn_like randint randint_like bernoulli uniform
"""
_NAMED = " ".join([POINTWISE, REDUCTIONS, INDEXING, MOVING, NEURAL, MAKING]).split()
UFUNCS = (UnaryUfuncInfo, BinaryUfuncInfo, ReductionOpInfo)
_BY_CLASS = [name_of(op) for op in op_db if isinstance(op, UFUNCS)]
LISTED = frozenset([*_NAMED, *_BY_CLASS]) - frozenset(COMPLEX_OR_CUDA.split())
