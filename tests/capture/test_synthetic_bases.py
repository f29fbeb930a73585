"""Inputs that share memory, one of them written to: the memory may be longer at the next call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz

Keep = Callable[[torch.Tensor], torch.Tensor]


def _writes(whole: torch.Tensor, part: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    part[..., 0] = 1
    return (whole * weight).sum(1)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, of which torch does not know that it is a view."""
    place = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0).set_(tensor.untyped_storage(), *place)  # type: ignore[call-overload]


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dynamic", [False, None, True])
@pytest.mark.parametrize("keep", [_alone, lambda t: t], ids=["by memory", "views"])
@pytest.mark.parametrize("ends", [slice(1, 3), slice(1, -1)], ids=["equal", "longer"])
def test_memory_of_any_length(ends: slice, keep: Keep, dynamic: Any, trains: bool) -> None:
    """Dynamo guards the inputs, not what is around them (found by the fuzzer, seed 52000315)."""
    if trains and keep is _alone:
        pytest.skip("torch's autograd does not take them")
    litz.reset()
    fast = torch.compile(_writes, backend="litz", dynamic=dynamic, options={"on_error": "raise"})
    weight = torch.randn(7, requires_grad=trains)
    for rows in (4, 5, 9, 4):
        memory = torch.randn(rows, 7)
        results = []
        for run, there in ((fast, memory.clone()), (_writes, memory)):
            whole = keep(there[ends])
            found = run(whole, keep(whole[..., 1:]), weight)
            grads = torch.autograd.grad(found.sum(), weight) if trains else ()
            results.append((found.detach(), there, *grads))
        for ours, eager in zip(*results, strict=True):
            torch.testing.assert_close(ours, eager)
