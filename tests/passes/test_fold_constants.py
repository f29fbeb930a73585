"""What depends on constants is computed at compile time, and exact identities go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.config import Config
from litz.ir.graph import Graph
from litz.passes import optimize
from litz.passes.fold_constants import LARGEST
from litz.target import host

Get = Callable[..., Graph]
Text = Callable[[Graph], str]
X = torch.tensor([[0.0, -0.0, 1.0, -1.0], [float("inf"), float("nan"), 1e-40, 3.0]])


@pytest.mark.parametrize(
    "function, expected",
    [
        (
            lambda x: x + torch.ones(2, 4) * 3,
            "full_default = full([2, 4], 3.0)\nadd = add(x0, full_default)",
        ),
        (
            lambda x: x * torch.full((4, 2), 2.0).neg().t(),
            "full_default = full([4, 2], -2.0)\n"
            "permute = permute(full_default, [1, 0])\nmul = mul(x0, permute)",
        ),
        (
            lambda x: x + torch.tensor(2.0).sqrt(),
            "full_default_1 = full([], 1.4142135381698608)\nadd = add(x0, full_default_1)",
        ),
        (
            lambda x: x + torch.zeros(2, 1).expand(2, 4).cos(),
            "full_default = full([2, 4], 1.0)\nadd = add(x0, full_default)",
        ),
    ],
)
def test_uniform_tensors(optimized: Get, text: Text, function: Any, expected: str) -> None:
    assert text(optimized(function, X)).split("\nreturn")[0] == expected


def _recompiled(graph: Graph) -> torch.fx.GraphModule:
    """The module with Python code for its graph: the compiler itself only reads the graph."""
    graph.module.recompile()
    return graph.module


def test_large_uniform_tensors_cost_nothing(optimized: Get) -> None:
    size = (2 * LARGEST, 4)
    graph = optimized(lambda x: x + torch.ones(size).mul(3).exp(), torch.randn(size))
    assert [n.op for n in graph.nodes] == [
        "placeholder",
        "call_function",
        "call_function",
        "output",
    ]
    assert not graph.attributes


def test_costly_tensors_become_attributes(optimized: Get, text: Text) -> None:
    graph = optimized(lambda x: x * torch.arange(4).float().cos().view(1, 4), X)
    expected = (
        "_folded0 = self._folded0\nview = view(_folded0, [1, 4])\nmul = mul(x0, view)\nreturn mul"
    )
    assert text(graph) == expected
    assert torch.equal(graph.attributes["_folded0"], torch.arange(4).float().cos())
    assert graph.module._folded0 is graph.attributes["_folded0"]


def test_reductions_of_constants_become_numbers(optimized: Get, text: Text) -> None:
    graph = optimized(lambda x: x + torch.arange(12).sum(), X)
    assert "full([], 66)" in text(graph)


def test_index_arithmetic_is_left_to_the_loops(optimized: Get, text: Text) -> None:
    graph = optimized(lambda x: x.masked_fill(torch.arange(4) * 2 > 3, 0.0), X)
    assert "arange" in text(graph) and not graph.attributes


def test_attributes_fold(optimized: Get) -> None:
    graph = optimized(lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]).mul(2), X)
    read = [graph.attributes[str(n.target)] for n in graph.nodes if n.op == "get_attr"]
    assert [t.tolist() for t in read] == [[2.0, 4.0, 6.0, 8.0]]


def test_what_is_too_large_is_computed_in_the_call(optimized: Get) -> None:
    graph = optimized(lambda x: x + torch.arange(LARGEST + 1).float().cos(), torch.ones(1))
    assert any("cos" in str(n.target) for n in graph.nodes)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(4).float().cos(),
        lambda x: (torch.arange(4).float().cos().view(2, 2), x * torch.arange(4).float().cos()),
        lambda x: torch.tensor([1.0, 2.0]),
        lambda x: torch.tensor([1.0, 2.0]) * 2,
    ],
)
def test_a_constant_that_is_returned_is_new_in_each_call(capture: Get, function: Any) -> None:
    graph = capture(function, X)
    optimize(graph, host(), Config())
    first = _recompiled(graph)(X)[0]
    expected = first.clone()
    first.zero_()
    assert torch.equal(_recompiled(graph)(X)[0], expected)


def test_two_views_of_a_constant_stay_one_memory(optimized: Get) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.ones(2, 4) * 2
        return y, y.view(8)

    optimized(function, X)


def test_random_numbers_are_no_constants(optimized: Get, text: Text) -> None:
    graph = optimized(lambda x: x + torch.rand(4) + torch.bernoulli(torch.full((4,), 0.5)), X)
    assert "rand(" in text(graph) and "bernoulli(" in text(graph)


def test_what_fails_fails_in_the_call(capture: Get) -> None:
    graph = capture(lambda x: x + torch.arange(4) // torch.arange(1, 5), X)
    for node in graph.nodes:
        if node.target is torch.ops.aten.arange.start_step and node.args[:2] == (1, 5):
            node.args = (0, 4)
    optimize(graph, host(), Config())
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        _recompiled(graph)(X)


def test_the_flag_turns_it_off(capture: Get) -> None:
    graph = capture(lambda x: x + torch.ones(2, 4) * 3, X)
    optimize(graph, host(), Config(joint_graph_constant_folding=False))
    assert any(n.target is torch.ops.aten.mul.Tensor for n in graph.nodes)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 1).neg(),
        lambda x: (1 * x).neg(),
        lambda x: (x / 1).neg(),
        lambda x: (x - 0).neg(),
        lambda x: (x + -0.0).neg(),
        lambda x: (x * torch.ones(2, 4)).neg(),
        lambda x: (x * torch.ones(())).neg(),
        lambda x: (x**1).neg(),
    ],
)
def test_identities_that_are_exact_go(optimized: Get, text: Text, function: Any) -> None:
    assert text(optimized(function, X)) == "neg = neg(x0)\nreturn neg"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 0).neg(),
        lambda x: (x + torch.zeros(())).neg(),
        lambda x: (x - -0.0).neg(),
        lambda x: (x * 0).neg(),
        lambda x: (0 - x).neg(),
        lambda x: x * 1,
        lambda x: (x * torch.ones(3, 1, 1)).neg(),
        lambda x: (x * torch.ones(2, 4, dtype=torch.float64)).neg(),
        lambda x: torch.sub(x, 0, alpha=-1).neg(),
    ],
)
def test_identities_that_are_not_stay(optimized: Get, function: Any) -> None:
    assert optimized(function, X).module.meta["passes"]["remove_identities"] == 0


def test_integers_have_one_zero(optimized: Get, text: Text) -> None:
    graph = optimized(lambda n: (n + 0).neg(), torch.arange(4))
    assert text(graph) == "neg = neg(x0)\nreturn neg"


def test_an_identity_on_a_written_input_is_a_copy(optimized: Get) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        before = x * 1
        x.add_(1)
        return before.neg()

    assert optimized(function, X).module.meta["passes"]["remove_identities"] == 0


def test_zeros_of_forward_derivatives_get_memory() -> None:
    """torch's zeros without memory are folded too; what keeps them copies them, which takes one."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))

    def pushed(x: torch.Tensor) -> Any:
        return torch.func.jvp(net, (x,), (x.flip(0),))

    x = torch.randn(12, 8)
    torch._dynamo.reset()
    run = torch.compile(pushed, backend="litz", options={"on_error": "raise"})
    weights = list(net.parameters())
    found = torch.autograd.grad(sum(t.sum() for t in run(x)), weights)
    expected = torch.autograd.grad(sum(t.sum() for t in pushed(x)), weights)
    torch.testing.assert_close(found, expected)
