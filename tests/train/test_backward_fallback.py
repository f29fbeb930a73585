"""A backward that cannot be compiled runs as eager, wherever it fails, and is reported once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import litz
from litz import backend
from litz.errors import CompileFailed, InternalError
from litz.ir.graph import Graph
from litz.passes import Pass
from tests import draws
from tests.toolchain import replace_stage, stage_of

STAGES = ("capture", "optimize", "lower", "fuse", "plan", "schedule", "emit", "plan_call",
          "drive", "build", "load", "link")  # fmt: skip


def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w).softmax(-1).sin().sum()


def gradients(call: Any) -> list[torch.Tensor]:
    draws.seed(0)
    given = [torch.randn(8, 16, requires_grad=True), torch.randn(16, 4, requires_grad=True)]
    return list(torch.autograd.grad(call(*given), given))


def inject(monkeypatch: pytest.MonkeyPatch, stage: str) -> list[str]:
    """Let a stage fail on the backward graph alone; gives the kinds of graphs that it saw."""
    seen: list[str] = []
    sound = stage_of(stage)
    compile_graph = backend.compile_graph

    def watched(module: Any, kind: str, *given: Any) -> Any:
        seen.append(kind)
        return compile_graph(module, kind, *given)

    def failing(*args: Any, **kwargs: Any) -> Any:
        if seen[-1] == "backward":
            raise ValueError(f"planted in {stage}")
        return sound(*args, **kwargs)

    failing.stage_name = stage  # type: ignore[attr-defined]
    monkeypatch.setattr(backend, "compile_graph", watched)
    replace_stage(monkeypatch, stage, failing)
    return seen


@pytest.mark.parametrize("stage", STAGES)
def test_a_failure_in_any_stage_leaves_the_backward_to_eager(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients(function)
    litz.reset()
    seen = inject(monkeypatch, stage)
    compiled = torch.compile(function, backend="litz")
    with pytest.warns(UserWarning, match=rf"backward graph as eager.*{stage}") as told:
        torch.testing.assert_close(gradients(compiled), expected)
        torch.testing.assert_close(gradients(compiled), expected)
    assert seen == ["forward", "backward"]
    assert len([w for w in told if "as eager" in str(w.message)]) == 1


def test_on_error_raise_raises_in_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    litz.reset()
    inject(monkeypatch, "lower")
    compiled = torch.compile(function, backend="litz", options={"on_error": "raise"})
    with pytest.raises(InternalError, match="planted in lower"):
        gradients(compiled)


def broken(*_: Any, **__: Any) -> Any:
    raise ValueError("planted in the partitioner")


def fail_pass(graph: Graph) -> int:
    raise ValueError("planted in a joint pass")


@pytest.mark.parametrize("where", ["partition", "JOINT_PASSES"])
def test_a_graph_that_cannot_be_split_runs_as_eager_forward_included(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients(function)
    litz.reset()
    if where == "partition":
        monkeypatch.setattr("litz.passes.cut_joint_graph", broken)
    else:
        monkeypatch.setattr("litz.passes.JOINT_PASSES", [Pass(fail_pass)])
    compiled = torch.compile(function, backend="litz")
    with pytest.warns(UserWarning, match="joint graph as eager.*planted"):
        torch.testing.assert_close(gradients(compiled), expected)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = torch.compile(function, backend="litz")
        torch.testing.assert_close(gradients(again), expected)


def test_on_error_raise_raises_what_the_partitioner_said() -> None:
    litz.reset()
    options = {"on_error": "raise", "custom_partitioner_fn": broken}
    compiled = torch.compile(function, backend="litz", options=options)
    with pytest.raises(Exception, match=r"custom_partitioner_fn: broken.*planted") as caught:
        gradients(compiled)
    assert isinstance(caught.value.__cause__ or caught.value, Exception)
    assert CompileFailed.__name__ in f"{type(caught.value).__name__}{caught.value}"
