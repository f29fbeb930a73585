"""Checks that a call makes when it is asked to: numbers that are none, addresses that do not fit.

In: a tensor, its name in the program, the ops and lines that made it. Out: nothing, or an error
that names them. Example: with `nan_asserts`, `x.log()` of a negative number raises `NotFinite`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from litz.errors import InputMismatch, NotFinite, ScalarAssertion
from litz.ir.program import Origin


def assert_finite(tensor: Any, name: str, where: str) -> None:
    """Raise if a result, or an input, holds NaN or an infinity."""
    if not isinstance(tensor, torch.Tensor) or bool(tensor.isfinite().all()):
        return
    raise NotFinite(name, where, int(tensor.isnan().sum()), int(tensor.isinf().sum()))


def misaligned(name: str, address: int, size: int) -> NoReturn:
    """Raise: kernels read elements of `size` bytes at multiples of it."""
    raise InputMismatch(name, f"an address that is a multiple of {size}", f"{address:#x}")


def check_failed(message: str, where: str) -> NoReturn:
    """Raise: a symbolic number is not as the program says."""
    raise ScalarAssertion(message, where)


def where(origins: Iterable[Origin]) -> str:
    """The ops and lines that a step serves."""
    return ", ".join(dict.fromkeys(map(str, origins))) or "an input"
