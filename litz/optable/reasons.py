"""Reasons why ops stay with ATen.

In: a name, `mm` or `aten.mm.default`. Out: the reason; by design, if a row of the table matches.
Example: `reason("sort.stable")` is "an order: sorting is ATen's".
"""

from __future__ import annotations

import re

# A pattern over the op's name, and the reason.
BY_DESIGN: tuple[tuple[str, str], ...] = (
    (r"mm|addmm|bmm|baddbmm|addbmm|mv|addmv|addr|dot|vdot|_trilinear|_int_mm|_scaled_mm.*",
     "matrix product: MKL and oneDNN"),
    (r"convolution.*|conv_.*|_convolution.*", "convolution: oneDNN"),
    (r"_scaled_dot_product.*", "attention: ATen's flash kernel"),
    (r"_cdist_.*|_pdist_.*|cdist|pdist|_euclidean_dist", "distances: a matrix product inside"),
    (r"sort|topk|kthvalue|median|nanmedian|mode|randperm", "an order: sorting is ATen's"),
    (r"nonzero.*|unique.*|_unique.*|masked_select|bincount|repeat_interleave",
     "the shape of the result depends on data"),
    (r"hist.*|_histogramdd.*", "counts into bins that data choose"),
    (r"_?linalg_.*|cholesky.*|lu_.*|_lu_.*|geqrf|ormqr|triangular_solve|svd|qr|logdet|det",
     "linear algebra: LAPACK"),
    (r"_fft.*|stft|istft", "Fourier transform: MKL or pocketfft"),
    (r"complex|polar|view_as_complex|view_as_real|_conj.*|_neg_view|angle|imag|real",
     "complex numbers"),
    (r".*sparse.*|_coalesce.*", "sparse tensors"),
    (r".*quantize.*|q_.*|.*qparams.*", "quantised tensors"),
    (r"_embedding_bag.*|segment_reduce|_ctc_loss|_linear_cross_entropy.*",
     "segments whose lengths are data"),
    (r"_to_copy|clone|constant_pad_nd", "a complex operand; real ones are generated"),
    (r"cauchy|exponential|geometric|log_normal|normal.*|multinomial|rrelu_.*|fractional_max_pool.*",
     "eager's own random numbers"),
    (r"special_bessel_.*|special_airy_ai", "float64: eager's error is 1e-6, and so must ours be"),
    (r"igamma|igammac", "an incomplete gamma function: no series of ours yet"),
    (r"linspace", "integers, cut off from numbers that round as eager's vectors do"),
    (r"higher_order|torch_nn", "an op with an effect, or of a library: a call inside the graph"),
    (r"_local_scalar_dense|item|sym_.*", "a number for Python, not a tensor"),
    (r"resize_", "changes the size of its operand"),
)  # fmt: skip
NO_RULE = "no rule yet"


def reason(op: str) -> str:
    """The first row that matches the name of the op without its overload."""
    name = op.removeprefix("aten.").partition(".")[0]
    return next((why for pattern, why in BY_DESIGN if re.fullmatch(pattern, name)), NO_RULE)
