"""Runs of kernels as one launch: only where every address has been there before."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from litz.ir.call_plan import STREAM
from litz.runtime.device_graph import ArgumentTable
from litz.runtime.launch_graphs import MOST_GRAPHS, MOST_SEEN, LaunchGraphCache

SIZE = 8
USED = (4, 6)


class Gpu:
    """Notes the addresses of each launch, and whether it was one of a graph."""

    def __init__(self) -> None:
        self.plain: list[tuple[Any, Any]] = []
        self.replayed: list[tuple[int, tuple[Any, ...]]] = []
        self.busy = False
        self._recording: list[tuple[Any, ...]] | None = None

    def native(self, address: int) -> int:
        table = (ctypes.c_void_p * SIZE).from_address(address)
        found = tuple(table[k] for k in USED)
        if self._recording is None:
            self.plain.append((table[STREAM], found))
        else:
            self._recording.append(found)
        return 0

    def recorded(self, run: Callable[[int], int]) -> Callable[[int], int] | None:
        if self.busy:
            return None
        self._recording = launches = []
        run(99)
        self._recording = None

        def replay(stream: int) -> int:
            self.replayed += [(stream, found) for found in launches]
            return 0

        return replay


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


def launched(gpu: Gpu) -> Callable[..., int]:
    launches = LaunchGraphCache(
        gpu.native, USED, lambda t: ArgumentTable(list(enumerate(t)), SIZE), gpu
    )
    space = ArgumentTable([], SIZE)

    def call(*addresses: int, stream: int = 7, unused: int = 0) -> int:
        space.table[STREAM], space.table[5] = stream, unused
        for place, value in zip(USED, addresses, strict=True):
            space.table[place] = value
        return launches(space.table, space.address)

    return call


def test_the_third_call_at_the_same_places_is_one_launch(gpu: Gpu) -> None:
    call = launched(gpu)
    for unused in range(4):  # what its kernels do not take may move
        assert call(100, 200, unused=unused) == 0
    assert gpu.plain == [(7, (100, 200))] * 2
    assert gpu.replayed == [(7, (100, 200))] * 2


def test_a_replay_goes_to_the_stream_of_its_call(gpu: Gpu) -> None:
    call = launched(gpu)
    for stream in (7, 7, 8):
        call(100, 200, stream=stream)
    assert gpu.replayed == [(8, (100, 200))]


def test_what_was_recorded_is_not_changed_by_later_calls(gpu: Gpu) -> None:
    call = launched(gpu)
    for addresses in [(100, 200), (100, 200), (300, 200), (100, 200)]:
        call(*addresses)
    assert gpu.replayed == [(7, (100, 200))]
    assert gpu.plain[-1] == (7, (300, 200))


def test_addresses_that_never_come_again_are_not_remembered_for_ever(gpu: Gpu) -> None:
    call = launched(gpu)
    for k in range(3 * MOST_SEEN):
        call(k, 200)
    call(1, 200)
    call(1, 200)
    assert not gpu.replayed[:1] or len(gpu.replayed) == 1
    for k in range(2 * MOST_SEEN, 3 * MOST_SEEN):
        call(k, 200)
    assert all(found[0] < MOST_SEEN for _, found in gpu.replayed)


def test_there_are_few_graphs_of_one_run(gpu: Gpu) -> None:
    call = launched(gpu)
    for _ in range(4):
        for k in range(2 * MOST_GRAPHS):
            call(k, 200)
    assert len({found for _, found in gpu.replayed}) == MOST_GRAPHS


def test_while_torch_records_nothing_else_is(gpu: Gpu) -> None:
    call = launched(gpu)
    gpu.busy = True
    for _ in range(4):
        call(100, 200)
    assert not gpu.replayed and len(gpu.plain) == 4
    gpu.busy = False
    for _ in range(3):
        call(100, 200)
    assert len(gpu.replayed) >= 1
