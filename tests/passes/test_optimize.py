"""The whole stage: models keep their results, hooks run, the trace tells, time is linear."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.config import Config
from litz.errors import CustomPassFailed, PassFailed
from litz.ir.graph import Graph
from litz.passes import PASSES, Pass, optimize
from litz.target import host
from litz.trace import Trace

Get = Callable[..., Graph]
X = torch.randn(4, 8)
aten = torch.ops.aten


def _recompiled(graph: Graph) -> torch.fx.GraphModule:
    """The module with Python code for its graph: the compiler itself only reads the graph."""
    graph.module.recompile()
    return graph.module


def attention(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q, k, v = (x @ w).view(4, 3, 8).unbind(1)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    scores = (q @ k.t()) / 8**0.5 * 1.0
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


def norms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    a = F.layer_norm(x, (8,)) + F.layer_norm(x, (8,))
    return F.gelu(a.half().float()) * F.silu(x @ w[:, :8]).to(x.dtype).contiguous()


def running_mean(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    w.mul_(0.9).add_(x.mean() * 0.1)
    return F.dropout(x, 0.5) + w[:4, :8], w.view(-1), w.t()


@pytest.mark.parametrize("function", [attention, norms, running_mean])
def test_models_keep_results_and_sharing(optimized: Get, function: Any) -> None:
    graph = optimized(function, X, torch.randn(8, 24))
    graph.module.graph.lint()


@pytest.mark.parametrize("function", [attention, norms, running_mean])
def test_a_second_run_changes_nothing(optimized: Get, function: Any) -> None:
    graph = optimized(function, X, torch.randn(8, 24))
    optimize(graph, host(), Config())
    assert set(graph.module.meta["passes"].values()) == {0}


def test_new_nodes_keep_value_and_line(capture: Get) -> None:
    graph = capture(lambda x: x + torch.ones(4, 8) * 3, X)
    for node in graph.nodes:
        node.meta["stack_trace"] = 'File "model.py", line 3, in forward'
    optimize(graph, host(), Config())
    (full,) = (n for n in graph.nodes if n.target is aten.full.default)
    assert full.meta["val"].shape == (4, 8) and "model.py" in full.meta["stack_trace"]


def test_every_pass_says_what_it_does() -> None:
    for each in PASSES:
        assert each.sentence.endswith("."), each.name
        assert "->" in (each.run.__doc__ or ""), each.name
        assert each.run.__module__ == f"litz.passes.{each.name}"


def test_hooks_run_first_and_last_and_may_add_nodes(capture: Get) -> None:
    seen: list[int] = []

    def double(graph: torch.fx.Graph) -> None:
        seen.append(len(graph.nodes))
        (sin,) = (n for n in graph.nodes if n.target is aten.sin.default)
        with graph.inserting_after(sin):
            twice = graph.call_function(aten.mul.Tensor, (sin, 2))
        sin.replace_all_uses_with(twice, delete_user_cb=lambda user: user is not twice)

    graph = capture(lambda x: (x * 1).sin(), X)
    config = Config(post_grad_custom_pre_pass=double, post_grad_custom_post_pass=double)
    optimize(graph, host(), config)
    assert seen == [4, 4]  # the second sees the identity gone and the first's node there
    torch.testing.assert_close(_recompiled(graph)(X)[0], X.sin() * 4)
    assert all("val" in n.meta for n in graph.nodes if n.op == "call_function")


def test_what_a_hook_changes_is_noted_anew(capture: Get) -> None:
    """Shapes that follow from it, too."""

    def shorten(graph: torch.fx.Graph) -> None:
        (sin,) = (n for n in graph.nodes if n.target is aten.sin.default)
        with graph.inserting_before(sin):
            rows = graph.call_function(aten.slice.Tensor, (sin.args[0], 0, 0, 2))
        sin.update_arg(0, rows)

    graph = capture(lambda x: x.sin().exp().sum(1), X)
    optimize(graph, host(), Config(post_grad_custom_pre_pass=shorten))
    shapes = [n.meta["val"].shape for n in graph.nodes if n.op == "call_function"]
    assert shapes == [(2, X.shape[1])] * 3 + [(2,)]
    torch.testing.assert_close(_recompiled(graph)(X)[0], X[:2].sin().exp().sum(1))


def test_a_failing_hook_is_named(capture: Get) -> None:
    def broken(graph: torch.fx.Graph) -> None:
        raise ValueError("no such node")

    config = Config(post_grad_custom_post_pass=broken)
    with pytest.raises(CustomPassFailed, match=r"post_grad_custom_post_pass: .*broken.*") as info:
        optimize(capture(torch.sin, X), host(), config)
    assert isinstance(info.value.__cause__, ValueError)


def test_a_hook_that_breaks_the_graph_is_named(capture: Get) -> None:
    def misplace(graph: torch.fx.Graph) -> None:
        first, sin, *_ = graph.nodes
        first.prepend(sin)

    with pytest.raises(CustomPassFailed, match="misplace"):
        optimize(capture(torch.sin, X), host(), Config(post_grad_custom_pre_pass=misplace))


def test_a_failing_pass_of_ours_is_named(capture: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Graph) -> int:
        raise KeyError("val")

    monkeypatch.setattr("litz.passes.PASSES", [Pass(fail)])
    with pytest.raises(PassFailed, match="'fail'"):
        optimize(capture(torch.sin, X), host(), Config())


def test_the_trace_times_and_shows_each_pass(capture: Get) -> None:
    stream = io.StringIO()
    trace = Trace(5, stream=stream)
    graph = capture(lambda x: (x * 1).sin(), X)
    result = trace(optimize, graph, host(), Config(), trace)
    assert result is graph
    assert "passes.remove_identities" in trace.timings
    assert "remove_identities: 1 changes" in stream.getvalue()
    assert "merge_common" not in stream.getvalue().replace("passes.merge_common", "")


def _chain(length: int) -> Graph:
    """A graph of views, copies, identities, constants and twins."""
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    value.meta["val"] = like = torch.empty(4, 8, device="meta")
    for step in range(length):
        target, args = [
            (aten.view.default, (value, [4, 8])),
            (aten.mul.Tensor, (value, 1)),
            (aten.add.Tensor, (value, value)),
            (aten.clone.default, (value,)),
            (aten.sin.default, (value,)),
        ][step % 5]
        value = graph.call_function(target, args)
        value.meta["val"] = like
    graph.output((value,))
    return Graph(torch.fx.GraphModule(torch.nn.Module(), graph))


@pytest.mark.alone
def test_time_is_linear() -> None:
    def seconds(length: int) -> float:
        best = float("inf")
        for _ in range(3):
            graph = _chain(length)
            start = time.perf_counter()
            optimize(graph, host(), Config())
            best = min(best, time.perf_counter() - start)
        assert len(graph.nodes) == length * 2 // 5 + 2
        return best

    small, large = seconds(500), seconds(4000)
    assert large < 8 * small * 2.5, f"{small * 1e3:.0f} ms for 500, {large * 1e3:.0f} for 4000"
