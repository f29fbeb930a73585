"""Torch modes that are active around a compile or a call, switched off for Litz's own work.

In: nothing. Out: contexts. A default device, a `TorchFunctionMode`, a `TorchDispatchMode`,
inference mode, autocast and transforms such as `vmap` change the result of torch calls. Dynamo has
traced their effect on the program, and guards on them. Our own tensors (arenas, packed weights,
folded constants) must be the same under each of them. Example: under `torch.device("meta")`,
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

# Whether a `TorchFunctionMode` is active; a default device is one.
function_modes: Callable[[], bool] = _is_torch_function_mode_enabled


def call_without_modes(call: Callable[[list[Any]], Any], args: list[Any]) -> Any:
    """Call without function modes. Dynamo has traced their effects into the graph, so that they
    would apply a second time to the graph's own calls of torch."""
    with _without_function_modes():
        return call(args)


@contextmanager
def without_modes() -> Iterator[None]:
    """Torch without any mode, gradients off."""
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
    """Switch off function modes, but not `__torch_function__` of tensor subclasses: passes trace
    with such."""
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)
