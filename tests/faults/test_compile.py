"""A compile that fails, or is interrupted, at any place.

The graph runs as eager, or the error tells; the next compile is what it would have been.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
from litz import backend, compiler
from litz.capture import COMPILE_LOCK
from litz.errors import CompileFailed, StageFailed
from litz.passes import JOINT_PASSES, PASSES, Pass
from tests import draws
from tests.faults.processes import run
from tests.stages import through_aot
from tests.toolchain import replace_stage, stage_of

STAGES = ("capture", "optimize", "tune", "lower", "fuse", "plan", "schedule", "emit", "plan_call",
          "drive", "build", "load", "link")  # fmt: skip
ERRORS = (RuntimeError("a fault"), MemoryError(), RecursionError())


class Fault(Exception):
    """Raised where nothing ought to fail."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    litz.reset()


def model(x: torch.Tensor) -> torch.Tensor:
    """Pointwise ops, a reduction, an op of ATen's, a product."""
    return (F.gelu(x).softmax(-1).sort(-1)[0] @ x.t()).sum(0)


def check(**options: Any) -> None:
    """A compile from the beginning gives what eager does, with nothing left to eager."""
    litz.reset()
    x = torch.randn(6, 6)
    fast = torch.compile(model, backend="litz", options={"on_error": "raise", **options})
    torch.testing.assert_close(fast(x), model(x))


def failing(stage: str, error: BaseException) -> Callable[..., Any]:
    """A stage that raises as soon as it has done its work."""
    original = stage_of(stage)

    def fails(*args: Any, **given: Any) -> Any:
        original(*args, **given)
        raise error

    fails.stage_name = original.stage_name  # type: ignore[attr-defined]
    return fails


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_raises(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, 6)
    for error in ERRORS:
        litz.reset()
        with monkeypatch.context() as patched:
            replace_stage(patched, stage, failing(stage, error))
            with pytest.warns(UserWarning, match="runs the inference graph as eager"):
                found = torch.compile(model, backend="litz")(x)
        torch.testing.assert_close(found, model(x))
        assert not COMPILE_LOCK._is_owned()
    litz.reset()
    with monkeypatch.context() as patched:
        replace_stage(patched, stage, failing(stage, ERRORS[0]))
        with pytest.raises(Exception) as caught:
            torch.compile(model, backend="litz", options={"on_error": "raise"})(x)
    assert isinstance(root(caught.value), StageFailed)
    assert stage_of(stage).stage_name in str(caught.value)
    check()


