"""The memory of kernels' own: little of it on the stack, checked where it is on the heap."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.codegen.llvm.driver import MOST_WORDS, launches_of
from litz.codegen.llvm.driver import _in_parts as in_parts
from litz.codegen.llvm.frame import MAX_STACK_ARRAY, MAX_STACK_FRAME
from litz.config import Config
from litz.ir.call_plan import KernelCall
from litz.ir.dtypes import F32
from litz.ir.expr import apply, axis, integer, load
from litz.ir.program import Kernel, Phase, Store
from tests.codegen.native import buffer, run
from tests.dynamic.symbolic import Symbolic
from tests.numerics.table import listed, measured
from tests.stages import compiled, linked, module_text, stages

Function = Callable[..., Any]

SMALL_STACK = 512 * 1024


def _share(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(0) / x.cumsum(0).amax(0, keepdim=True)


def _normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[1:]) @ w


def _turned(*given: torch.Tensor) -> torch.Tensor:
    """A load of other rows from each operand."""
    total = given[0].contiguous()
    for x in given[1:]:
        total = total + x.T
    return total


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v)


# What keeps much, or could: rows in lanes and lanes that are rows, columns, windows, products.
CORPUS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "scan of columns": (_share, [(60000, 64)]),
    "scan of columns, shorter": (_share, [(8000, 64)]),
    "scan of columns, short": (_share, [(40, 64)]),
    "two scans": (lambda x: _share(x) * _share(x.exp()), [(9000, 24)]),
    "rows": (lambda x: (x.exp().cumsum(1).softmax(1)).cumsum(1), [(3, 70000)]),
    "softmax of columns": (lambda x: x.exp().softmax(0), [(30000, 40)]),
    "halves": (lambda x: _share(x.bfloat16().exp()), [(9000, 48)]),
    "sums of columns": (lambda x: (x.sum(0), x.exp().mean(0), x.var(0)), [(1500, 9000)]),
    "extremes of columns": (lambda x: (x.amax(0), x.amin(0)), [(1500, 8192)]),
    "rows, then a product": (_normed, [(300, 3000), (3000, 64)]),
    "product": (torch.matmul, [(257, 1000), (1000, 320)]),
    "attention": (_attention, [(1, 2, 300, 256)] * 3),
    "attention of one row": (_attention, [(1, 2, 1, 256), (1, 2, 5000, 256), (1, 2, 5000, 256)]),
    "convolution": (partial(F.conv2d, padding=1), [(1, 600, 9, 9), (48, 600, 3, 3)]),
    "depthwise": (lambda x, w: F.conv2d(x, w, groups=96), [(2, 96, 20, 20), (96, 1, 5, 5)]),
    "transposed": (_turned, [(48, 80)] + [(80, 48)] * 80),
}


def _inputs(name: str) -> list[torch.Tensor]:
    shapes = CORPUS[name][1]
    if len(shapes) == 2:  # a product: of small integers it is exact in any order
        return [torch.randint(-2, 3, s).float() for s in shapes]
    return [torch.rand(s) + 0.1 for s in shapes]


ALLOCA = re.compile(r"= alloca (.*)")
SIZED = re.compile(r"(?:\[(\d+) x )?(?:<(\d+) x )?(\w+)>?\]?(?:, i64 (\S+))?(?:, align \d+)?$")
BYTES = {"i1": 1, "i8": 1, "i16": 2, "half": 2, "bfloat": 2, "float": 4, "i32": 4}


def frames(text: str) -> dict[str, list[int]]:
    """The bytes of each alloca of each function."""
    found: dict[str, list[int]] = {}
    for function in re.split(r"^define ", text, flags=re.M)[1:]:
        name = re.search(r"@([\w.]+)", function)
        assert name is not None
        if name[1] == "litz_run":
            continue  # as many words as its caller says: see below
        body = function.partition("\n}")[0]
        for line in ALLOCA.findall(body):
            if line.startswith("%litz."):
                size = 64
            else:
                parts = SIZED.match(line)
                assert parts is not None and parts[4] is None, line
                size = int(parts[1] or 1) * int(parts[2] or 1) * BYTES.get(parts[3], 8)
            found.setdefault(name[1], []).append(size)
    return found


@pytest.mark.parametrize("name", CORPUS)
def test_functions_leave_the_stack_alone(name: str) -> None:
    """No piece is large, nor all of them together; and results are eager's, where the stack of the
    thread that calls is small."""
    function, inputs = CORPUS[name][0], _inputs(name)
    graph = linked(function, *inputs)
    for pieces in frames(module_text(function, *inputs)).values():
        assert (
            max(pieces) <= MAX_STACK_ARRAY and sum(pieces) <= MAX_STACK_FRAME + MAX_STACK_ARRAY // 2
        )
    found: list[Any] = []
    before = threading.stack_size(SMALL_STACK)
    try:
        thread = threading.Thread(target=lambda: found.append(graph([*inputs])))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    exact, eager = listed(function(*(x.double() for x in inputs))), listed(function(*inputs))
    for e in measured(exact, eager, found[0]):
        assert e.litz <= 4 * max(e.eager, 1), e  # sums of products are added up in another order


def test_what_is_large_is_on_the_heap() -> None:
    """So that the test above looks at something."""
    large, small = (
        module_text(*CORPUS[name][:1], *_inputs(name))
        for name in ("scan of columns", "scan of columns, short")
    )
    assert "@malloc" in large and "@free" in large and "@malloc" not in small


def test_sizes_that_only_a_call_knows() -> None:
    symbolic = Symbolic(_share)
    symbolic(torch.rand(50, 64) + 0.1)
    inputs = [torch.rand(n, 64) + 0.1 for n in (30000, 7, 8000)]
    found: list[torch.Tensor] = []
    before = threading.stack_size(SMALL_STACK)
    try:
        thread = threading.Thread(target=lambda: found.extend(symbolic(x) for x in inputs))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    for a, x in zip(found, inputs, strict=True):
        torch.testing.assert_close(a, _share(x))


def _python(lines: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", lines], env={**os.environ, **environment}, text=True,
        capture_output=True, timeout=300,
    )  # fmt: skip


WORKERS = """
import torch
from tests.codegen.test_frames import _share
from tests.stages import compiled
x = torch.rand(20000, 512) + 0.1
assert torch.allclose(compiled(_share, cpp__threads=2)(x), _share(x))
"""


def test_workers_with_small_stacks() -> None:
    done = _python(WORKERS, OMP_STACKSIZE="256k", OMP_NUM_THREADS="2")
    assert done.returncode == 0, done.stderr


# The rows need 64 MB, of which there are 16. What the call itself allocates is small.
NO_MEMORY = """
import resource
import torch
from litz.errors import OutOfMemory
from tests.codegen.test_frames import _share
from tests.stages import compiled

