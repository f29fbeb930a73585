"""An op of our own: a tensor whose elements must lie between two numbers.

In: a tensor, the two numbers, an error text. Out: `torch.ops.litz.between`, which gives a copy of
the tensor or raises the RuntimeError that eager raises, for example where an op takes only
probabilities. Our decompositions use it for checks that torch's decompositions leave out. Example:
`torch.ops.litz.between(x, 0.0, 1.0, "no probability")`.
"""

from __future__ import annotations

import torch


@torch.library.custom_op("litz::between", mutates_args=())
def _between(x: torch.Tensor, least: float, most: float, text: str) -> torch.Tensor:
    if not bool(((x >= least) & (x <= most)).all()):
        raise RuntimeError(text)
    return x.clone()


@_between.register_fake
def _(x: torch.Tensor, least: float, most: float, text: str) -> torch.Tensor:
    return torch.empty_like(x)