def root(error: BaseException) -> BaseException:
    """What Dynamo tells of, if it has put something around it."""
    return getattr(error, "inner_exception", error)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_that_is_interrupted(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt is never answered by eager: it reaches the program, and the same function
    compiles when it is called again."""
    x = torch.randn(6, 6)
    fast = torch.compile(model, backend="litz", options={"on_error": "raise"})
    with monkeypatch.context() as patched:
        replace_stage(patched, stage, failing(stage, KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            fast(x)
    assert not COMPILE_LOCK._is_owned()
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("stage", STAGES)
def test_a_backward_that_cannot_be_compiled(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compiled behind the forward graph, or as the gradients are asked for."""
    x = torch.randn(6, 6, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).square().sum(), x)
    original, working = stage_of(stage), failing(stage, ERRORS[0])
    graphs: list[str] = []
    compile_graph = backend.compile_graph

    def chosen(module: Any, kind: str, *given: Any) -> Any:
        graphs.append(kind)
        patch = working if kind == "backward" else original
        replace_stage(monkeypatch, stage, patch)
        return compile_graph(module, kind, *given)

    monkeypatch.setattr(backend, "compile_graph", chosen)
    with pytest.warns(UserWarning, match="runs the backward graph as eager"):
        found = torch.compile(model, backend="litz")(x)
        (gradient,) = torch.autograd.grad(found.square().sum(), x)
    assert graphs == ["forward", "backward"]
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("where", PASSES + JOINT_PASSES, ids=lambda p: p.name)
def test_a_pass_that_raises(where: Pass, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its work: a graph that is changed half-way is not what eager runs."""

    def fails(*given: Any) -> int:
        where.run(*given)
        raise Fault("in a pass")

    fails.__name__ = where.name
    row = Pass(fails, where.flag, where.unless, where.takes_target)
    for name, passes in (("PASSES", PASSES), ("JOINT_PASSES", JOINT_PASSES)):
        changed = [row if each is where else each for each in passes]
        monkeypatch.setattr(f"litz.passes.{name}", changed)
    x = torch.randn(6, 6, requires_grad=any(where is each for each in JOINT_PASSES))
    with torch.set_grad_enabled(x.requires_grad):
        (expected, wanted), asked = gradients(model, x), {where.flag: True} if where.flag else {}
        with pytest.warns(UserWarning, match=f"as eager: .*{where.name}"):
            fast = torch.compile(model, backend="litz", options=asked)
            found, gradient = gradients(fast, x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, wanted)


def gradients(function: Callable[..., Any], x: torch.Tensor) -> tuple[Any, Any]:
    result = function(x)
    return result, torch.autograd.grad(result.sum(), x)[0] if x.requires_grad else None


# -- callbacks of the user's -------------------------------------------------------------------

HOOKS = ("joint_custom_pre_pass", "joint_custom_post_pass", "post_grad_custom_pre_pass",
         "post_grad_custom_post_pass", "custom_partitioner_fn")  # fmt: skip


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_hook_that_raises(hook: str, training: bool) -> None:
    """Once it has changed the graph: what eager runs is the graph before."""
    if hook == "custom_partitioner_fn" and not training:
        pytest.skip("nothing is partitioned for inference")
    raised: list[BaseException] = [Fault("of the user's"), KeyboardInterrupt(), SystemExit(3)]
    error: list[BaseException] = []

    def callback(graph: Any, *_: Any, **__: Any) -> None:
        inner = getattr(graph, "graph", graph)
        calls = [n for n in inner.nodes if n.op == "call_function"]
        if hook != "custom_partitioner_fn" and calls:
            calls[0].replace_all_uses_with(calls[0].args[0])
        raise error[0]

    x = torch.randn(6, 6, requires_grad=training)
    expected, wanted = gradients(model, x)
    for error[:] in [[e] for e in raised]:
        litz.reset()
        fast = torch.compile(model, backend="litz", options={hook: callback})
        if isinstance(error[0], Exception):
            with pytest.warns(UserWarning, match=f"as eager: .*{hook}"):
                found, gradient = gradients(fast, x)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(gradient, wanted)
        else:
            with pytest.raises(type(error[0])):
                gradients(fast, x)
        assert not COMPILE_LOCK._is_owned()
    litz.reset()
    error[:] = [Fault("of the user's")]
    with pytest.raises(Exception) as caught:
        options = {hook: callback, "on_error": "raise"}
        gradients(torch.compile(model, backend="litz", options=options), x)
    assert isinstance(root(caught.value), CompileFailed) and hook in str(caught.value)
    check()


# -- anywhere ----------------------------------------------------------------------------------


class Interrupts:
    """Raises at the n-th call of a function of ours, on this thread."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.at, self.error, self.calls = at, error, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and f"{os.sep}litz{os.sep}" in frame.f_code.co_filename:
            self.calls += 1
            if self.calls == self.at:
                raise self.error

    def __enter__(self) -> Interrupts:
        sys.setprofile(self)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.setprofile(None)


@pytest.fixture
def captured() -> Iterator[tuple[torch.fx.GraphModule, torch.Tensor]]:
    modules: list[torch.fx.GraphModule] = []
    x = torch.randn(6, 6)

    def keep(module: torch.fx.GraphModule) -> Any:
        modules.append(module)
        return module.forward

    with torch.no_grad():
        through_aot(model, keep)(x)
    yield modules[0], x


PLACES = 40


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_any_call_of_a_compile_may_fail(
    error: type[BaseException], captured: tuple[torch.fx.GraphModule, torch.Tensor]
) -> None:
    """Tables that stages share (nodes by their content, caches) are whole at every moment: the next
    compile writes the same code, letter for letter."""
    module, x = captured
    given = (module, "inference", litz.config.snapshot())
    compiler.compile_graph(*given)
    with Interrupts(-1, error) as counted:
        graph, report = compiler.compile_graph(*given)
    (wanted,) = graph([x])
    text, random = report.source.text, draws.python_generator(len(error.__name__))
    assert counted.calls > 100 * PLACES
    for place in sorted(random.sample(range(1, counted.calls), PLACES)):
        try:
            with Interrupts(place, error):
                compiler.compile_graph(*given)
        except (error, litz.errors.LitzError):
            pass
        assert not COMPILE_LOCK._is_owned() and sys.getprofile() is None
    graph, report = compiler.compile_graph(*given)
    assert report.source.text == text
    assert torch.equal(graph([x])[0], wanted)


CTRL_C = """
import signal, sys, time
import torch, litz
from tests import draws

draws.begin()
x = torch.randn(64, 64)

def make(k):
    def function(x):
        y = (x * k).softmax(-1).sort(-1)[0]
        return torch.cat([y @ x, x.cumsum(0)], 1).sum(0)
    return function

first = torch.compile(make(1), backend="litz", options={"on_error": "raise"})
torch.testing.assert_close(first(x), make(1)(x))
litz.reset()
start = time.perf_counter()
torch.compile(make(1), backend="litz")(x)
whole = time.perf_counter() - start
stopped = 0
for k in range(1, 7):
    litz.reset()
    function = make(k)
    fast = torch.compile(function, backend="litz", options={"on_error": "raise"})
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, whole * k / 7)
    try:
        fast(x)
        time.sleep(2 * whole)
    except KeyboardInterrupt:
        stopped += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    torch.testing.assert_close(fast(x), function(x))
# In calls: kernels of some milliseconds, packed weights, an op of ATen's.
layer = torch.nn.Linear(512, 512)
big = torch.randn(512, 512)
def function(x):
    return (layer(x).exp() + 1).sort(-1)[0].sum(0)
with torch.no_grad():
    fast = torch.compile(function, backend="litz", options={"on_error": "raise"})
    wanted = fast(big).clone()
    torch.testing.assert_close(wanted, function(big), rtol=1e-4, atol=1e-4)
    for k in range(30):
        if k % 5 == 0:
            layer.weight.data[0, 0] += 0.0  # packed anew
        signal.setitimer(signal.ITIMER_REAL, 2e-4 * (k + 1))
        try:
            while True:
                assert torch.equal(fast(big), wanted)
        except KeyboardInterrupt:
            pass
        assert torch.equal(fast(big), wanted)
print("interrupted", stopped)
"""


def test_ctrl_c_while_it_compiles_and_calls() -> None:
    """A signal, as the terminal sends it, at six moments of compiles and thirty of calls."""
    printed = run(CTRL_C)
    assert int(printed.split()[-1]) >= 5
