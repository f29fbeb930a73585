"""Tensors that are negated lazily: what their memory holds is not what they show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz


def _run(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="litz", options={"on_error": "raise"})  # type: ignore


def _complex(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


NEGATED: dict[str, Callable[[], torch.Tensor]] = {
    "negated": lambda: torch._neg_view(torch.randn(4, 8)),
    "conjugate": lambda: _complex(4, 8).conj().imag,
    "transposed": lambda: torch._neg_view(torch.randn(8, 4)).t(),
    "slice": lambda: torch._neg_view(torch.randn(9, 8))[1::2],
    "half": lambda: torch._neg_view(torch.randn(4, 8).bfloat16()),
    "double": lambda: torch._neg_view(torch.randn(4, 8).double()),
}
READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "pointwise": lambda x: (x + 1) * x,
    "clone": lambda x: x.clone(),
    "view": lambda x: x.reshape(-1)[3:] * 2,
    "sum": lambda x: (x.sum(0), x.amax(1)),
    "aten": lambda x: x.sort(1)[0],
    "product": lambda x: x @ x.t(),
    "stack": lambda x: torch.stack([x, -x]),
    "parts": lambda x: [part * 2 for part in (*x.split([1, x.shape[0] - 1]), *x.unbind(1))],
    "same again": lambda x: (x, x + 0),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", NEGATED)
def test_inputs_show_what_they_mean(kind: str, reader: str) -> None:
    x, function = NEGATED[kind](), READERS[reader]
    assert x.is_neg()
    torch.testing.assert_close(_run(function)(x), function(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z.conj().imag * 2,
        lambda z: (z * 2).conj().imag.exp(),
        lambda z: torch._neg_view(z.real) + 1,
        lambda z: torch.view_as_real(z.conj().resolve_conj()).sum(-1),
        lambda z: z.conj() * z,
        lambda z: z.conj().mT.imag.contiguous(),
    ],
)
def test_what_a_program_negates_lazily_itself(function: Callable[..., Any]) -> None:
    z = _complex(4, 8)
    torch.testing.assert_close(_run(function)(z), function(z))


def test_a_plain_and_a_negated_input_are_two_graphs() -> None:
    run = _run(lambda x: x + 1)
    x = torch.randn(8)
    for given in (x, torch._neg_view(x), x, _complex(8).conj().imag):
        torch.testing.assert_close(run(given), given + 1)


@pytest.mark.parametrize("kind", NEGATED)
def test_gradients_come_as_they_are(kind: str) -> None:
    """No guard looks at what autograd hands to a backward graph."""
    gradient = NEGATED[kind]()
    x = torch.randn(gradient.shape, dtype=gradient.dtype, requires_grad=True)
    run = _run(lambda x: x * 3)
    for given in (torch.ones_like(gradient), gradient):
        (found,) = torch.autograd.grad(run(x), x, given)
        (expected,) = torch.autograd.grad(x * 3, x, given)
        torch.testing.assert_close(found, expected)


def test_an_input_that_is_saved_for_the_backward() -> None:
    weight = torch.randn(4, 8, requires_grad=True)
    x = torch._neg_view(torch.randn(4, 8))
    (found,) = torch.autograd.grad(_run(lambda w, x: (w * x).exp())(weight, x).sum(), weight)
    (expected,) = torch.autograd.grad((weight * x).exp().sum(), weight)
    torch.testing.assert_close(found, expected)


def test_zeros_without_memory() -> None:
    """Autograd's own zeros have no address at all."""
    zeros = torch._efficientzerotensor((8,))
    torch.testing.assert_close(_run(lambda x: x * 2 + 1)(zeros), torch.ones(8))
    run = _run(lambda x: x.sin() * x)
    x = torch.randn(8, requires_grad=True)
    (found,) = torch.autograd.grad(run(x), x, zeros)
    torch.testing.assert_close(found, torch.zeros(8))


