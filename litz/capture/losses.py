"""Losses and their gradients, where torch's decompositions give other numbers than eager.

In: nothing. Out: `loss_decompositions(table)`, by overload, from torch's table. Example: the
gradient of `smooth_l1_loss` at NaN is NaN; torch's decomposition takes the sign of NaN, which is 0,
so a training run that has diverged would look converged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from litz.ir import between_op as between_op  # registers the op

aten = torch.ops.aten
MEAN = 1  # ATen's code for a loss that is averaged


def _of_probabilities(
    decomposition: Callable[..., Any], x: torch.Tensor, target: torch.Tensor, *args: Any, **kw: Any
) -> Any:
    """Torch's decomposition of a cross entropy, which checks no value, behind eager's checks."""
    text = "all elements of {} should be between 0 and 1"
    x = torch.ops.litz.between(x, 0.0, 1.0, text.format("input"))
    target = torch.ops.litz.between(target, 0.0, 1.0, text.format("target"))
    return decomposition(x, target, *args, **kw)


def _smooth_l1_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """Linear between -beta and beta, and for NaN, which is neither above nor below."""
    wide, dtype = elementwise_dtypes(grad, x, target, type_promotion_kind=KIND.DEFAULT)
    grad, x, target = (t.to(wide) for t in (grad, x, target))
    apart = x - target
    one = grad * (1.0 / x.numel()) if reduction == MEAN else grad
    outside = torch.where(apart >= beta, one, one * apart / beta)
    return torch.where(apart <= -beta, -one, outside).to(dtype)


def _at_targets(
    decomposition: Callable[..., Any], grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor,
    weight: torch.Tensor | None, reduction: int, ignore_index: int, total: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The gradient of `nll_loss` is zero beside the targets. Torch's decomposition multiplies by
    zero there, which gives NaN for an infinite weight or gradient."""
    found: torch.Tensor
    found = decomposition(grad, x, target, weight, reduction, ignore_index, total)
    classes = 0 if x.dim() < 2 else 1
    if x.dim() == 1 and target.dim() > 0:  # eager reads only the first target
        target = target[0]
    shape = [-1 if d == classes else 1 for d in range(x.dim())]
    numbers = torch.arange(x.shape[classes], device=x.device).view(shape)
    target = target.unsqueeze(classes)
    return torch.where((numbers == target) & (target != ignore_index), found, 0.0)


def loss_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Our decompositions: wrappers around torch's, or replacements."""
    wrapped: dict[Any, Callable[..., Any]] = {
        aten.binary_cross_entropy.default: _of_probabilities,
        aten.nll_loss_backward.default: _at_targets,
        aten.nll_loss2d_backward.default: _at_targets,
    }
    made: dict[Any, Callable[..., Any]]
    made = {op: partial(ours, table[op]) for op, ours in wrapped.items()}
    return made | {aten.smooth_l1_loss_backward.default: _smooth_l1_backward}
