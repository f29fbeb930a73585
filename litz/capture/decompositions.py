"""Which ops are taken apart before lowering, and which are kept whole.

In: nothing. Out: `decompositions()`, the table AOTAutograd applies while it traces. torch supplies
the decompositions; the choice is ours: core ATen's set, the composite ops that fuse well once they
are loops (softmax, norms, activations), without those that a kernel or ATen does better whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

aten = torch.ops.aten

# Taken apart beyond core ATen: each becomes pointwise loops and reductions that fuse into one.
TAKEN_APART = (
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
    aten.gelu,
    aten.gelu_backward,
    aten.elu,
    aten.hardtanh,
    aten.leaky_relu,
    aten.linalg_vector_norm,
)

# Kept whole: attention and batched products are ATen's (or a template's); eager's random numbers
# come from eager's ops; squeezing a product into sums of products would lose the GEMM.
KEPT_WHOLE = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten.baddbmm,
    aten.bernoulli,
    aten.native_dropout,
    aten.clamp,
    aten.masked_scatter,
    aten.select_scatter,
)


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table, made once: torch's own construction of it takes a while."""
    table = dict(core_aten_decompositions())
    table.update(get_decompositions(list(TAKEN_APART)))
    for packet in KEPT_WHOLE:
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table
