"""What is measured: a program, a case that can build it, and a suite of cases.

In: nothing. Out: values. A case is built by name in the process that measures it, so only names are
sent between processes. Example:

    Case("kernels", "softmax", "L1", lambda: Program(f, (x,)), measure_calls)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from litz.bench.results import Row

Say = Callable[[str], None]


@dataclass(frozen=True)
class Program:
    """A function or a model, and the arguments it is called with."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, function: Callable[..., Any] | None = None) -> Any:
        """Call it, or a compiled form of it, with its arguments."""
        with torch.no_grad():
            chosen = self.function if function is None else function
            return chosen(*self.args, **self.kwargs)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors it is called with."""
        return tensors_in((self.args, dict(self.kwargs)))

    def widened(self, ulps: float = 0.0, seed: int = 0) -> Program:
        """The same in float64: the reference, nearly without rounding.

        With `ulps`, each float argument is moved at random by up to that many roundings.
        """
        model = self.function
        if isinstance(model, torch.nn.Module):
            model = copy.deepcopy(model).double()
        draw = torch.Generator().manual_seed(seed)
        move = partial(_wide, ulps, draw)
        args, kwargs = pytree.tree_map(move, (self.args, dict(self.kwargs)))
        return Program(model, args, kwargs)


def _wide(ulps: float, draw: torch.Generator, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    wide = value.double()
    if not ulps:
        return wide
    noise = torch.rand(wide.shape, generator=draw, dtype=torch.float64, device="cpu") * 2 - 1
    return wide * (1 + ulps * torch.finfo(value.dtype).eps * noise.to(wide.device))


def with_own_code(model: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function that calls the model, with a code object of its own: torch stores compiled code by
    code object, and a call searches all of it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    code = call.__code__.replace(co_name=name)
    return FunctionType(code, call.__globals__, name, None, call.__closure__)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Every tensor of a nested value, in order."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True)
class Settings:
    """The user's settings."""

    against: tuple[str, ...] = ("inductor", "eager")
    seconds: float = 3.0  # of timing, for each case
    rounds: int = 3  # of fresh processes
    timeout: float = 600.0  # seconds of one fresh process
    threads: int | None = None
    quick: bool = False


@dataclass(frozen=True)
class Case:
    """One line of a suite: how to build its program, and how to measure it."""

    suite: str
    name: str
    variant: str
    build: Callable[[], Program]
    measure: Callable[[Case, Settings, Say], list[Row]]
    beside: tuple[str, ...] = ()  # candidates that this case needs besides the user's
    threads: int | None = None  # instead of the user's

    @property
    def label(self) -> str:
        return f"{self.name} {self.variant}".strip()


@dataclass(frozen=True)
class Suite:
    """Named cases. `finish` adds facts that need all rows; `why_not` returns the reason why none
    of them can run here, or ""."""

    sentence: str
    cases: Callable[[bool], list[Case]]  # True asks for small and few
    finish: Callable[[list[Row]], list[Row]] = list
    why_not: Callable[[], str] = str
