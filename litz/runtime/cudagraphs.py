"""CUDA graphs: a call recorded once and replayed.

In: the callable of a graph, or of a partition, that can be recorded. Out: a callable that replays.
The first calls run unrecorded and show which inputs keep their address, as parameters do. Those are
used in place. Any other input is copied to a static buffer before a replay, and back if the graph
writes to it; a scalar tensor of the CPU is copied to the GPU. Outputs are in the recording's own
memory. While one of them is still in use somewhere, that recording is not replayed: another one is
made, with memory of its own. Outputs of an earlier partition's recording are used in place: each
recording knows its parent by their addresses.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

import torch

from litz.errors import CaptureFailed, LitzError
from litz.ir.call_plan import Body, CallPlan, changed_in

Call = Callable[[list[Any]], list[Any]]

# One thread at a time records: torch has one stream to record on, and Python one garbage collector
# to stop.
RECORDING = Lock()
# Calls that run unrecorded first: libraries choose their kernels, and inputs show whether they
# keep their address.
WARM_UPS = 2
# Recordings of one graph; when none of them is free, a call runs unrecorded.
MOST_RECORDINGS = 8
# How often an input that is used in place may turn out to have moved.
MOST_CHANGES = 4


class Recorder(Protocol):
    """Records calls: CUDA, or a stand-in in tests."""

    def record(self, call: Call, args: list[Any]) -> tuple[Callable[[], None], list[Any]]:
        """Record a call. Gives the replay, and the tensors of its outputs."""


class CudaRecorder:
    """Records with torch's own graphs. Each has memory of its own, since the outputs of one may be
    alive when another is replayed."""

    def __init__(self, index: int) -> None:
        self.index = index

    def record(self, call: Call, args: list[Any]) -> tuple[Callable[[], None], list[Any]]:
        with RECORDING, torch.cuda.device(self.index):
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with _gc_disabled(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = call(list(args))
            return graph.replay, outputs


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Keep Python's garbage collector from running. It may free CUDA objects of dead programs
    (graphs, modules, events), and such a call to CUDA ends the recording of its thread."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass
class RecordedGraph:
    """One recording: the static buffers of inputs that are copied, by position, the addresses of
    inputs that an earlier recording computes, and its outputs. Inputs that are used in place are
    not kept alive: they may be another recording's outputs."""

    replay: Callable[[], None]
    input_copies: dict[int, torch.Tensor]
    outputs: list[Any]
    parent_outputs: list[int] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)  # owners of each output's memory when unused
    addresses: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.idle = [_storage_use_count(t) for t in self.outputs]
        self.addresses = frozenset(map(_address, self.outputs))

    @property
    def is_free(self) -> bool:
        """Whether none of the outputs, nor a view of one, is in use outside the recording."""
        return self.idle == [_storage_use_count(t) for t in self.outputs]

    def output_aliases(self) -> list[Any]:
        """The outputs as tensors of their own, so that their owners can be counted."""
        return [t.detach() if isinstance(t, torch.Tensor) else t for t in self.outputs]


