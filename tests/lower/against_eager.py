"""One question of the lowering tests: is an op generated, and is it eager's?

In: a function and its tensors. Out: nothing, or a failed assertion. Values are held to torch's own
tolerances, types, shapes and strides to eager's exactly, and no op may be left to ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.stages import compiled, copied

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64, *HALVES)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def assert_generated(
    function: Callable[..., Any], *inputs: torch.Tensor, **tolerance: float
) -> None:
    """Compiled without one ATen call, and the same as eager."""
    ours = compiled(function)
    found = pytree.tree_leaves(ours(*(copied(i) for i in inputs)))
    expected = pytree.tree_leaves(function(*(copied(i) for i in inputs)))
    assert not ours.aten_ops
    assert len(found) == len(expected)
    for mine, eagers in zip(found, expected, strict=True):
        strided = eagers.numel() > 1
        torch.testing.assert_close(mine, eagers, equal_nan=True, check_stride=strided, **tolerance)


def varied(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small whole numbers: equal neighbours abound, and no sum of them is rounded."""
    numbers = torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(seed))
    return (numbers - 4 if dtype is not torch.uint8 else numbers).to(dtype)
