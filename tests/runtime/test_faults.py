"""A call that fails leaves nothing behind: the next one is right, wherever the last one ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz.errors import IndexOutOfRange, InputMismatch
from litz.ir.program import Buffer
from litz.runtime import CompiledGraph, memory
from litz.target import CpuTarget, host
from litz.targets import TOOLCHAINS, toolchain_of
from tests import draws
from tests.runtime.faults import Injected, every_step, fail_everywhere
from tests.stages import linked

X = torch.randn(6, 6, generator=draws.generator(0))
GOOD, BAD = torch.tensor([5, 2, 0, 1, 4, 3]), torch.tensor([5, 2, 9, 1, 4, 3])


# What a call's text calls only when something is wrong.
UNCALLED = (
    "new_space",
    "mismatch",
    "restrided",
    "fail",
    "with_layout",
    "name_op",
    "call_without_modes",
    "call",
)


def _gathers(x: torch.Tensor, i: torch.Tensor) -> Any:
    """Kernels with indices around calls with and without a place for their result."""
    rows = (x[i] + 1).softmax(-1)
    ordered = rows.sort(0).values @ x
    return ordered.cumsum(0)[i], ordered


def _grows(x: torch.Tensor, i: torch.Tensor) -> Any:
    return (x[i].cumsum(0) @ x.t()).sort(0).values + 1


def test_every_line_may_fail() -> None:
    graph = linked(_gathers, X, GOOD)
    assert graph.plan.slots
    failures = fail_everywhere(graph, lambda: [X, GOOD], lambda: [X, BAD])
    assert failures >= 4 * 15
    (space,) = graph.free
    assert space.error.value == 0


def _fails(*_: Any, **__: Any) -> None:
    raise Injected


def test_what_a_kernel_noted_is_told_before_what_stands_behind_it_raises() -> None:
    graph = linked(_gathers, X, GOOD)
    wanted = [t.clone() for t in graph([X, GOOD])]
    for name in every_step(graph):
        scope, before = graph.call.__globals__, graph.call.__globals__[name]
        if not name.startswith("op_"):
            continue

        scope[name] = _fails
        try:
            with pytest.raises(IndexOutOfRange):
                graph([X, BAD])
            with pytest.raises(Injected):
                graph([X, GOOD])
        finally:
            scope[name] = before
        assert all(map(torch.equal, graph([X, GOOD]), wanted))


def test_every_step_may_run_and_then_fail() -> None:
    """An op that raises after its work, an allocation that is interrupted."""
    graph = linked(_gathers, X, GOOD)
    wanted = [t.clone() for t in graph([X, GOOD])]
    scope = graph.call.__globals__
    for name in list(every_step(graph)):
        if name in ("take", "give_back", "give_arena", "forget"):
            continue  # each line of the text around them fails elsewhere in this file
        before: Callable[..., Any] = scope[name]

        def runs_and_fails(*args: Any, _before: Callable[..., Any] = before, **given: Any) -> None:
            _before(*args, **given)
            raise KeyboardInterrupt

        scope[name] = runs_and_fails
        try:
            if name not in UNCALLED:
                with pytest.raises((KeyboardInterrupt, IndexOutOfRange)):
                    graph([X, BAD])  # which ends where the bad index is noted, or before
                with pytest.raises(KeyboardInterrupt):
                    graph([X, GOOD])
        finally:
            scope[name] = before
        assert all(map(torch.equal, graph([X, GOOD]), wanted)), name


@pytest.fixture
def symbolic(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompiledGraph]:
    """One graph for all sizes of `_grows`."""
    torch._dynamo.reset()
    memory.IDLE_ARENAS.clear()
    made: list[CompiledGraph] = []
    tools = toolchain_of(host())

    def kept(*given: Any) -> Any:
        made.append(tools.link(*given))
        return made[-1]

    kept.stage_name = "link"  # type: ignore[attr-defined]
    monkeypatch.setitem(TOOLCHAINS, CpuTarget, replace(tools, link=kept))
    fast = torch.compile(_grows, backend="litz", dynamic=True, options={"on_error": "raise"})
    for n in (6, 7):
        fast(*_inputs(n))
    (graph,) = made
    assert "def resize" in graph.text
    yield graph
    torch._dynamo.reset()


def _inputs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, n, generator=draws.generator(n))
    return x, torch.arange(n).flip(0)


def _arguments(graph: CompiledGraph, n: int) -> list[Any]:
    """Tensors in order; every size is n."""
    tensors = iter(_inputs(n))
    return [next(tensors) if isinstance(i.value, Buffer) else n for i in graph.plan.body.inputs]


def test_sizes_that_did_not_fit_are_fitted_again(
    symbolic: CompiledGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory for a larger size is refused: the next call has the sizes that the last good one had,
    and must not find the table as the refused ones wanted it."""
    wanted = symbolic(_arguments(symbolic, 6))[0].clone()

    def refuse(self: Any, size: int) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(memory.Workspace, "_fresh", refuse)
        with pytest.raises(MemoryError):
            symbolic(_arguments(symbolic, 40))
    assert torch.equal(symbolic(_arguments(symbolic, 6))[0], wanted)
    assert len(memory.IDLE_ARENAS) == 1 and len(symbolic.free) == 1
    large = symbolic(_arguments(symbolic, 40))[0]
    torch.testing.assert_close(large, _grows(*_inputs(40)), rtol=1e-4, atol=1e-4)


def test_every_line_may_fail_while_sizes_change(symbolic: CompiledGraph) -> None:
    """A call that fails has other sizes than the one before it, and than the one behind it."""
    for behind in (6, 40):

        def good(behind: int = behind) -> list[Any]:
            memory.IDLE_ARENAS.clear()  # so that memory has to be found, too
            return _arguments(symbolic, behind)

        other = 46 - behind
        symbolic(_arguments(symbolic, other))
        assert fail_everywhere(_Other(symbolic, other), good, None) >= 2 * 20


class _Other:
    """A graph that is called with other sizes before each call."""

    def __init__(self, graph: CompiledGraph, other: int) -> None:
        self.graph, self.other, self.free, self.call = graph, other, graph.free, graph.call

    def __call__(self, args: list[Any]) -> list[Any]:
        trace = sys.gettrace()
        sys.settrace(None)
        self.graph(_arguments(self.graph, self.other))
        sys.settrace(trace)
        return self.graph(args)


def test_an_input_of_another_layout() -> None:
    graph = linked(_gathers, X, GOOD)
    wanted = graph([X, GOOD])
    for wrong in ([X.t(), GOOD], [X.double(), GOOD], [X[:5], GOOD], [X, GOOD[:2]]):
        with pytest.raises(InputMismatch):
            graph(wrong)
        assert all(map(torch.equal, graph([X, GOOD]), wanted))
    assert len(graph.free) == 1
