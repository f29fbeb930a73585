"""Modes of the program around a compile or a call, which must not reach what Litz does inside.

In: nothing. Out: contexts. A default device, a `TorchFunctionMode`, a `TorchDispatchMode`,
inference mode, autocast and transforms such as `vmap` change what a call of torch gives. Dynamo has
traced what they do to the program, and guards on them; tensors of our own (arenas, packed weights,
folded constants) must come out the same under each of them. Example: under `torch.device("meta")`,
`torch.empty(8)` has no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import (  # type: ignore[attr-defined]
    _is_torch_function_mode_enabled,
    _len_torch_function_stack,
)
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

# Whether a mode of functions is around: a default device is one.
function_modes: Callable[[], bool] = _is_torch_function_mode_enabled


def apart(call: Callable[[list[Any]], Any], args: list[Any]) -> Any:
    """A call that modes of functions do not see. Dynamo wrote into the graph what they do, so that
    a graph's own calls of torch would get it a second time."""
    with _without_function_modes():
        return call(args)


@contextmanager
def without_modes() -> Iterator[None]:
    """Torch as it is where no mode is around, gradients off."""
    with (
        _without_function_modes(),
        _disable_current_modes(),
        temporarily_clear_interpreter_stack(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._DisableAutocast(),
    ):
        yield


@contextmanager
def _without_function_modes() -> Iterator[None]:
    """Classes of tensors with functions of their own keep them: passes trace with such."""
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)
