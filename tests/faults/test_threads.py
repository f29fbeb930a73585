"""Many threads at once: first compiles, calls, backwards, more sizes, tuning, explanations, resets.

One thread compiles at a time (`COMPILE_LOCK`); what is checked here is that no way into the stages
goes around that, that nothing outside of them makes nodes of the IR, and that a hundred threads,
each at something else, all get what eager gives.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
from litz import backend, compiler
from litz.capture import COMPILE_LOCK
from litz.ir import expr
from litz.report import discarding_explanation
from tests import draws
from tests.faults.processes import ROOT, THREADS_CRASH_TORCH
from tests.stages import through_aot


def together(*works: Callable[[], Any]) -> list[Any]:
    """Each in a thread of its own, all at once: what they gave, in order; raises if one did."""
    results: list[Any] = [None] * len(works)
    raised: list[BaseException] = []
    gate = threading.Barrier(len(works))

    def run(k: int) -> None:
        # While one thread traces, torch takes the call of another for a part of what is traced.
        torch._dynamo.config.error_on_nested_fx_trace = False
        try:
            gate.wait()
            results[k] = works[k]()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    return results


FIRST = """
import threading
import torch
from tests import draws

COUNT = 100
draws.begin()
x = torch.randn(16, 33)
gate = threading.Barrier(COUNT)
wrong = []

def work(k):
    def function(x):
        return (x * (k % 4)).softmax(-1) + k % 4
    gate.wait()
    try:
        fast = torch.compile(function, backend="litz", options={"on_error": "raise"})
        torch.testing.assert_close(fast(x), function(x))
    except BaseException as error:
        wrong.append(f"{type(error).__name__}: {error}")

