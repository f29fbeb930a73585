"""Comparisons of fake tensors that ask the shape environment nothing.

In: fake tensors with integer or symbolic sizes. Out: answers that add no guard: two symbolic sizes
are equal if they are the same expression, and unknown counts as different.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def is_same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return False


def _are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(is_same_size, a, b))


def is_same_tensor_layout(a: Any, b: Any) -> bool:
    """Whether two tensors have the same type, device, shape, strides and offset.

    With another offset, the graph's metadata of one tensor's views would be wrong for the other.
    """
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.dtype is b.dtype
        and a.device == b.device
        and a.layout is torch.strided is b.layout
        and (a.is_conj(), a.is_neg()) == (b.is_conj(), b.is_neg())
        and _are_same(a.shape, b.shape)
        and _are_same(a.stride(), b.stride())
        and is_same_size(a.storage_offset(), b.storage_offset())
    )


def is_row_major(tensor: torch.Tensor) -> bool:
    """Whether a tensor is known to be contiguous; strides of dimensions of size one are ignored."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if not is_same_size(stride, expected):
            return False
        expected = expected * size
    return True


def is_static(tensor: torch.Tensor) -> bool:
    """Whether every size is a number."""
    return all(isinstance(n, int) for n in (*tensor.shape, *tensor.stride()))