def _storage_use_count(value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    return torch._C._storage_Use_Count(value.untyped_storage()._cdata)  # type: ignore


def _address(value: Any) -> int:
    return value.data_ptr() if isinstance(value, torch.Tensor) else 0


def _addresses(values: list[Any]) -> list[int]:
    """The addresses of tensors, 0 for other values. There may be hundreds at each call, hence the
    fast path."""
    try:
        return list(map(torch.Tensor.data_ptr, values))
    except TypeError:
        return list(map(_address, values))


class CudaGraphRunner:
    """Calls a graph by replaying it. `mutated_inputs` are the positions of inputs that it writes
    to; `cpu_scalars` those of scalar tensors on the CPU, which are copied to the device `where`;
    `parent_outputs` those of inputs that `parents`, earlier partitions, computed."""

    def __init__(
        self, call: Call, recorder: Recorder, mutated_inputs: Iterable[int],
        check: Callable[[], None], cpu_scalars: Iterable[int] = (), where: str | None = None,
        parent_outputs: Iterable[int] = (), parents: Collection[CudaGraphRunner] = (),
    ) -> None:  # fmt: skip
        self.run, self.recorder, self.mutated_inputs = call, recorder, frozenset(mutated_inputs)
        self.cpu_scalars, self.where = frozenset(cpu_scalars), where
        self.parent_outputs, self.parents = tuple(parent_outputs), parents
        self.check = check  # raises the error that an earlier call noted
        self.recordings: list[RecordedGraph] = []
        self.seen: list[int] | None = None  # addresses at the previous call
        self.non_static = set(self.cpu_scalars)
        self.unwatched = [
            *self.parent_outputs,
            *self.non_static,
        ]  # inputs whose addresses are not compared
        self.calls = self.changes = 0

    def call(self, args: list[Any]) -> list[Any]:
        """One call of the graph."""
        addresses = _addresses(args)
        self.calls += 1
        parent_outputs = [addresses[k] for k in self.parent_outputs]
        for k in self.unwatched:
            addresses[k] = 0
        if self.calls <= WARM_UPS or not self._addresses_unchanged(addresses):
            self._watch(addresses)
            return self.run(args)
        free = (r for r in self.recordings if r.parent_outputs == parent_outputs and r.is_free)
        recording = next(free, None)
        if recording is None:
            if len(self.recordings) >= MOST_RECORDINGS or not self._parents_recorded(
                parent_outputs
            ):
                return self.run(args)
            recording = self._recorded(args, parent_outputs)
        return self._replayed(recording, args)

    def _watch(self, addresses: list[int]) -> None:
        if self.seen is not None:
            pairs = enumerate(zip(self.seen, addresses, strict=True))
            self.non_static |= {k for k, (old, new) in pairs if old != new}
        self.unwatched = [*self.parent_outputs, *self.non_static]
        self.seen = [0 if k in self.non_static else n for k, n in enumerate(addresses)]

    def _addresses_unchanged(self, addresses: list[int]) -> bool:
        """Whether inputs that are used in place have kept their address. One that has moved is
        copied from now on, and the recordings that used it in place are dropped."""
        if addresses == self.seen:
            return self.changes <= MOST_CHANGES
        self.changes += 1
        self.recordings.clear()
        self._watch(addresses)
        return False

    def _parents_recorded(self, parent_outputs: list[int]) -> bool:
        """Whether the results of earlier partitions are in their recordings: this time they may
        have run unrecorded."""
        known = frozenset().union(*(r.addresses for part in self.parents for r in part.recordings))
        return known.issuperset(parent_outputs)

    def _recorded(self, args: list[Any], parent_outputs: list[int]) -> RecordedGraph:
        input_copies = {k: _static_copy(args[k], self._device_of(k, args)) for k in self.non_static}
        given = [input_copies.get(k, t) for k, t in enumerate(args)]
        try:
            replay, outputs = self.recorder.record(self.run, given)
        except LitzError:
            raise
        except RuntimeError as error:
            raise CaptureFailed(str(error)) from error
        self.recordings.append(RecordedGraph(replay, input_copies, outputs, parent_outputs))
        return self.recordings[-1]

    def _device_of(self, position: int, args: list[Any]) -> Any:
        return self.where if position in self.cpu_scalars else args[position].device

    def _replayed(self, recording: RecordedGraph, args: list[Any]) -> list[Any]:
        self.check()
        for k, place in recording.input_copies.items():
            _fill(place, args[k], k in self.cpu_scalars)
        recording.replay()
        for k in self.mutated_inputs & recording.input_copies.keys():
            _fill(args[k], recording.input_copies[k])
        args.clear()
        return recording.output_aliases()


CudaGraphRunner.call._boxed_call = True  # type: ignore[attr-defined]


def _static_copy(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """A copy of a tensor with the same layout, on a device."""
    place = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    _fill(place, tensor)
    return place


def _fill(place: torch.Tensor, tensor: torch.Tensor, non_blocking: bool = False) -> None:
    """Copy a tensor; elements that share memory, as in an expanded tensor, are copied once."""
    if 0 in place.stride():
        steps = zip(place.shape, place.stride(), strict=True)
        sizes = [min(n, 1) if s == 0 else n for n, s in steps]
        place, tensor = (t.as_strided(sizes, t.stride()) for t in (place, tensor))
    # Pinned memory would be read later, when its owner may have written to it.
    place.copy_(tensor, non_blocking=non_blocking and not tensor.is_pinned())


def one_replay_at_a_time(
    call: Call, plain: Call, stream: Callable[[], int], recording: Callable[[], bool]
) -> Call:
    """Replays one at a time, all on the stream of the first. A recording works in memory of its
    own, which a second call at the same time would overwrite; such a call runs unrecorded. So does
    a call while the user records a CUDA graph: a replay inside it would draw the same random
    numbers each time, and share its memory with our own replays."""
    lock = Lock()
    home: list[int] = []

    def run(args: list[Any]) -> list[Any]:
        here = stream()
        if recording() or not lock.acquire(blocking=False):
            return plain(args)
        try:
            if not home:
                home.append(here)
            return call(args) if here == home[0] else plain(args)
        finally:
            lock.release()

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def cudagraphify(graph: Any) -> Call:
    """A device graph's call as a replay."""
    plan: CallPlan = graph.plan
    assert plan.recording is not None
    recorder, cpu_scalars = graph.device.recorder(), plan.recording.cpu_scalars
    mutated_inputs = positions_written(plan, plan.body)
    return CudaGraphRunner(
        graph.call, recorder, mutated_inputs, graph.check, cpu_scalars, graph.device.name
    ).call


def positions_written(plan: CallPlan, body: Body) -> list[int]:
    """The inputs that a body writes to."""
    changed = changed_in(plan, body)
    return [k for k, item in enumerate(body.inputs) if item.value in changed]
