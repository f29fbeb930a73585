"""Losses and their gradients, where torch's decompositions give other numbers than eager.

In: nothing. Out: `loss_decompositions(table)`, by overload, from torch's table. Example: the
gradient of `smooth_l1_loss` at NaN is NaN; torch's decomposition asks for the sign of it, which
is 0, so that a training run that has diverged would look as if it had come to rest.
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
MEAN = 1  # ATen's number for a loss that is divided by how many there are


def _of_probabilities(
    decomposition: Callable[..., Any], x: torch.Tensor, target: torch.Tensor, *args: Any, **kw: Any
) -> Any:
    """Torch's decomposition of a cross entropy, which looks at no value, behind eager's checks."""
    text = "all elements of {} should be between 0 and 1"
    x = torch.ops.litz.between(x, 0.0, 1.0, text.format("input"))
    target = torch.ops.litz.between(target, 0.0, 1.0, text.format("target"))
    return decomposition(x, target, *args, **kw)


def _smooth_l1_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """Between -beta and beta, and of what is neither above nor below, it is in proportion."""
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
    zero there, which leaves NaN of a weight or a gradient that is infinite."""
    found: torch.Tensor
    found = decomposition(grad, x, target, weight, reduction, ignore_index, total)
    classes = 0 if x.dim() < 2 else 1
    if x.dim() == 1 and target.dim() > 0:  # eager looks at the first one alone
        target = target[0]
    shape = [-1 if d == classes else 1 for d in range(x.dim())]
    numbers = torch.arange(x.shape[classes], device=x.device).view(shape)
    target = target.unsqueeze(classes)
    return torch.where((numbers == target) & (target != ignore_index), found, 0.0)


def loss_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Ours, made of torch's or in their place."""
    wrapped: dict[Any, Callable[..., Any]] = {
        aten.binary_cross_entropy.default: _of_probabilities,
        aten.nll_loss_backward.default: _at_targets,
        aten.nll_loss2d_backward.default: _at_targets,
    }
    made: dict[Any, Callable[..., Any]]
    made = {op: partial(ours, table[op]) for op, ours in wrapped.items()}
    return made | {aten.smooth_l1_loss_backward.default: _smooth_l1_backward}
