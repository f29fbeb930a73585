"""Packed weights are never stale: every way to write to a parameter, counted by torch or not."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from litz.build.llvm import compile_object, load_object
from litz.codegen.llvm.change_detection import CHUNK, FINGERPRINT, RANGES
from litz.codegen.llvm.launch import RUNTIME
from litz.ir.source import Binary
from litz.runtime import change_detection
from litz.runtime.change_detection import PAGE, SMALL, TRACKER, ChangeDetector
from litz.runtime.prepacked import CHANGED
from litz.runtime.prepacked import FINGERPRINT as FINGERPRINT_TYPE
from litz.target import host
from litz.trace import Trace

COLUMNS, ROWS = 256, 200  # 200 KB: pages that are tracked, and copies of both ends
OPTIONS = {"on_error": "raise"}


def _foreign(weight: torch.Tensor) -> None:
    ctypes.memset(weight.data_ptr() + 4 * 5000, 0, 64)


# Each changes the parameter; none but the first three is counted by torch.
WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "row": lambda w: w[5].fill_(3.0),
    "element": lambda w: w.__setitem__((3, 7), 9.0),
    "whole": lambda w: w.mul_(1.5),
    "data row": lambda w: w.data[5].fill_(3.0),
    "data element": lambda w: w.data.__setitem__((150, 11), 9.0),
    "data first": lambda w: w.data.view(-1)[:1].fill_(7.0),
    "data last": lambda w: w.data.view(-1)[-1:].fill_(7.0),
    "numpy": lambda w: np.copyto(w.detach().numpy()[100], 2.0),
    "another view": lambda w: w.data.t()[17].fill_(0.5),
    "storage": lambda w: w.untyped_storage().fill_(0),
    "foreign": _foreign,
}


@pytest.fixture(params=["tracked", "hashed"])
def tracked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """With what the kernel notes, and as if it noted nothing."""
    if request.param == "hashed":
        monkeypatch.setattr(change_detection.TRACKER, "works", lambda: False)
    elif not TRACKER.works():
        pytest.skip("this kernel does not track pages (userfaultfd, Linux 6.7)")
    torch._dynamo.reset()
    yield


@cache
def _native() -> Binary:
    """The functions of a graph that holds something, without a graph."""
    attributes = "attributes #0 = { nounwind }\n"
    text = "\n".join([RUNTIME, FINGERPRINT, RANGES, attributes])
    code = compile_object(text, host(), 2, Trace())
    return load_object(code, ["litz_written", "litz_fingerprint"])


def _fingerprint() -> Any:
    return FINGERPRINT_TYPE(_native().address["litz_fingerprint"])


def _written(record: Any) -> bool:
    return bool(CHANGED(_native().address["litz_written"])(ctypes.addressof(record)))


def _layer() -> nn.Linear:
    return nn.Linear(COLUMNS, ROWS)


def _agrees(run: Any, layer: nn.Linear, x: torch.Tensor) -> None:
    """Within what rounding can do to a sum of so many terms; a stale weight is far outside."""
    with torch.no_grad():
        wide, weight, bias = (t.double() for t in (x, layer.weight, layer.bias))
        terms = wide.abs() @ weight.abs().t() + bias.abs()
        error = (run(x) - (wide @ weight.t() + bias)).abs()
        assert (error <= COLUMNS * torch.finfo(x.dtype).eps * terms).all()


@pytest.mark.usefixtures("tracked")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("inference", [False, True], ids=["counted", "inference"])
def test_no_write_is_missed(write: str, inference: bool) -> None:
    with torch.inference_mode(inference), torch.no_grad():
        layer, x = _layer(), torch.randn(3, COLUMNS)
        run = torch.compile(layer, backend="litz", options=OPTIONS)
        for _ in range(2):
            _agrees(run, layer, x)
        for _ in range(3):  # also while nobody watches, and when it is watched again
            WRITES[write](layer.weight)
            for _ in range(3):
                _agrees(run, layer, x)


@pytest.mark.usefixtures("tracked")
def test_every_byte_counts() -> None:
    memory = torch.zeros(SMALL + 3 * PAGE + 100, dtype=torch.uint8)
    record = (ctypes.c_int64 * 3)()
    for place in [*range(130), *range(0, memory.numel(), 509), memory.numel() - 1]:
        watch = ChangeDetector([memory], record, _fingerprint())
        assert not _written(record), place
        memory.data[place] += 1
        assert _written(record), place
        watch.end()


def test_a_fingerprint_is_the_same_for_any_number_of_threads() -> None:
    memory = torch.randint(0, 255, (3 * CHUNK + 77,), dtype=torch.uint8)
    fingerprint, given = _fingerprint(), (memory.data_ptr(), memory.numel())
    threads = torch.get_num_threads()
    try:
        found = set()
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.add(fingerprint(*given))
        assert len(found) == 1
    finally:
        torch.set_num_threads(threads)
    # Equal chunks that change places, and equal elements, are seen as well.
    swapped = memory.clone()
    swapped[:CHUNK], swapped[CHUNK : 2 * CHUNK] = memory[CHUNK : 2 * CHUNK], memory[:CHUNK]
    assert fingerprint(swapped.data_ptr(), swapped.numel()) not in found


def test_graphs_that_share_a_parameter_all_see_a_write() -> None:
    """Who packs anew makes the kernel forget the write; the others must hear of it before."""
    torch._dynamo.reset()
    layer = _layer()
    inputs = [torch.randn(rows, COLUMNS) for rows in (3, 5, 7)]
    runs = [torch.compile(layer, backend="litz", options=OPTIONS, dynamic=False) for _ in range(2)]
    for turn in range(6):
        for run in runs:
            for x in inputs:
                _agrees(run, layer, x)
        layer.weight.data[turn].fill_(float(turn))


def test_memory_shared_with_a_file_is_hashed() -> None:
    shared = torch.zeros(1 << 18, dtype=torch.uint8).share_memory_()
    record = (ctypes.c_int64 * 3)()
    watch = ChangeDetector([shared], record, _fingerprint())
    assert not watch._tracked and not _written(record)
    shared[100] = 1
    assert _written(record)


@pytest.mark.skipif(not TRACKER.works(), reason="this kernel does not track pages")
def test_a_forked_child_begins_anew() -> None:
    memory = torch.zeros(1 << 18, dtype=torch.uint8)
    record = (ctypes.c_int64 * 3)()
    watch = ChangeDetector([memory], record, _fingerprint())
    child = os.fork()
    if child == 0:
        os._exit(0 if record[0] == -1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert watch._tracked and not _written(record)
    memory[5] = 1
    assert _written(record)


def test_parameters_that_change_are_left_alone_for_longer() -> None:
    """Training writes to every page at every step: that must not cost a fault for each."""
    torch._dynamo.reset()
    layer, x = _layer(), torch.randn(3, COLUMNS)
    run = torch.compile(layer, backend="litz", options=OPTIONS)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    before = len(TRACKER.watches)
    for _ in range(5):
        run(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert sum(w._record[0] >= 0 for w in TRACKER.watches) <= before + 1
    _agrees(run, layer, x)


def test_torch_counts_alone_if_told_so() -> None:
    torch._dynamo.reset()
    layer, x = _layer(), torch.randn(3, COLUMNS)
    options = OPTIONS | {"cpp.weight_prepack_check": "versions"}
    run = torch.compile(layer, backend="litz", options=options)
    _agrees(run, layer, x)
    with torch.no_grad():
        layer.weight[5].fill_(3.0)
        _agrees(run, layer, x)
        before = run(x)
        layer.weight.data[5].fill_(100.0)  # not counted, and so not seen, as the flag says
        assert torch.equal(run(x), before)
