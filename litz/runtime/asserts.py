"""Optional checks of a call: NaN, misaligned addresses, assertions on symbolic numbers.

In: a tensor, its name in the program, the ops and lines that made it. Out: nothing, or an error
that names them. Example: with `nan_asserts`, `x.log()` of a negative number raises `NotFinite`. The
infinities of a mask are expected: they come from constants of the program, and spread to all
results computed from them.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from litz.errors import InputMismatch, NotFinite, ScalarAssertion


def assert_finite(tensor: Any, name: str, where: str, allow_inf: bool) -> bool:
    """Raise if a tensor holds NaN, or an infinity without `allow_inf`; returns whether it holds an
    infinity."""
    if not isinstance(tensor, torch.Tensor) or bool(tensor.isfinite().all()):
        return False
    nans = int(tensor.isnan().sum())
    if nans or not allow_inf:
        raise NotFinite(name, where, nans, int(tensor.isinf().sum()))
    return True


def misaligned(name: str, address: int, size: int) -> NoReturn:
    """Raise: kernels need addresses that are multiples of `size`."""
    raise InputMismatch(name, f"an address that is a multiple of {size}", f"{address:#x}")


def check_failed(message: str, where: str, **values: float) -> NoReturn:
    """Raise: a condition of the program on symbolic numbers does not hold."""
    raise ScalarAssertion(message, where, values)
