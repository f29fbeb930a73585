"""Memory: each allocation may be refused, weights may be half packed, tensors may be very large."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import nn

import litz
from litz import compiler
from litz.runtime import memory
from litz.runtime import prepacked as held_module
from litz.runtime.change_detection import ChangeDetector, PageTracker
from litz.runtime.prepacked import PrepackCache, PrepackedWeights
from litz.target import CpuTarget, host
from litz.targets import TOOLCHAINS, toolchain_of
from tests.faults.processes import run
from tests.stages import linked, through_aot

ERRORS = (MemoryError, KeyboardInterrupt)


@pytest.fixture(autouse=True)
def fresh() -> None:
    litz.reset()


# -- allocations -------------------------------------------------------------------------------


def _refused(*_: Any, **__: Any) -> Any:
    raise MemoryError("no memory is left")


def steps(x: torch.Tensor) -> Any:
    """Kernels around an op that has a place in the arena, and two outputs."""
    ordered = (x.exp() + 1).softmax(-1) @ x.t()
    return ordered.cumsum(0) * 2, ordered.sum(0)


def test_no_memory_for_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(16, 16)
    graph = linked(steps, x)
    assert graph.plan.slots
    wanted = [t.clone() for t in graph([x])]
    for name in ("empty", "use_huge_pages"):
        memory.IDLE_ARENAS.clear()
        graph.free.clear()
        with monkeypatch.context() as patched:
            patched.setattr(memory, "HUGE_PAGE_THRESHOLD", 0)
            patched.setattr(memory, name, _refused)
            with pytest.raises(MemoryError):
                graph([x])
        assert all(map(torch.equal, graph([x]), wanted))
        assert len(graph.free) == len(memory.IDLE_ARENAS) == 1


def test_no_memory_for_each_output_in_turn() -> None:
    x = torch.randn(16, 16)
    graph = linked(steps, x)
    scope = graph.call.__globals__
    wanted, original = [t.clone() for t in graph([x])], scope["empty"]
    count = [0]

    def counted(*given: Any) -> Any:
        count[0] -= 1
        return original(*given) if count[0] else _refused()

    scope["empty"] = counted
    graph([x])
    for k in range(1, 1 - count[0]):
        count[0] = k
        with pytest.raises(MemoryError):
            graph([x])
        assert all(map(torch.equal, graph([x]), wanted))
        assert len(graph.free) == 1
    assert graph([x]) and k == 2


def test_no_memory_for_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(16, 16)
    graph = linked(steps, x)
    wanted = [t.clone() for t in graph([x])]
    for part in ("__init__", "_enter", "_view", "strided_view"):
        graph.free.clear()
        memory.IDLE_ARENAS.clear()
        with monkeypatch.context() as patched:
            patched.setattr(memory.Workspace, part, _refused)
            with pytest.raises(MemoryError):
                graph([x])
        assert all(map(torch.equal, graph([x]), wanted)), part


# -- packed weights ----------------------------------------------------------------------------

# Whatever a call does to make, find and watch them.
HOLDING = {f.__code__ for f in (
    PrepackCache.refresh, PrepackCache._set_of, PrepackCache._bind, PrepackCache._make,
    PrepackCache._watch, PrepackCache._drop, PrepackedWeights.__init__,
    PrepackedWeights.should_watch, memory.Workspace.bind_prepacked, ChangeDetector.__init__,
    ChangeDetector._ranges, ChangeDetector._copied, ChangeDetector.end, PageTracker.arm,
    memory.on_storage_freed, held_module._operand,
)}  # fmt: skip


class FailsAt:
    """Raises as a line of what holds packed weights is reached; or counts the lines."""

    def __init__(self, where: tuple[CodeType, int] | None, error: type[BaseException]) -> None:
        self.where, self.error = where, error
        self.lines: dict[tuple[CodeType, int], None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in HOLDING:
            return None
        if event == "line":
            here = (frame.f_code, frame.f_lineno)
            self.lines[here] = None
            if here == self.where:
                self.where = None
                raise self.error("made to fail")
        return self

    def __enter__(self) -> FailsAt:
        sys.settrace(self)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(None)


class Block(nn.Module):
    """A convolution that oneDNN packs, and a product that kernels pack."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3)
        self.layer = nn.Linear(36, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.convolution(x).relu().flatten(2)).relu()


