"""What an op of a library keeps of a call stays as it was: no later step or call writes into it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import draws
from tests.runtime import keeping
from tests.runtime.keeping import KEPT, keep, passed
from tests.stages import compiled

X = torch.randn(8, 8, generator=draws.generator(0))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", keeping.FUNCTIONS)
def test_operands_outlive_the_call(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    function = keeping.FUNCTIONS[name]
    fast = torch.compile(function, backend="litz", dynamic=dynamic, options={"on_error": "raise"})
    keeping.check(function, fast, [X + k for k in range(3)])


def test_operands_made_of_parameters_outlive_an_update() -> None:
    """What is held of a parameter is made anew in its place; what was given away is not it."""
    torch._dynamo.reset()
    layer = torch.nn.Linear(8, 8)

    def run(x: torch.Tensor) -> torch.Tensor:
        return layer(x) + keep(layer.weight * 2).sum() + keep(layer.weight.t().contiguous())

    fast = torch.compile(run, backend="litz", options={"on_error": "raise"})
    found: list[list[torch.Tensor]] = []
    with torch.no_grad():
        for call in (run, fast):
            draws.seed(0)
            layer.reset_parameters()
            KEPT.clear()
            for _ in range(3):
                call(X)
                layer.weight.add_(1)
            found.append([t.clone() for t in KEPT])
    assert all(map(torch.equal, *found))


def test_a_constant_is_given_away_as_a_copy() -> None:
    """A tensor that the program makes anew at each call may be written to by whoever keeps it."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return x + keep(torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum()

    fast = compiled(run)
    for _ in range(3):
        KEPT.clear()
        torch.testing.assert_close(fast(X), run(X))
        for kept in KEPT:
            kept.add_(100)


def test_a_copy_of_an_input_stays_a_copy() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return keep(x.clone()) + keep(x.clone())

    x = X.clone()
    KEPT.clear()
    compiled(run)(x)
    x.fill_(0)
    assert all(torch.equal(t, X) for t in KEPT)
    assert KEPT[0].data_ptr() != KEPT[1].data_ptr()


# torch 2.13 warns of such an op, and refuses it where the environment has CI set.
@torch._functorch.config.patch(check_custom_op_aliasing=False)
def test_results_that_are_their_operands() -> None:
    """A result may be the operand itself, or one that was given out before."""

    def run(x: torch.Tensor) -> Any:
        y = x.sort(0).values + 1
        shown = passed(y)
        return shown, (y * 2).exp().sum(0), (shown + 1).sort(0).values

    fast = compiled(run)
    wanted = [run(X + k) for k in range(3)]
    found = [fast(X + k) for k in range(3)]
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(list(mine), list(theirs))


def test_aliases_of_operands_that_lie_in_the_arena() -> None:
    """A view that ATen makes of an intermediate lives longer than that."""

    def run(x: torch.Tensor) -> Any:
        pairs = (x.sort(0).values + 1).view(4, 8, 2)
        numbers = torch.view_as_complex(pairs)
        later = (x.exp() @ x.t()).sort(0).values.tanh()
        return torch.view_as_real(numbers * 1j).sum(-1) + later.sum()

    x = torch.randn(4, 16, generator=draws.generator(1))
    fast = compiled(run)
    for k in range(3):
        torch.testing.assert_close(fast(x + k), run(x + k), rtol=1e-4, atol=1e-4)


def test_what_is_kept_has_no_place_in_the_arena() -> None:
    fast = compiled(lambda x: keep(x + 1) + (x.exp() @ x).sort(0).values)
    fast(X)
    plan = fast.reports[0].plan
    (call,) = [s for s in plan.graph.externs if s.foreign]
    assert {b.name for b in call.reads} <= plan.call_allocated and plan.slots
    assert not plan.call_allocated & plan.slots.keys()
