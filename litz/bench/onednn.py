"""oneDNN with packed weights: eager, as it would be if it packed them.

In: a model. Out: a copy whose linear layers and image convolutions hold their weights in oneDNN's
layout for the sizes of their first call. Everything else stays as it is. Example:

    with_packed_layers(nn.Sequential(nn.Linear(768, 3072), nn.GELU()))(x)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """A linear layer through oneDNN's inner product."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight.detach(), layer.bias
        self.packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is None:
            rows = x.numel() // x.shape[-1]
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, rows)
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.packed, self.bias, "none", [], ""
        )
        return result


class PackedConvolution(nn.Module):
    """A convolution over two or three dimensions, transposed or not."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight.detach(), layer.bias
        across = (list(layer.output_padding),) if layer.transposed else ()
        where = (layer.stride, layer.dilation)
        self.where = (list(layer.padding), *across, *map(list, where), layer.groups)
        self.transposed = layer.transposed
        self.packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        ops = torch.ops.mkldnn
        pack, call = ops._reorder_convolution_weight, ops._convolution_pointwise
        if self.transposed:
            pack = ops._reorder_convolution_transpose_weight
            call = ops._convolution_transpose_pointwise
        if self.packed is None:
            self.packed = pack(self.weight, *self.where, list(x.shape))
        result: Tensor = call(x, self.packed, self.bias, *self.where, "none", [], "")
        return result.contiguous() if x.dim() == 5 else result  # contiguous volumes, as in eager


PACKED: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    nn.Linear: PackedLinear,
    nn.Conv2d: PackedConvolution,
    nn.Conv3d: PackedConvolution,
    nn.ConvTranspose2d: PackedConvolution,
    nn.ConvTranspose3d: PackedConvolution,
}


def with_packed_layers(function: Callable[..., Any]) -> Callable[..., Any]:
    """The model with packed layers; a function that is not a model has none."""
    if not isinstance(function, nn.Module):
        return function
    model: nn.Module = copy.deepcopy(function)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) in PACKED:
                setattr(parent, name, PACKED[type(layer)](layer))
    packed: Callable[..., Any] = model
    return packed


def why_not_onednn() -> str:
    here = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return "" if here else "torch was built without oneDNN"