@pytest.fixture
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def apply(block: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return block(x) + 1


@pytest.mark.parametrize("error", ERRORS)
def test_packing_may_fail_at_every_line(
    error: type[BaseException], without_gradients: None
) -> None:
    """One graph, three modules in turn, one of them new and one just written to: whatever was left
    half done, the next call of each is right. What dies frees its addresses for the next."""
    x = torch.randn(2, 8, 8, 8)
    blocks, third = [Block(), Block()], [Block()]
    fast = torch.compile(apply, backend="litz", options={"on_error": "raise"})

    def check(block: nn.Module) -> None:
        torch.testing.assert_close(fast(block, x), apply(block, x), rtol=1e-4, atol=1e-4)

    def disturbed(failing: FailsAt) -> None:
        blocks[0].layer.weight.data[3] += 1  # torch does not count it
        third[:] = [Block()]
        with failing:
            for block in (blocks[1], *third, blocks[0], *third, blocks[1]):
                fast(block, x)

    for block in blocks * 2:
        check(block)
    counted = FailsAt(None, error)
    disturbed(counted)
    assert len(counted.lines) > 60
    for where, first in product(counted.lines, (0, 1)):
        failing = FailsAt(where, error)
        try:
            disturbed(failing)
        except error:
            assert failing.where is None
        for block in (blocks[first], *third, blocks[1 - first], Block(), *third, *blocks):
            check(block)
    gc.collect()
    (prepacked,) = [h for h in held_module.ALL if h.made]
    assert len(prepacked.sets) <= len(blocks) + 3


# -- limits ------------------------------------------------------------------------------------

LIMITED = """
import os, resource, sys
import torch
import torch.nn.functional as F
from tests import draws

draws.begin()
torch.set_grad_enabled(False)
torch.set_num_threads(1)
layer = torch.nn.Linear(512, 512)
small, big = torch.randn(8, 512), torch.randn(20_000, 512)
options = {"on_error": "raise"}
UNLIMITED = resource.getrlimit(resource.RLIMIT_AS)

def grows(x):
    return (layer(x).exp().sort(-1)[0] @ layer.weight).cumsum(0)

def other(x):
    return F.layer_norm(x, (512,)).softmax(0).sort(-1)[0] @ layer.weight

fast = torch.compile(grows, backend="litz", dynamic=True, options=options)
wanted = fast(small).clone()

def compiles(**given):
    torch.compile(other, backend="litz", **given)(small)

def limited(megabytes, work):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + (megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, UNLIMITED[1]))
    code = 0
    try:
        work()
    except (MemoryError, RuntimeError):  # torch's own is a RuntimeError
        code = 1
    resource.setrlimit(resource.RLIMIT_AS, UNLIMITED)
    assert torch.equal(fast(small), wanted)
    made = torch.compile(other, backend="litz", options=options)
    torch.testing.assert_close(made(small), other(small), rtol=1e-4, atol=1e-4)
    sys.stdout.flush()
    os._exit(code)

print([limited(m, lambda: fast(big)) for m in (0, 20, 60, 100, 1000)])
print({limited(m, lambda: compiles(options=options)) for m in (0, 1)} <= {0, 1})
print({limited(m, compiles) for m in (0, 1)} <= {0, 1})
"""


def test_memory_is_limited() -> None:
    """A call that has not enough raises as eager does, and so does a compile; the process lives,
    and with more memory both are right."""
    assert run(LIMITED).split("\n")[:3] == ["[1, 1, 1, 1, 0]", "True", "True"]


# -- more than 2^31 elements ---------------------------------------------------------------------

FAR = 2**31
HUGE_PAGE_THRESHOLD = """
import torch

torch.set_grad_enabled(False)
FAR, STEP = 2**31, 1 << 22
N = FAR + 2 * STEP + 6
x = torch.empty(N, dtype=torch.int8)
x[:STEP] = torch.arange(STEP) % 101
for k in range(STEP, N, STEP):
    x[k : k + STEP] = x[: min(STEP, N - k)]
x[FAR - 1], x[FAR], x[FAR + 5], x[N - 1] = 102, 103, 104, 105
where = torch.tensor([0, FAR - 1, FAR, FAR + 5, N - 1, -1, -N])
options = {"on_error": "raise"}

def function(x, i):
    pairs = x.view(-1, 2)[:, 1]
    return (x ^ 5, x[i], x.index_select(0, i[:5]), x.amax(), x.argmax(), (x > 101).sum(),
            x[FAR:].clone(), pairs[-4:] + 1, (pairs > 101).sum())

def check(found):
    changed, some, first, most, at, count, end, pairs, odd = found
    for k in range(0, N, 1 << 28):  # eager needs less memory for pieces
        assert torch.equal(changed[k : k + (1 << 28)], x[k : k + (1 << 28)] ^ 5)
    assert some.tolist() == [0, 102, 103, 104, 105, 105, 0]
    assert first.tolist() == [0, 102, 103, 104, 105]
    assert (most.item(), at.item(), count.item(), odd.item()) == (105, N - 1, 4, 3)
    assert torch.equal(end, x[FAR:]) and torch.equal(pairs, x.view(-1, 2)[-4:, 1] + 1)

fast = torch.compile(function, backend="litz", options=options)
check(fast(x, where))

def sized(x, i):
    return x[i], (x > 101).sum(), x.argmax(), x[FAR:] + 1

some, count, at, end = torch.compile(sized, backend="litz", dynamic=True, options=options)(x, where)
assert some.tolist() == [0, 102, 103, 104, 105, 105, 0] and torch.equal(end, x[FAR:] + 1)
assert (count.item(), at.item()) == (4, N - 1)

def writes(x, i, v):
    x[i] = v

values = torch.tensor([7, 8, 9, 10, 11], dtype=torch.int8)
torch.compile(writes, backend="litz", options=options)(x, where[:5], values)
assert torch.equal(x[where[:5]], values)
numbers = torch.compile(lambda: (torch.arange(FAR + 9) * 2).amax(), backend="litz", options=options)
assert numbers().item() == 2 * (FAR + 8)
print("done")
"""


def _available() -> int:
    """Bytes that programs can still have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("MemAvailable")]
    return int(found) << 10


@pytest.mark.alone
def test_tensors_of_more_than_2_31_elements() -> None:
    if not Path("/proc/meminfo").exists() or _available() < 9 << 30:
        pytest.skip("it takes 6 GB, and less than 9 GB are free")
    assert run(HUGE_PAGE_THRESHOLD, timeout=600).strip() == "done"


class _Seen(Exception):
    """Ends a compile whose result is never called."""


def _emitted(function: Callable[..., Any], *inputs: torch.Tensor) -> str:
    """The code for inputs that nobody looks at."""
    found: list[str] = []
    tools = toolchain_of(host())

    def kept(*given: Any) -> Any:
        source = tools.emit(*given)
        found.append(source.text)
        raise _Seen

    def compile_one(module: torch.fx.GraphModule) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setitem(TOOLCHAINS, CpuTarget, replace(tools, emit=kept))
            return compiler.compile_graph(module, "inference", litz.config.snapshot())

    with torch.no_grad(), pytest.raises(Exception) as caught:
        through_aot(function, compile_one)(*inputs)
    assert isinstance(caught.value.__cause__, _Seen)
    return found[0]


KINDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: x.exp() + 1,
    "row sums": lambda x: x.view(-1, 1024).sum(-1),
    "softmax": lambda x: x.view(-1, 1024).softmax(-1),
    "transposed": lambda x: x.view(-1, 1024).t().contiguous(),
    "scan": lambda x: x.view(-1, 1024).cumsum(-1),
    "gather": lambda x: x[torch.arange(0, FAR, 1 << 28)] * 2,
    "product": lambda x: x.view(-1, 1024) @ x.view(-1, 1024)[:1024],
    "sum": lambda x: x.sum(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_index_has_32_bits(kind: str) -> None:
    """In the code of tensors of 16 GB, of which not one byte is there."""
    text = _emitted(KINDS[kind], torch.empty(FAR * 2, dtype=torch.float32))
    narrow = re.findall(r".*getelementptr (?!%litz)[^,]+, ptr [^,]+, i(?:8|16|32) %.*", text)
    narrow += [
        line for line in re.findall(r".*trunc (?:<\d+ x )?i64.* to .*", text) if "%team" not in line
    ]
    assert "getelementptr" in text and not narrow