def test_a_write_into_one_runs_as_eager_and_says_so() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    memory = torch.randn(8)
    found, expected = (torch._neg_view(memory.clone()) for _ in range(2))
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="negated lazily"):
        result = torch.compile(function, backend="litz")(found)
    torch.testing.assert_close(result, function(expected))
    torch.testing.assert_close(found, expected)
    with pytest.raises(Exception, match="negated lazily"):
        _run(function)(torch._neg_view(memory.clone()))
    litz.reset()


@pytest.mark.parametrize("inside", [False, True])
def test_a_result_that_shares_memory_runs_as_eager_and_says_so(inside: bool) -> None:
    def function(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = z * 2
        return (y[1:] if inside else y), y.conj().imag[1:]

    z = _complex(8)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="shares memory with another result"):
        found, part = torch.compile(function, backend="litz")(z)
    torch.testing.assert_close((found, part), function(z))
    found.zero_()
    torch.testing.assert_close(part, torch.zeros(7))
    litz.reset()


def test_results_that_share_only_what_is_written_out() -> None:
    def function(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (z * 2).conj().imag
        return y, y[1:]

    z = _complex(8)
    found, part = _run(function)(z)
    torch.testing.assert_close((found, part), function(z))
    found.zero_()
    torch.testing.assert_close(part, torch.zeros(7))


OF_INPUTS: dict[str, tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], Any]]] = {
    "alone": (lambda: _complex(4, 6), lambda z: (z.conj().imag,)),
    "read as well": (lambda: _complex(4, 6), lambda z: (y := z.conj().imag, y.sin())),
    "a part": (lambda: _complex(4, 6), lambda z: ((y := z.conj().imag)[1:], y.sin())),
    "parts of parts": (
        lambda: _complex(4, 6), lambda z: (y := z.conj().imag[1:], y.sin(), y[1:], y[1:].exp())),
    "parts": (lambda: _complex(4, 6), lambda z: (*(y := z.conj().imag).split(2), y.sin())),
    "negated": (lambda: torch.randn(4, 6), lambda x: (y := torch._neg_view(x), y.sin(), y[1:])),
    "twice": (
        lambda: torch.randn(4, 6),
        lambda x: (z := torch._neg_view((y := torch._neg_view(x))[1:]), z.sin(), y, z[1:].exp())),
    "beside the input": (lambda: torch.randn(4, 6), lambda x: (torch._neg_view(x)[1:], x[1:])),
    "with gaps": (
        lambda: torch._neg_view(torch.randn(4, 6))[:, ::2], lambda x: (x[1:], x.sin())),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_INPUTS)
def test_results_that_show_an_input(name: str) -> None:
    make, function = OF_INPUTS[name]
    x = make()
    found, expected = _run(function)(x), function(x)
    torch.testing.assert_close(found, expected)
    seen = [(t.is_neg(), t.stride(), t.storage_offset()) for t in found]
    assert seen == [(t.is_neg(), t.stride(), t.storage_offset()) for t in expected]
    x.mul_(3)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)  # of the same input: both have changed, or neither


def test_what_lies_with_gaps_beside_an_input_that_is_negated() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch._neg_view((x.exp() * 2)[:, ::2])
        return y, y[1:], x.sin()

    x = torch._neg_view(torch.randn(4, 6))
    found, expected = _run(function)(x), function(x)
    torch.testing.assert_close(found, expected)
    assert [t.stride() for t in found] == [t.stride() for t in expected]


@pytest.mark.parametrize("of_input", [True, False])
def test_a_step_that_returns_what_it_negates_lazily(of_input: bool) -> None:
    def function(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch._neg_view(w if of_input else w * 2)
        return y[1:], (y * x).exp()

    weight, x = torch.randn(4, 6, requires_grad=True), torch._neg_view(torch.randn(4, 12))[:, ::2]
    found, expected = _run(function)(weight, x), function(weight, x)
    torch.testing.assert_close(found, expected)
    steps = (torch.autograd.grad(a.sum() + b.sin().sum(), weight) for a, b in (found, expected))
    torch.testing.assert_close(*steps)
