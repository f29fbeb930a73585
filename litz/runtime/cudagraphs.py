"""CUDA graphs: a call recorded once and replayed.

In: a graph's callable, and the policy that says it can be recorded. Out: a callable that replays.
The first calls run as they are and show which inputs stay where they are: parameters do. Those are
used in place; any other is copied to a place of its own before a replay, and back if the graph
writes to it; a number of the CPU's is brought to a place on the GPU. What a replay gives lies in
the recording's own memory. While any of it is still in use somewhere, that recording is not
replayed: another one is made, with memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from litz.ir.program import Buffer, KernelGraph, written

Call = Callable[[list[Any]], list[Any]]

# Calls that run as they are: libraries choose their kernels, addresses show whether they stay.
WARM_UPS = 2
# Recordings of one graph; what comes after them runs as it is.
MOST_RECORDINGS = 8
# How often an input that was thought to stay may turn out to move.
MOST_CHANGES = 4


class Recorder(Protocol):
    """Who records: CUDA, or a stand-in."""

    def record(self, call: Call, args: list[Any]) -> tuple[Callable[[], None], list[Any]]:
        """Record a call. Gives the replay, and where its outputs will lie."""


class CudaRecorder:
    """Records with torch's own graphs. Each has memory of its own: one's outputs may be alive when
    another is replayed."""

    def __init__(self, index: int) -> None:
        self.index = index

    def record(self, call: Call, args: list[Any]) -> tuple[Callable[[], None], list[Any]]:
        with torch.cuda.device(self.index):
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = call(list(args))
            return graph.replay, outputs


@dataclass
class Recording:
    """One recording: the places of inputs that are copied, by position, and where its outputs lie.
    Inputs that are used in place are not held: they may be another recording's outputs."""

    replay: Callable[[], None]
    places: dict[int, torch.Tensor]
    outputs: list[Any]
    idle: list[int] = field(default_factory=list)  # owners of each output's memory when unused

    def __post_init__(self) -> None:
        self.idle = [_owners(t) for t in self.outputs]

    @property
    def is_free(self) -> bool:
        """Whether nobody but us holds any of the outputs, or a view of one."""
        return self.idle == [_owners(t) for t in self.outputs]

    def shown(self) -> list[Any]:
        """The outputs as tensors of their own, so that their owners can be counted."""
        return [t.detach() if isinstance(t, torch.Tensor) else t for t in self.outputs]


def _owners(value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    return torch._C._storage_Use_Count(value.untyped_storage()._cdata)  # type: ignore


class Replayed:
    """Calls a graph by replaying it. `updated` are the positions of inputs that it writes to;
    `brought` those of numbers on the CPU, which a recording reads `where` it runs."""

    def __init__(
        self, call: Call, recorder: Recorder, updated: Iterable[int], check: Callable[[], None],
        brought: Iterable[int] = (), where: str | None = None,
    ) -> None:  # fmt: skip
        self.run, self.recorder, self.updated = call, recorder, frozenset(updated)
        self.brought, self.where = frozenset(brought), where
        self.check = check  # raises what an earlier call noted
        self.recordings: list[Recording] = []
        self.seen: list[int] | None = None  # addresses at the call before
        self.moving = set(self.brought)
        self.calls = self.changes = 0

    def call(self, args: list[Any]) -> list[Any]:
        """One call of the graph."""
        addresses = [t.data_ptr() if isinstance(t, torch.Tensor) else 0 for t in args]
        self.calls += 1
        if self.calls <= WARM_UPS or not self._settled(addresses):
            self._watch(addresses)
            return self.run(args)
        recording = next((r for r in self.recordings if r.is_free), None)
        if recording is None:
            if len(self.recordings) >= MOST_RECORDINGS:
                return self.run(args)
            recording = self._recorded(args)
        return self._replayed(recording, args)

    def _watch(self, addresses: list[int]) -> None:
        if self.seen is not None:
            pairs = enumerate(zip(self.seen, addresses, strict=True))
            self.moving |= {k for k, (old, new) in pairs if old != new}
        self.seen = addresses

    def _settled(self, addresses: list[int]) -> bool:
        """Whether inputs that are used in place are where they were. One that is not gets a place
        of its own from now on, and recordings that knew no better are dropped."""
        assert self.seen is not None
        pairs = enumerate(zip(self.seen, addresses, strict=True))
        moved = {k for k, (old, new) in pairs if old != new} - self.moving
        if moved:
            self.changes += 1
            self.recordings.clear()
            self._watch(addresses)
        return not moved and self.changes <= MOST_CHANGES

    def _recorded(self, args: list[Any]) -> Recording:
        places = {k: _beside(args[k], self._device_of(k, args)) for k in self.moving}
        replay, outputs = self.recorder.record(
            self.run, [places.get(k, t) for k, t in enumerate(args)]
        )
        self.recordings.append(Recording(replay, places, outputs))
        return self.recordings[-1]

    def _device_of(self, position: int, args: list[Any]) -> Any:
        return self.where if position in self.brought else args[position].device

    def _replayed(self, recording: Recording, args: list[Any]) -> list[Any]:
        self.check()
        for k, place in recording.places.items():
            place.copy_(args[k], non_blocking=k in self.brought)
        recording.replay()
        for k in self.updated & recording.places.keys():
            args[k].copy_(recording.places[k])
        args.clear()
        return recording.shown()


Replayed.call._boxed_call = True  # type: ignore[attr-defined]  # it takes its inputs as one list


def _beside(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """Memory laid out as a tensor's, with its values."""
    place = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return place.copy_(tensor)


def replayed(graph: Any) -> Call:
    """A device graph's call as a replay."""
    steps: KernelGraph = graph.plan.graph
    inputs = [b for b in steps.inputs if isinstance(b, Buffer)]
    changed = {b for step in steps.body for b in written(step)}
    updated = [k for k, b in enumerate(inputs) if b in changed]
    recorder, brought = graph.device.recorder(), graph.policy.brought
    return Replayed(graph.call, recorder, updated, graph.check, brought, graph.device.name).call
