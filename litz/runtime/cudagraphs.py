"""CUDA graphs: a call recorded once and replayed.

In: the callable of a graph, or of a part of one, and the policy that says it can be recorded. Out:
a callable that replays. The first calls run as they are and show which inputs stay where they are:
parameters do. Those are used in place; any other is copied to a place of its own before a replay,
and back if the graph writes to it; a number of the CPU's is brought to a place on the GPU. What a
replay gives lies in the recording's own memory. While any of it is still in use somewhere, that
recording is not replayed: another one is made, with memory of its own. What an earlier part's
recording gave is used where it lies: each recording knows the one it follows by that address.
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

# One thread at a time records: torch has one stream to record on, Python one collector to stop.
RECORDING = Lock()
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
        with RECORDING, torch.cuda.device(self.index):
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with _without_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = call(list(args))
            return graph.replay, outputs


@contextmanager
def _without_collection() -> Iterator[None]:
    """What Python's collector frees (graphs, modules, events of dead programs) is freed through
    CUDA, which ends a recording of the thread that it happens in."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@dataclass
class Recording:
    """One recording: the places of inputs that are copied, by position, the addresses of what an
    earlier recording gives it, and where its outputs lie. Inputs that are used in place are not
    held: they may be another recording's outputs."""

    replay: Callable[[], None]
    places: dict[int, torch.Tensor]
    outputs: list[Any]
    carried: list[int] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)  # owners of each output's memory when unused
    addresses: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.idle = [_owners(t) for t in self.outputs]
        self.addresses = frozenset(map(_address, self.outputs))

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


def _address(value: Any) -> int:
    return value.data_ptr() if isinstance(value, torch.Tensor) else 0


def _addresses(values: list[Any]) -> list[int]:
    """Where tensors lie; 0 for what is none. There may be hundreds at each call."""
    try:
        return list(map(torch.Tensor.data_ptr, values))
    except TypeError:
        return list(map(_address, values))


class Replayed:
    """Calls a graph by replaying it. `updated` are the positions of inputs that it writes to;
    `brought` those of numbers on the CPU, which a recording reads `where` it runs; `carried` those
    of what `before`, earlier parts of the same graph, gave."""

    def __init__(
        self, call: Call, recorder: Recorder, updated: Iterable[int], check: Callable[[], None],
        brought: Iterable[int] = (), where: str | None = None, carried: Iterable[int] = (),
        before: Collection[Replayed] = (),
    ) -> None:  # fmt: skip
        self.run, self.recorder, self.updated = call, recorder, frozenset(updated)
        self.brought, self.where = frozenset(brought), where
        self.carried, self.before = tuple(carried), before
        self.check = check  # raises what an earlier call noted
        self.recordings: list[Recording] = []
        self.seen: list[int] | None = None  # addresses at the call before
        self.moving = set(self.brought)
        self.unwatched = [*self.carried, *self.moving]  # which recording they lie in is known
        self.calls = self.changes = 0

    def call(self, args: list[Any]) -> list[Any]:
        """One call of the graph."""
        addresses = _addresses(args)
        self.calls += 1
        carried = [addresses[k] for k in self.carried]
        for k in self.unwatched:
            addresses[k] = 0
        if self.calls <= WARM_UPS or not self._settled(addresses):
            self._watch(addresses)
            return self.run(args)
        free = (r for r in self.recordings if r.carried == carried and r.is_free)
        recording = next(free, None)
        if recording is None:
            if len(self.recordings) >= MOST_RECORDINGS or not self._lie_still(carried):
                return self.run(args)
            recording = self._recorded(args, carried)
        return self._replayed(recording, args)

    def _watch(self, addresses: list[int]) -> None:
        if self.seen is not None:
            pairs = enumerate(zip(self.seen, addresses, strict=True))
            self.moving |= {k for k, (old, new) in pairs if old != new}
        self.unwatched = [*self.carried, *self.moving]
        self.seen = [0 if k in self.moving else n for k, n in enumerate(addresses)]

    def _settled(self, addresses: list[int]) -> bool:
        """Whether inputs that are used in place are where they were. One that is not gets a place
        of its own from now on, and recordings that knew no better are dropped."""
        if addresses == self.seen:
            return self.changes <= MOST_CHANGES
        self.changes += 1
        self.recordings.clear()
        self._watch(addresses)
        return False

    def _lie_still(self, carried: list[int]) -> bool:
        """Whether what earlier parts gave lies in recordings of theirs: they may have run as they
        are this time."""
        known = frozenset().union(*(r.addresses for part in self.before for r in part.recordings))
        return known.issuperset(carried)

    def _recorded(self, args: list[Any], carried: list[int]) -> Recording:
        places = {k: _beside(args[k], self._device_of(k, args)) for k in self.moving}
        given = [places.get(k, t) for k, t in enumerate(args)]
        try:
            replay, outputs = self.recorder.record(self.run, given)
        except LitzError:
            raise
        except RuntimeError as error:
            raise CaptureFailed(str(error)) from error
        self.recordings.append(Recording(replay, places, outputs, carried))
        return self.recordings[-1]

    def _device_of(self, position: int, args: list[Any]) -> Any:
        return self.where if position in self.brought else args[position].device

    def _replayed(self, recording: Recording, args: list[Any]) -> list[Any]:
        self.check()
        for k, place in recording.places.items():
            _fill(place, args[k], k in self.brought)
        recording.replay()
        for k in self.updated & recording.places.keys():
            _fill(args[k], recording.places[k])
        args.clear()
        return recording.shown()


Replayed.call._boxed_call = True  # type: ignore[attr-defined]  # it takes its inputs as one list


def _beside(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    """Memory laid out as a tensor's, with its values."""
    place = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    _fill(place, tensor)
    return place


def _fill(place: torch.Tensor, tensor: torch.Tensor, non_blocking: bool = False) -> None:
    """Copy; elements that share memory, as those of an expanded tensor do, once."""
    if 0 in place.stride():
        steps = zip(place.shape, place.stride(), strict=True)
        sizes = [min(n, 1) if s == 0 else n for n, s in steps]
        place, tensor = (t.as_strided(sizes, t.stride()) for t in (place, tensor))
    # Pinned memory would be read later, when its owner may have written to it.
    place.copy_(tensor, non_blocking=non_blocking and not tensor.is_pinned())


def alone(
    call: Call, plain: Call, stream: Callable[[], int], recording: Callable[[], bool]
) -> Call:
    """Replays one at a time, all on the stream of the first: what is recorded works in memory of
    its own, which another call at the same time would overwrite. That one runs as it is. So does
    one inside a recording of the user's: a replay would become a part of it that draws the same
    random numbers each time, in memory that we replay in as well."""
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

    run._boxed_call = True  # type: ignore[attr-defined]  # it takes its inputs as one list
    return run


def replayed(graph: Any) -> Call:
    """A device graph's call as a replay."""
    plan: CallPlan = graph.plan
    assert plan.recording is not None
    recorder, brought = graph.device.recorder(), plan.recording.brought
    updated = positions_written(plan, plan.body)
    return Replayed(graph.call, recorder, updated, graph.check, brought, graph.device.name).call


def positions_written(plan: CallPlan, body: Body) -> list[int]:
    """The inputs that a body writes to."""
    changed = changed_in(plan, body)
    return [k for k, item in enumerate(body.inputs) if item.value in changed]
