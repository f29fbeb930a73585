"""Counters on a GPU: integers that a launch finds at zero and leaves at zero.

In: a stream. Out: a tensor. Launches on one stream come one after the other, so that they share
one tensor, which is cleared once; launches on two may overlap, so that each stream has its own.
While a CUDA graph is recorded, its replays may run beside anything: it gets a tensor of its own,
and clears it itself. Example: `Counters(16, device)(stream)`.
"""

from __future__ import annotations

from typing import Any

import torch


class Counters:
    """As many counters as one kernel has tiles."""

    def __init__(self, count: int, device: Any) -> None:
        self.count, self.device = count, device
        self.of_stream: dict[int, torch.Tensor] = {}

    def __call__(self, stream: int | None) -> torch.Tensor:
        """Those of a stream; a null pointer is the default stream."""
        if self.device.is_recording():
            return self._zeros()
        found = self.of_stream.get(stream or 0)
        if found is None:
            found = self.of_stream[stream or 0] = self._zeros()
        return found

    def _zeros(self) -> torch.Tensor:
        return torch.zeros(self.count, dtype=torch.int32, device=self.device.name)
