"""Equal computations are made once; tensors that the caller can tell apart stay apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.ir.graph import Graph
from litz.passes.merge_common_subexpressions import key_of, merge_common_subexpressions

Get = Callable[..., Graph]
X = torch.randn(3, 4)


def test_equal_chains_merge(optimized: Get, text: Callable[[Graph], str]) -> None:
    graph = optimized(lambda x: (x + 1).exp() * (x + 1).exp(), X)
    assert text(graph) == "add = add(x0, 1)\nexp = exp(add)\nmul = mul(exp, exp)\nreturn mul"
    assert graph.module.meta["passes"]["merge_common_subexpressions"] == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1, x + 1),
        lambda x: ((x + 1).view(12), (x + 1).t()),
        lambda x: (x.view(12), x.view(12)),
        lambda x: (x.exp().view(2, 6)[0], x.exp().view(2, 6)[1]),
    ],
)
def test_results_that_eager_returns_apart_stay_apart(optimized: Get, function: Any) -> None:
    assert optimized(function, X).module.meta["passes"]["merge_common_subexpressions"] == 0


def test_one_result_may_serve_an_inner_use(optimized: Get) -> None:
    graph = optimized(lambda x: (x.exp(), x.exp().sum()), X)
    assert graph.module.meta["passes"]["merge_common_subexpressions"] == 1


def test_a_merge_counts_for_the_next(optimized: Get) -> None:
    # The first exp serves the second, which is returned; the third is returned too, and stays.
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inner = x.exp().sum()
        return inner, x.exp(), x.exp()

    assert optimized(function, X).module.meta["passes"]["merge_common_subexpressions"] == 1


def test_random_numbers_are_drawn_each_time(optimized: Get) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) - torch.rand_like(x)

    assert optimized(function, X).module.meta["passes"]["merge_common_subexpressions"] == 0


@pytest.mark.parametrize(
    "op", [torch.exp, torch.clone, lambda x: x @ x, lambda x: x.sum(1, keepdim=True)]
)
def test_a_result_is_not_what_the_backward_reads(op: Any) -> None:
    """Whoever gets it may write to it."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return op(x), op(x) * w

    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    first, second = torch.compile(function, backend="litz", options={"on_error": "raise"})(x, w)
    first.zero_()
    second.sum().backward()
    torch.testing.assert_close(w.grad, op(x).expand(4, 4))


def test_a_write_separates(capture: Get) -> None:
    graph = capture(lambda x: x.exp() + x.exp(), X)
    first, second = (n for n in graph.nodes if n.target is torch.ops.aten.exp.default)
    with graph.module.graph.inserting_before(second):
        graph.module.graph.call_function(torch.ops.aten.zero_.default, (graph.nodes[0],))
    assert merge_common_subexpressions(graph) == 0
    assert len({first, second} & set(graph.nodes)) == 2


def test_numbers_that_are_equal_but_not_the_same(optimized: Get) -> None:
    integers = torch.arange(4)
    for function in (lambda n: (n + 1) * (n + 1.0), lambda n: (n * True) + (n * 1)):
        assert (
            optimized(function, integers).module.meta["passes"]["merge_common_subexpressions"] == 0
        )
    zeros = optimized(lambda x: torch.copysign(x, 0.0) + torch.copysign(x, -0.0), X)
    assert zeros.module.meta["passes"]["merge_common_subexpressions"] == 0


def test_keys() -> None:
    values = [1, 1.0, True, 0.0, -0.0, 0, False, "1", None, [1], [1.0], torch.float32]
    keys = [key_of(v) for v in values]
    assert len(set(keys)) == len(keys)
    assert key_of([1, (2, None)]) == key_of([1, [2, None]])
    assert key_of(math.nan) == key_of(math.nan)
    assert key_of(object()) != key_of(object())
