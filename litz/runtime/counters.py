"""Counters on a GPU: integers that are zero before and after each launch.

In: a stream. Out: a tensor. Launches on one stream run one after the other, so they share one
tensor, which is cleared once. Launches on two streams may overlap, so each stream has its own.
Replays of a CUDA graph may run beside anything: a recording gets a tensor of its own, and clears it
itself. Example: `Counters(16, device)(stream)`.
"""

from __future__ import annotations

from typing import Any

import torch


class Counters:
    """`count` counters for each stream: as many as one kernel has tiles."""

    def __init__(self, count: int, device: Any) -> None:
        self.count, self.device = count, device
        self.of_stream: dict[int, torch.Tensor] = {}

    def __call__(self, stream: int | None) -> torch.Tensor:
        """The counters of a stream; None is the default stream."""
        if self.device.is_capturing():
            return self._zeros()
        found = self.of_stream.get(stream or 0)
        if found is None:
            found = self.of_stream[stream or 0] = self._zeros()
        return found

    def _zeros(self) -> torch.Tensor:
        return torch.zeros(self.count, dtype=torch.int32, device=self.device.name)