threads = [threading.Thread(target=work, args=(k,)) for k in range(COUNT)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(wrong), sorted(set(wrong)))
"""


@pytest.mark.skipif(
    THREADS_CRASH_TORCH, reason="torch 2.11 for CUDA crashes there itself, without a GPU"
)
def test_a_hundred_threads_compile_first(tmp_path: Path) -> None:
    """The backend is found by its entry point, as pyproject.toml has it."""
    described = tmp_path / "litz-0.1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: litz\nVersion: 0.1.0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["torch_dynamo_backends"]
    lines = ["[torch_dynamo_backends]", *(f"{name} = {where}" for name, where in points.items())]
    (described / "entry_points.txt").write_text("\n".join(lines))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.stdout.strip() == "0 []", done.stdout + done.stderr[-2000:]


def test_an_older_entry_point_works_beside_ours() -> None:
    """An installation that names the function itself, and a program that uses both ways."""
    script = (
        "import torch\n"
        "from torch._dynamo.backends import registry\n"
        "from litz.backend import litz as function\n"
        "registry.register_backend(function, name='litz')\n"
        "import litz\n"
        "print(litz.compile(lambda x: x + 1)(torch.ones(3)).tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]", done.stderr[-2000:]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The most threads that were ever inside the stages at once, counted in a slow one."""
    inside, most = [0], [0]
    optimize = compiler.optimize

    def slow(*args: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        try:
            return optimize(*args)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(compiler, "optimize", slow)
    return most


def test_graphs_compile_one_at_a_time(alone: list[int]) -> None:
    modules: list[torch.fx.GraphModule] = []
    x = torch.randn(8, 16)
    through_aot(lambda x: x.exp() + 1, lambda module: modules.append(module) or module.forward)(x)
    given = (modules[0], "inference", litz.config.snapshot())
    graphs = together(*[lambda: compiler.compile_graph(*given)[0]] * 6)
    assert all(torch.equal(graph([x])[0], graphs[0]([x])[0]) for graph in graphs)
    assert alone == [1]


def test_backwards_compile_one_at_a_time(alone: list[int]) -> None:
    """Autograd compiles a backward graph when it is first needed, outside of Dynamo's lock."""
    torch._dynamo.reset()
    leaves = [torch.randn(8, 16, requires_grad=True) for _ in range(4)]
    totals = []
    for k, leaf in enumerate(leaves):
        totals.append(torch.compile(lambda x, k=k: x.tanh().sum() * k, backend="litz")(leaf))
    together(*(total.backward for total in totals))
    for k, leaf in enumerate(leaves):
        torch.testing.assert_close(leaf.grad, k * (1 - leaf.detach().tanh() ** 2))
    assert alone == [1]


def _by_size() -> tuple[backend.SizeSpecialized, Callable[[int], list[Any]]]:
    """A graph of `x * 2` that is compiled for each size."""
    modules: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any, kind: str) -> Any:
        modules.append(module)
        return backend._eager(module)

    def captured(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return backend.through_aot_autograd(module, inputs, keep)

    torch._dynamo.reset()
    x = torch.randn(5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    torch.compile(lambda x: x * 2, backend=captured)(x)
    variants = backend.SizeSpecialized(
        modules[0], "inference", litz.config.snapshot(), discarding_explanation()
    )
    return variants, lambda n: [n, torch.full((n, 8), float(n))]


def test_one_more_size_is_compiled_once(alone: list[int]) -> None:
    variants, args = _by_size()
    found = together(*(lambda n=n: variants(args(n))[0] for n in [3, 3, 3, 7, 7, 7]))
    assert [float(t[0, 0]) for t in found] == [6.0, 6.0, 6.0, 14.0, 14.0, 14.0]
    assert variants.allowance.made == 2 and alone == [1]


def test_nodes_are_made_inside_the_lock_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call, its first one too, and reports only read what the stages made."""
    made_outside: list[str] = []
    node = expr._node

    def checked(op: str, *args: Any) -> Any:
        if not COMPILE_LOCK._is_owned():
            made_outside.append(op)
        return node(op, *args)

    monkeypatch.setattr(expr, "_node", checked)
    torch._dynamo.reset()
    layer = torch.nn.Linear(32, 48)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x.relu()).sort(-1)[0], F.dropout(x, 0.5)], 1)

    for dynamic in (None, True):
        fast = torch.compile(function, backend="litz", dynamic=dynamic)
        for rows in (7, 9):
            fast(torch.randn(rows, 32)).sum().backward()
    options = {"max_autotune": True, "max_autotune_budget_seconds": 0.2, "debug": 0}
    torch.compile(function, backend="litz", options=options)(torch.randn(3, 32))
    str(litz.explain(function, torch.randn(4, 32)))
    assert not made_outside


def test_a_hundred_threads_each_at_something_else(tmp_path: Path) -> None:
    """Ten kinds of work, ten times each. (No reset: torch frees what a thread that compiles is
    about to write to.)"""
    torch._dynamo.reset()
    draws.seed(0)
    layer = torch.nn.Linear(24, 24)
    x = torch.randn(12, 24)
    tuned = {"max_autotune": True, "max_autotune_budget_seconds": 0.2, "cache_dir": str(tmp_path)}

    def check(function: Callable[..., Any], *inputs: Any, **given: Any) -> None:
        fast = torch.compile(function, backend="litz", **given)
        for _ in range(3):
            torch.testing.assert_close(fast(*inputs), function(*inputs))

    def trains() -> None:
        leaf = x.clone().requires_grad_()
        fast = torch.compile(lambda x: (layer(x).tanh() ** 2).sum(), backend="litz")
        (found,) = torch.autograd.grad(fast(leaf), leaf)
        (expected,) = torch.autograd.grad((layer(leaf).tanh() ** 2).sum(), leaf)
        torch.testing.assert_close(found, expected)

    def grows() -> None:
        fast = torch.compile(lambda x: x.softmax(0).sum(1), backend="litz")
        for n in (3, 5, 8):
            torch.testing.assert_close(fast(x[:n]), x[:n].softmax(0).sum(1))

    @torch.no_grad()
    def infers() -> None:
        check(lambda x: layer(x).relu() + 1, x)

    kinds: list[Callable[[], Any]] = [
        lambda: check(lambda x: x.exp().cumsum(0), x),
        lambda: check(lambda x: (x * 2).sort(-1)[0] + 1, x),
        lambda: check(lambda x: x.sum(0) * 2, x, dynamic=True),
        lambda: check(lambda x: x.sin() + x.cos(), x, options=tuned),
        lambda: check(lambda x, y: (x @ y).relu(), x, torch.eye(24)),
        lambda: str(litz.explain(lambda x: x.log_softmax(0), x)),
        trains,
        grows,
        infers,
        lambda: check(lambda x: x.t().contiguous() * 2, x),
    ]
    together(*kinds * 10)
    litz.reset()
    together(*kinds)
