"""The driver as we call it: contexts, recordings one at a time, and what is given back."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from litz.errors import DriverError
from litz.runtime import cuda
from litz.runtime.cuda import Cuda
from litz.runtime.cudagraphs import CudaRecorder


class Driver:
    """Notes what it is asked; `busy` is the thread that records."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.busy: int | None = None
        self.clashes = 0
        self.destroyed: list[int] = []
        self.instances = 0

    def cuStreamBeginCapture_v2(self, stream: int, mode: int) -> int:
        self.clashes += self.busy is not None
        self.busy = threading.get_ident()
        return 0

    def cuStreamEndCapture(self, stream: int, graph: Any) -> int:
        self.busy = None
        return 0

    def cuGraphInstantiateWithFlags(self, instance: Any, graph: Any, flags: int) -> int:
        self.instances += 1
        instance._obj.value = self.instances
        return 0

    def cuGraphExecDestroy(self, instance: int) -> int:
        self.destroyed.append(instance)
        return 0

    def cuGraphLaunch(self, instance: int, stream: int) -> int:
        self.asked.append(f"launch {instance} on {stream}")
        return 0

    def cuCtxSetCurrent(self, context: int) -> int:
        self.asked.append(f"context {context}")
        return 201 if context == 13 else 0

    def cuDevicePrimaryCtxRetain(self, context: Any, index: int) -> int:
        context._obj.value = 7
        return 0

    def cuStreamCreate(self, stream: Any, flags: int) -> int:
        stream._obj.value = 99
        return 0

    def cuGraphDestroy(self, graph: Any) -> int:
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"invalid device context"
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Driver()
    monkeypatch.setattr(cuda, "_driver", lambda: found)
    caches = (cuda._context, cuda._capture_stream)
    for known in caches:
        known.cache_clear()
    yield found
    for known in caches:
        known.cache_clear()


@pytest.fixture
def gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    for name in ("_cuda_getDevice", "_cuda_getCurrentRawStream"):
        monkeypatch.setattr(torch._C, name, lambda *_: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Cuda(0)


def test_a_recording_is_one_launch_and_is_given_back(driver: Driver, gpu: Cuda) -> None:
    streams: list[int] = []
    graph = gpu.recorded(lambda stream: streams.append(stream) or 0)
    assert graph is not None and graph(5) == 0
    assert streams == [99] and driver.asked == ["context 7", "launch 1 on 5"]
    del graph
    gc.collect()
    assert driver.destroyed == [1]


def test_threads_record_one_after_the_other(driver: Driver, gpu: Cuda) -> None:
    def record() -> None:
        gpu.recorded(lambda stream: time.sleep(0.01) or 0)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver.instances == 4 and not driver.clashes


def test_a_context_that_cannot_be_entered_is_an_error(
    driver: Driver, gpu: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_context", lambda index: 13)
    with pytest.raises(DriverError, match=r"cuCtxSetCurrent.*201: invalid device context"):
        gpu.enter()


def test_pinned_memory_is_read_at_once(gpu: Cuda) -> None:
    """Its owner may write to it as soon as the call is back."""
    waits: list[bool] = []

    class Number:
        is_cuda = False

        def __init__(self, pinned: bool) -> None:
            self.pinned = pinned

        def is_pinned(self) -> bool:
            return self.pinned

        def to(self, device: str, non_blocking: bool) -> None:
            waits.append(not non_blocking)

    gpu.to_device(Number(True))  # type: ignore[arg-type]
    gpu.to_device(Number(False))  # type: ignore[arg-type]
    assert waits == [True, False]


def test_a_recording_has_a_number_itself(gpu: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replays come when the memory behind a number of the CPU's may be gone."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    gpu.name = "cpu"
    kept = [torch.tensor(v) for v in (2**53 + 1, -0.0, 0.1, True)]
    kept.append(torch.tensor(0.1, dtype=torch.float64))
    for number in kept:
        before, made = number.clone(), gpu.to_device(number)
        number.zero_()
        assert torch.equal(made, before) and made.dtype is before.dtype
        assert made.data_ptr() != number.data_ptr()
    there = MagicMock(device=torch.device("cuda"))  # brought over before our own recordings
    assert gpu.to_device(there) is there.to.return_value and not there.item.called


def test_threads_record_calls_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch records on one stream of its own, whatever thread asks for it."""
    inside: list[int] = []
    clashes: list[int] = []

    @contextmanager
    def graph(*_: Any, **__: Any) -> Iterator[None]:
        clashes.extend(inside)
        inside.append(threading.get_ident())
        time.sleep(0.01)
        yield
        inside.clear()

    for name in ("synchronize", "CUDAGraph"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    record = CudaRecorder(0).record
    threads = [threading.Thread(target=record, args=(list, [k])) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes and gc.isenabled()
