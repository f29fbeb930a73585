"""Which calls go straight into a graph, and that all others still do what eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

from litz.capture import aot_autograd


def _reasons(function: Callable[..., Any], *inputs: Any) -> tuple[list[str | None], Any]:
    """The reasons to keep the wrapper, one a graph, and the compiled function."""
    torch._dynamo.reset()
    found: list[str | None] = []
    modes, graph = aot_autograd.reason_in_modes, aot_autograd.reason_to_wrap

    def noted(*args: Any) -> str | None:
        found.append(graph(*args))
        return found[-1]

    def stopped(*args: Any) -> str | None:
        reason = modes(*args)
        if reason is not None:
            found.append(reason)
        return reason

    with (
        mock.patch.object(aot_autograd, "reason_to_wrap", noted),
        mock.patch.object(aot_autograd, "reason_in_modes", stopped),
    ):
        run = torch.compile(function, backend="litz", options={"on_error": "raise"})
        run(*inputs)
    return found, run


def _update(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


CASES: dict[str, tuple[Callable[..., Any], str | None]] = {
    "fresh results": (lambda x: (x + 1, x.sum()), None),
    "with a product": (lambda x: (x @ x).relu(), None),
    "an input itself": (lambda x: (x, x + 1), None),  # Dynamo returns it
    "a view of an input": (lambda x: x.t(), "shares memory"),
    "views of a result": (lambda x: (x + 1).chunk(2), None),  # the graph's own results
    "an update": (_update, "mutated"),
}


@pytest.mark.parametrize("name", CASES)
def test_reasons(name: str) -> None:
    function, reason = CASES[name]
    x = torch.randn(4, 4)
    with torch.no_grad():
        found, run = _reasons(function, x.clone())
        assert len(found) == 1
        assert found[0] is None if reason is None else reason in str(found[0])
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(run(mine), function(theirs))
        torch.testing.assert_close(mine, theirs)


def test_autocast_keeps_the_wrapper() -> None:
    x = torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, run = _reasons(lambda x: x @ x, x)
        assert found == ["autocast"]
        assert run(x).dtype is torch.bfloat16
    assert run(x).dtype is torch.float32


def test_a_parameter_under_no_grad_inside_the_function() -> None:
    """Grad mode is on around the call: ATen's own ops must not see the parameter with it."""
    weight = torch.nn.Parameter(torch.randn(4, 4))

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return x @ weight

    found, run = _reasons(function, torch.randn(4, 4))
    assert found and "requires grad" in str(found[0])
    assert not run(torch.randn(4, 4)).requires_grad


def test_inference_with_parameters_goes_straight() -> None:
    model = torch.nn.Linear(4, 4)
    with torch.no_grad():
        found, run = _reasons(model.forward, torch.randn(2, 4))
        assert found == [None]
        torch.testing.assert_close(run(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_training_still_gives_gradients() -> None:
    x = torch.randn(4, requires_grad=True)
    found, run = _reasons(lambda x: (x * x).sum(), x)
    assert "requires grad" in str(found)
    run(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_tensors_without_memory_are_torchs() -> None:
    """A kernel would read address 0."""
    x = FakeTensorMode().from_tensor(torch.randn(4, 4))
    run = torch.compile(lambda x: (x * 2).sum(1), backend="litz", options={"on_error": "raise"})
    for _ in range(2):
        assert isinstance(run(x), FakeTensor) and run(x).shape == (4,)
        assert torch.equal(run(torch.ones(4, 4)), torch.full((4,), 8.0))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_forward_mode_keeps_its_tangents(requires_grad: bool) -> None:
    layer = torch.nn.Linear(3, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return layer(x * x).sin()

    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    x = torch.randn(3, requires_grad=requires_grad)
    run(x)  # Dynamo does not compile anew for a dual number
    with forward_ad.dual_level():
        x = forward_ad.make_dual(x, torch.randn(3))
        mine, theirs = (forward_ad.unpack_dual(f(x)).tangent for f in (run, function))
    assert theirs is not None
    torch.testing.assert_close(mine, theirs)
