"""oneDNN with packed weights: what eager could be, if it packed.

In: a model. Out: a copy whose linear layers hold their weights as oneDNN wants them for the rows of
their first call. Anything else stays as it is. Example:

    with_packed_linears(nn.Sequential(nn.Linear(768, 3072), nn.GELU()))(x)
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


def with_packed_linears(function: Callable[..., Any]) -> Callable[..., Any]:
    """The model with packed layers; a function that is no model has none."""
    if not isinstance(function, nn.Module):
        return function
    model: nn.Module = copy.deepcopy(function)
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(parent, name, PackedLinear(layer))
    packed: Callable[..., Any] = model
    return packed


def why_not_onednn() -> str:
    here = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return "" if here else "torch was built without oneDNN"
