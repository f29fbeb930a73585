"""Checks that a call makes when it is asked to: numbers that are none, addresses that do not fit.

In: a tensor, its name in the program, the ops and lines that made it. Out: nothing, or an error
that names them. Example: with `nan_asserts`, `x.log()` of a negative number raises `NotFinite`. The
infinities of a mask are meant: they come from constants of the program, and pass on to what is
computed of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
import torch.utils._pytree as pytree

from litz.errors import InputMismatch, NotFinite, ScalarAssertion
from litz.ir.expr import walk
from litz.ir.program import Extern, Kernel, KernelGraph, Origin, exprs_of, read, written


def assert_finite(tensor: Any, name: str, where: str, meant: bool) -> bool:
    """Raise if a result, or an input, holds NaN, or an infinity that is not meant; whether it holds
    one that is."""
    if not isinstance(tensor, torch.Tensor) or bool(tensor.isfinite().all()):
        return False
    nans = int(tensor.isnan().sum())
    if nans or not meant:
        raise NotFinite(name, where, nans, int(tensor.isinf().sum()))
    return True


def known_infinities(graph: KernelGraph, constants: dict[str, torch.Tensor]) -> dict[str, str]:
    """Constants that hold infinities, and what is made of them before any call."""
    floats = [(name, tensor) for name, tensor in constants.items() if tensor.is_floating_point()]
    found = {name: "True" for name, tensor in floats if bool(tensor.isinf().any())}
    for step in graph.body[: graph.prepared]:
        if meant_by(step, found) != "False":
            found |= {buffer.name: "True" for buffer in written(step)}
    return found


def meant_by(step: Kernel | Extern, infinite: dict[str, str]) -> str:
    """Whether infinities of a step's results may be meant: by it, or by what it reads. `infinite`
    names, for buffers that were looked at, what says whether they hold some."""
    flags = [infinite[b.name] for b in read(step) if b.name in infinite]
    return "True" if _has_infinity(step) else " or ".join(dict.fromkeys(flags)) or "False"


def _has_infinity(step: Kernel | Extern) -> bool:
    """Whether a step computes with a constant that is infinite."""
    if isinstance(step, Kernel):
        found = [node.attr for node in walk(*exprs_of(step)) if node.op == "const"]
    else:
        found = pytree.tree_leaves((step.args, step.kwargs))
    return any(isinstance(value, float) and math.isinf(value) for value in found)


def misaligned(name: str, address: int, size: int) -> NoReturn:
    """Raise: kernels read elements of `size` bytes at multiples of it."""
    raise InputMismatch(name, f"an address that is a multiple of {size}", f"{address:#x}")


def check_failed(message: str, where: str, **values: float) -> NoReturn:
    """Raise: symbolic numbers are not as the program says."""
    raise ScalarAssertion(message, where, values)


def where(origins: Iterable[Origin]) -> str:
    """The ops and lines that a step serves."""
    return ", ".join(dict.fromkeys(map(str, origins))) or "an input"
