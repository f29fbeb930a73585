"""With `fallback_random`, random numbers are eager's, bit for bit, whatever nothing reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests import draws

Function = Callable[[torch.Tensor], torch.Tensor]


FUNCTIONS: dict[str, Function] = {
    "a dead rand": lambda x: (torch.rand(3), torch.rand(4))[1] + x,
    "dead ones of all kinds": lambda x: (
        torch.randn_like(x), F.dropout(x, 0.5), torch.randint(0, 9, (3,)), torch.randperm(5),
        torch.bernoulli(x.sigmoid()), torch.multinomial(x.abs() + 1, 2), torch.normal(x, 1.0),
        torch.rand(4),
    )[-1] + x,
    "dead between live ones": lambda x: (
        torch.rand(4) * x + (torch.rand(9), torch.randn(4))[1] + (F.dropout(x), x)[1]
    ),
    "dropout of nothing": lambda x: F.dropout(x, 0.0) + torch.rand(4),
    "dropout of all": lambda x: F.dropout(x, 1.0) + torch.rand(4),
    "dropout": lambda x: F.dropout(x, 0.5) + torch.rand(4),
    "dropout while evaluating": lambda x: F.dropout(x, 0.5, False) + torch.rand(4),
    "a draw whose result is empty": lambda x: torch.rand(0, 3).sum() + torch.rand(4) + x,
    "in place": lambda x: (x * 1).uniform_() + torch.rand(4) + x.clone().bernoulli_(0.3),
    "an order": lambda x: torch.rand(4) + torch.randn(4).sort().values + F.dropout(x, 0.2),
    "the same twice": lambda x: torch.rand(4) - torch.rand(4) + x,
    "rrelu": lambda x: F.rrelu(x - 2, training=True) + torch.rand(4),
    "a dead feature": lambda x: (F.alpha_dropout(x, 0.5, True), torch.rand(4))[1] * x,
}  # fmt: skip


def _run(function: Any, grad: bool) -> list[torch.Tensor]:
    """Results and gradients of two calls, and what the generator gives behind them."""
    x = torch.arange(1.0, 5.0, requires_grad=grad)
    draws.seed(7)
    found = []
    for _ in range(2):
        result = function(x)
        found.append(result.detach().clone())
        if grad and result.requires_grad:
            result.sum().backward()
            found.append(x.grad)
            x.grad = None
    return [*found, torch.get_rng_state()]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_are_those_of_eager(name: str, grad: bool) -> None:
    torch._dynamo.reset()
    options = {"on_error": "raise", "fallback_random": True}
    fast = torch.compile(FUNCTIONS[name], backend="litz", fullgraph=True, options=options)
    for ours, theirs in zip(_run(fast, grad), _run(FUNCTIONS[name], grad), strict=True):
        assert torch.equal(ours, theirs)


def test_the_backward_draws_nothing_again() -> None:
    """A dead draw belongs to the forward, though the backward could run it as well."""
    torch._dynamo.reset()

    def run(x: torch.Tensor) -> torch.Tensor:
        torch.rand(5)
        return (F.dropout(x.exp(), 0.5) * x).sin()

    options = {"on_error": "raise", "fallback_random": True}
    fast = torch.compile(run, backend="litz", options=options)
    x = torch.randn(8, requires_grad=True)
    for call in (run, fast):
        draws.seed(3)
        result = call(x)
        state = torch.get_rng_state()
        result.sum().backward()
        assert torch.equal(torch.get_rng_state(), state)
    draws.seed(3)
    run(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_all_is_dropped_where_it_is_infinite_as_eager_does() -> None:
    x = torch.tensor([float("nan"), float("inf"), 1.0, -float("inf")] * 8)
    torch._dynamo.reset()
    fast = torch.compile(lambda x: (F.dropout(x, 1.0), F.dropout(x, 0.5)), backend="litz")
    all_of_it, half = fast(x)
    assert torch.equal(all_of_it.isnan(), F.dropout(x, 1.0).isnan())
    assert half[0].isnan() and not half[2].isnan()
    assert all(n.isnan() or n.isinf() for n in half[1::4])  # dropped or kept, never zero
