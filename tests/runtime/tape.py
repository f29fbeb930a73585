"""A stand-in for who records CUDA graphs: a replay runs the call again, into the same outputs.

In: a call and its inputs. Out: the replay, and where its outputs lie. As on a GPU, to record runs
nothing: what the inputs and the arenas held is put back. Example: `Tape().record(call, [x])`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch


class Tape:
    """Counts what it recorded and replayed; `arenas` are memory that a call works in."""

    def __init__(self) -> None:
        self.recorded = self.replays = 0
        self.arenas: list[torch.Tensor] = []

    def record(self, call: Any, args: list[Any]) -> Any:
        self.recorded += 1
        inputs = [_unowned(t) for t in args]
        touched = [*self.arenas, *inputs]
        before = [t.clone() for t in touched]
        outputs = call(list(inputs))
        for t, old in zip(touched, before, strict=True):
            if 0 not in t.stride():  # an expanded tensor is not written to
                t.copy_(old)

        def replay() -> None:
            self.replays += 1
            for out, new in zip(outputs, call(list(inputs)), strict=True):
                if out is not None:
                    out.copy_(new)

        return replay, outputs


def _unowned(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, which nobody is seen to hold: a recording knows addresses alone."""
    if not tensor.numel():
        return tensor
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((n - 1) * s for n, s in steps)
    memory = (ctypes.c_char * (span * tensor.itemsize)).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
