"""An op of our own: random bits as a pure function of a seed.

In: a seed, a tensor of one int64, and a shape. Out: `torch.ops.litz.random_bits`, 64 bits for each
element. They are the same wherever they are computed: in a kernel, by this op, in the forward or
again in the backward. Example: `torch.ops.litz.random_bits(torch.tensor(7), [4])`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from litz.ir.philox import random_bits


@torch.library.custom_op("litz::random_bits", mutates_args=())
def _random_bits(seed: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    numbers = torch.arange(math.prod(shape), dtype=torch.int64, device="cpu").numpy()
    return torch.from_numpy(random_bits(seed.item(), numbers)).reshape(list(shape))


@_random_bits.register_fake
def _(seed: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return seed.new_empty(shape)
