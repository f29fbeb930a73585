"""Tensors and the layouts that kernels were compiled for.

In: tensors, sizes of the IR. Out: comparisons, and an `InputMismatch` where one matters. Example: a
tensor of one row fits whatever the stride between its rows is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from litz.errors import InputMismatch
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.program import ViewArg

NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Native = Callable[[int], None]


def numbers(sizes: tuple[Expr, ...]) -> tuple[int, ...]:
    return tuple(s.number for s in sizes)


def is_whole(view: ViewArg) -> bool:
    """Whether a window shows its buffer exactly."""
    buffer = view.buffer
    return view.shape == buffer.shape and view.strides == buffer.strides and view.offset is ZERO


def has_steps(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape has these strides wherever they are stepped along."""
    steps = zip(shape, strides, tensor.stride(), strict=False)
    return tensor.numel() == 0 or all(n <= 1 or a == b for n, a, b in steps)


def mismatch(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """Raise, unless the strides that differ are never stepped along."""
    if tensor.dtype is not dtype:
        raise InputMismatch(name, str(dtype), str(tensor.dtype))
    if tensor.shape == shape and has_steps(tensor, shape, strides):
        return
    expected = f"shape {shape}, strides {strides}"
    raise InputMismatch(name, expected, f"shape {tuple(tensor.shape)}, strides {tensor.stride()}")
