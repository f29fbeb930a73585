"""Layouts: whether a tensor has the layout that kernels were compiled for.

In: tensors, sizes of the IR. Out: comparisons, and an `InputMismatch` where a difference matters.
Example: a tensor of one row fits whatever the stride between its rows is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import torch

from litz.errors import InputMismatch
from litz.ir.call_plan import CallPlan
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.program import ViewArg
from litz.ir.source import NUMBERED_SEGMENT, NUMBERED_STEP, Binary

NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
NUMBERED = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
Native = Callable[[int], None]


def native_segments(plan: CallPlan, binary: Binary) -> dict[str, Native]:
    """The functions that run segments; each takes the address of the table."""
    if NUMBERED_SEGMENT not in binary.address:
        return {s.name: NATIVE(binary.address[s.name]) for s in plan.segments}
    run = NUMBERED(binary.address[NUMBERED_SEGMENT])
    return {s.name: partial(run, k) for k, s in enumerate(plan.segments)}


def native_step(binary: Binary, number: int) -> Native:
    """The function that runs one kernel alone."""
    return partial(NUMBERED(binary.address[NUMBERED_STEP]), number)


def static_sizes(sizes: tuple[Expr, ...]) -> tuple[int, ...]:
    return tuple(s.number for s in sizes)


def is_full_view(view: ViewArg) -> bool:
    """Whether a view is its whole buffer, unchanged."""
    buffer = view.buffer
    return view.shape == buffer.shape and view.strides == buffer.strides and view.offset is ZERO


def strides_match(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape has these strides, in dimensions of more than one element."""
    steps = zip(shape, strides, tensor.stride(), strict=False)
    return tensor.numel() == 0 or all(n <= 1 or a == b for n, a, b in steps)


def mismatch(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """Raise `InputMismatch`, unless only strides of dimensions of one element differ."""
    if tensor.dtype is not dtype:
        raise InputMismatch(name, str(dtype), str(tensor.dtype))
    if tensor.shape == shape and strides_match(tensor, shape, strides):
        return
    expected = f"shape {shape}, strides {strides}"
    raise InputMismatch(name, expected, f"shape {tuple(tensor.shape)}, strides {tensor.stride()}")
