"""Views and copies that change nothing go; those that the caller could miss stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.ir.graph import Graph

Get = Callable[..., Graph]
X = torch.randn(3, 4)


@pytest.mark.parametrize(
    "function, expected",
    [
        (
            lambda x: x.view(12).view(2, 6).view(4, 3).exp(),
            "view_2 = view(x0, [4, 3])\nexp = exp(view_2)",
        ),
        (lambda x: x.view(12).view(3, 4).exp(), "exp = exp(x0)"),
        (lambda x: x.t().t().exp(), "exp = exp(x0)"),
        (
            lambda x: x[None].permute(1, 2, 0).permute(1, 2, 0).exp(),
            "unsqueeze = unsqueeze(x0, 0)\n"
            "permute_1 = permute(unsqueeze, [2, 0, 1])\nexp = exp(permute_1)",
        ),
        (lambda x: x.expand(3, 4)[:].detach().clone().exp(), "exp = exp(x0)"),
        (lambda x: x.double().float().exp(), "exp = exp(x0)"),
    ],
)
def test_chains(optimized: Get, text: Callable[[Graph], str], function: Any, expected: str) -> None:
    assert text(optimized(function, X)).split("\nreturn")[0] == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone(),
        lambda x: x.exp().clone(),
        lambda x: x.clone().view(12),
        lambda x: (x.exp(), x.exp().clone()),
        lambda x: x.t().contiguous().exp(),
        lambda x: x.bfloat16().float().exp(),
        lambda x: x.t().clone(memory_format=torch.contiguous_format).sum(0),
    ],
)
def test_copies_that_count_stay(optimized: Get, function: Any) -> None:
    copies = [n for n in optimized(function, X).nodes if _copies(n)]
    assert copies


def _copies(node: torch.fx.Node) -> bool:
    return any(word in str(node.target) for word in ("clone", "_to_copy"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.view(12).view(3, 4),
        lambda x: (x.view(3, 4), x.view(3, 4)),
        lambda x: (x.exp().view(3, 4), x.exp()),
        lambda x: x.t().t(),
    ],
)
def test_no_input_is_returned_and_no_result_twice(optimized: Get, function: Any) -> None:
    (output,) = optimized(function, X).nodes[-1].args
    assert all(n.op == "call_function" for n in output)
    assert len(set(output)) == len(output)


def test_two_views_of_one_result_do_not_become_it_both(optimized: Get) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        return y.view(3, 4), y.view(3, 4)

    (output,) = optimized(function, X).nodes[-1].args
    assert len(set(output)) == 2


def test_a_copy_of_an_input_that_is_written_to_stays(optimized: Get) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        before = x.clone()
        x.add_(1)
        return before * x

    graph = optimized(function, X)
    assert any(_copies(n) for n in graph.nodes)
    assert graph.nodes[-2].target is torch.ops.aten.copy_.default


def test_integers_that_would_wrap_keep_their_detour(optimized: Get) -> None:
    numbers = torch.tensor([1, 127, 100])
    kept = optimized(lambda n: n.int().double().short() + 1, numbers)
    assert sum(_copies(n) for n in kept.nodes) == 3
    shortened = optimized(lambda n: n.short().double().int() + 1, numbers)
    assert sum(_copies(n) for n in shortened.nodes) == 2


def test_symbolic_sizes(optimized: Get) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1).view(x.shape[0], x.shape[1]).expand(x.shape).exp()

    graph = optimized(function, X, dynamic=True)
    assert not any("view" in str(n.target) or "expand" in str(n.target) for n in graph.nodes)