run = compiled(lambda x: _share(x).amax(0), cpp__threads=1)
x = torch.rand(1 << 20, 1).expand(-1, 16) + 0.1
expected = run(x)
(used,) = (int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmSize"))
limits = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), limits[1]))
for _ in range(2):
    try:
        run(x)
    except OutOfMemory as e:
        assert e.size > 1 << 25 and isinstance(e, RuntimeError)
    else:
        raise AssertionError("there was enough memory")
resource.setrlimit(resource.RLIMIT_AS, limits)
assert torch.equal(run(x), expected)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads how much is in use from /proc")
def test_no_memory_is_an_error_of_the_call() -> None:
    done = _python(NO_MEMORY, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr


def test_long_batches_are_run_in_parts() -> None:
    """Arguments of a run lie on the stack: no more of them than fit there."""
    made = stages(lambda *x: [t * 2 for t in x], *(torch.rand(5) for _ in range(3)))
    kernels = [KernelCall("k0", launches_of(made.scheduled[0], ["f"]), (), ())] * 5000
    parts = in_parts(tuple(range(5000)), kernels)
    assert [k for part in parts for k in part] == list(range(5000))
    words = 4 + len(made.scheduled[0].arguments) + 1
    assert len(parts) > 1 and all(len(part) * words <= MOST_WORDS for part in parts)
    assert in_parts((3,), kernels) == [(3,)]


# -- poison ----------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [4, 40, 20000])
def test_scratch_that_was_not_written_is_nan(half: int) -> None:
    """Row 0 writes the first half of its scratch, row 1 the other one; both read all of it."""
    i, part, whole = axis("i0", 2), axis("r0", half), axis("r0", 2 * half)
    x, y = buffer("x", F32, 2, half), buffer("y", F32, 2, 2 * half)
    row = buffer("s", F32, 2 * half)
    place = apply("add", apply("mul", i, integer(half)), part)
    writes = Phase((part,), False, (Store(row, (place,), load(x, (i, part))),))
    reads = Phase((whole,), False, (Store(y, (i, whole), load(row, (whole,))),))
    kernel = Kernel("k0_test", (i,), (writes, reads), (row,))
    found = run(kernel, {x: torch.ones(2, half), y: None}, Config(debug_poison_memory=True))[0]["y"]
    assert found[0, :half].eq(1).all() and found[1, half:].eq(1).all()
    assert found[0, half:].isnan().all() and found[1, :half].isnan().all()


FILLED = ["scan of columns", "scan of columns, short", "rows, then a product"]


@pytest.mark.parametrize("name", FILLED)
def test_scratch_is_filled(name: str) -> None:
    function, inputs = CORPUS[name][0], _inputs(name)
    text = module_text(function, *inputs, debug_poison_memory=True)
    assert "@llvm.memset.p0.i64" in text
    assert "@llvm.memset" not in module_text(function, *inputs, debug_poison_memory=False)
    plain, filled = (compiled(function, debug_poison_memory=p)(*inputs) for p in (False, True))
    assert torch.equal(plain, filled)
