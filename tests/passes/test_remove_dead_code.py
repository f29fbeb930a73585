"""Dead ops go; effects stay."""

from __future__ import annotations

from collections.abc import Callable

import torch

from litz.config import Config
from litz.ir.graph import Graph
from litz.passes import optimize
from litz.passes.remove_dead_code import remove_dead_code
from litz.target import host

Get = Callable[..., Graph]
X = torch.randn(3, 4)
aten = torch.ops.aten


def _with_dead(graph: Graph, *targets: object) -> Graph:
    """Calls of the targets on the first input, whose results nothing uses."""
    first = graph.nodes[0]
    with graph.module.graph.inserting_after(first):
        for target in targets:
            new = graph.module.graph.call_function(target, (first,))
            new.meta["val"] = first.meta["val"]
    return graph


def test_a_dead_chain_goes_in_one_walk(capture: Get, text: Callable[[Graph], str]) -> None:
    graph = capture(lambda x: x.sin(), X)
    first = graph.nodes[0]
    with graph.module.graph.inserting_after(first):
        a = graph.module.graph.call_function(aten.exp.default, (first,))
    with graph.module.graph.inserting_after(a):
        graph.module.graph.call_function(aten.log.default, (a,))
    assert remove_dead_code(graph) == 2
    assert text(graph) == "sin = sin(x0)\nreturn sin"


def test_effects_stay(capture: Get) -> None:
    effects = {aten.bernoulli.default, aten.zero_.default, aten._assert_async.msg}
    graph = _with_dead(capture(lambda x: x.sin(), X), *effects, aten.exp.default)
    assert remove_dead_code(graph) == 1
    assert {n.target for n in graph.nodes} >= effects


def test_random_numbers_that_nobody_uses_are_still_drawn(optimized: Get) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        torch.rand_like(x)
        return x + torch.rand_like(x)

    assert sum("rand" in str(n.target) for n in optimized(function, X).nodes) == 2


def test_writes_to_inputs_stay(optimized: Get, text: Callable[[Graph], str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.add_(1)
        return y

    expected = "mul = mul(x0, 2)\nadd = add(x0, 1)\ncopy_ = copy_(x0, add)\nreturn mul"
    assert text(optimized(function, X)) == expected


def test_the_flag_turns_it_off(capture: Get) -> None:
    graph = _with_dead(capture(lambda x: x.sin(), X), aten.exp.default)
    optimize(graph, host(), Config(use_dce=False))
    assert aten.exp.default in {n.target for n in graph.nodes}
    assert "remove_dead_code" not in graph.module.meta["passes"]
