"""Checks that a call makes when it is asked to: numbers that are none, addresses that do not fit.

In: a tensor, its name in the program, the ops and lines that made it. Out: nothing, or an error
that names them. Example: with `nan_asserts`, `x.log()` of a negative number raises `NotFinite`. The
infinities of a mask are meant: they come from constants of the program, and pass on to what is
computed of them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from litz.errors import InputMismatch, NotFinite, ScalarAssertion


def assert_finite(tensor: Any, name: str, where: str, meant: bool) -> bool:
    """Raise if a result, or an input, holds NaN, or an infinity that is not meant; whether it holds
    one that is."""
    if not isinstance(tensor, torch.Tensor) or bool(tensor.isfinite().all()):
        return False
    nans = int(tensor.isnan().sum())
    if nans or not meant:
        raise NotFinite(name, where, nans, int(tensor.isinf().sum()))
    return True


def misaligned(name: str, address: int, size: int) -> NoReturn:
    """Raise: kernels read elements of `size` bytes at multiples of it."""
    raise InputMismatch(name, f"an address that is a multiple of {size}", f"{address:#x}")


def check_failed(message: str, where: str, **values: float) -> NoReturn:
    """Raise: symbolic numbers are not as the program says."""
    raise ScalarAssertion(message, where, values)
