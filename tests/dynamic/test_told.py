"""Sizes and numbers that only data tells: one compile for all values, zero and one among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.backend import litz
from litz.errors import ScalarAssertion
from litz.report import Explanation
from tests import draws
from tests.dynamic.symbolic import Symbolic

# By how many of them are positive: some, one, all, none.
VALUES = [torch.linspace(-1, 2, 8), torch.eye(8)[2], torch.ones(8), -torch.ones(8)]
COUNTS = [torch.tensor(n) for n in (3, 0, 1, 40)]


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    """What torch needs to be told, so that such programs are one graph."""
    flags = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(**flags):
        yield


def _places(x: torch.Tensor) -> Any:
    found = (x > 0).nonzero()
    return found + 1, found.sum(0), found.shape[0] * 3


def _chosen(x: torch.Tensor) -> Any:
    some = x[x > 0]
    return some.exp().sum(), torch.cat([some, x]), torch.softmax(some, 0), some[None].mean(0)


def _selected(x: torch.Tensor) -> Any:
    some = torch.masked_select(x * 2, x > 0)
    return some.cumsum(0), some[:, None] * some, F.pad(some, (1, 2))


def _repeated(x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(x[:, None] + 1, (x > 0).long() * 3, dim=0) * 2


def _distinct(x: torch.Tensor) -> Any:
    values, places = torch.unique(x, return_inverse=True)
    return values * 2, places


def _twice(x: torch.Tensor) -> Any:
    one, other = x.nonzero(), (x > 0.5).nonzero()
    return torch.cat([one, other]), x.new_ones(one.shape[0] + other.shape[0], other.shape[0]) * 2


def _truth(x: torch.Tensor) -> torch.Tensor:
    return x * (x.sum() > 0).item() + 1


def _float(x: torch.Tensor) -> Any:
    total = x.sum().item()
    return torch.full((3,), total), x * total, x + total / 2


OF_VALUES: list[Callable[..., Any]] = [
    _places, _chosen, _selected, _repeated, _distinct, _twice, _truth, _float,
]  # fmt: skip


@pytest.mark.parametrize("program", OF_VALUES, ids=lambda p: p.__name__)
def test_sizes_that_a_tensor_tells(program: Callable[..., Any]) -> None:
    symbolic = Symbolic(program, dynamic=None)
    for x in VALUES:
        symbolic.check(x)
    assert symbolic.graphs == 1 and symbolic.frames == 1


def _filled(n: torch.Tensor) -> Any:
    u = (n + 0).item()
    return torch.full((u,), 2.0) + torch.arange(u), torch.ones(u, u).triu().sum(1), u * u


def _wide(n: torch.Tensor) -> Any:
    u = (n + 0).item()
    return torch.ones(8, 1).expand(8, u).sum(1), torch.ones(8, u) * 2, torch.arange(8.0) + u / 7


def _halved(n: torch.Tensor) -> Any:
    u = (n + 0).item()
    torch._check(u >= 0)
    y = torch.arange(4 * u).view(4, u)
    return torch.ones(u // 2 + 1) * (u % 3), y.t().contiguous(), y.sum(1)


@pytest.mark.parametrize("program", [_filled, _wide, _halved], ids=lambda p: p.__name__)
def test_sizes_that_a_number_tells(program: Callable[..., Any]) -> None:
    symbolic = Symbolic(program, dynamic=None)
    for n in COUNTS:
        symbolic.check(n)
    assert symbolic.graphs == 1 and symbolic.frames == 1 and "item" not in symbolic.aten_ops


def _sliced(x: torch.Tensor, n: torch.Tensor) -> Any:
    u = (n + 0).item()
    torch._check(u >= 0)
    torch._check(u <= x.shape[0])
    y = x * 2
    return y[:u] + 1, y[u:].sin(), y.sort()[0][:u].clone()


def _window(x: torch.Tensor, n: torch.Tensor) -> Any:
    """Of a number that may be negative, torch knows neither end."""
    u = (n + 0).item()
    return (x * 2)[u:].sin(), x[:u].sum()


@pytest.mark.parametrize("program", [_sliced, _window], ids=lambda p: p.__name__)
def test_windows_that_a_number_tells(program: Callable[..., Any]) -> None:
    symbolic = Symbolic(program, dynamic=None)
    for n in COUNTS[:3]:
        symbolic.check(VALUES[0], n)
    if program is _window:
        symbolic.check(VALUES[0], torch.tensor(-3))
    assert symbolic.graphs == 1 and symbolic.frames == 1


def test_rows_of_a_product_and_of_a_norm() -> None:
    """An expert gets as many rows as chose it, also none."""
    draws.seed(0)
    layers, norm = [torch.nn.Linear(16, 32) for _ in range(2)], torch.nn.LayerNorm(16)

    def experts(x: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(x.shape[0], 32)
        for k, layer in enumerate(layers):
            rows = (choice == k).nonzero().squeeze(1)
            out = out.index_add(0, rows, F.gelu(layer(norm(x[rows]))))
        return out.cumsum(1)

    symbolic = Symbolic(experts, dynamic=None)
    with torch.no_grad():
        for choice in ([0, 1] * 6, [0] * 12, [1] * 11 + [0]):
            symbolic.check(torch.randn(12, 16), torch.tensor(choice), interpret=False)
    assert symbolic.graphs == 1 and symbolic.aten_ops == {"nonzero"}


def _masked_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return w[x > 0].exp() * 2


def _softmax_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    some = w.masked_select(x > 0)
    return torch.softmax(some * 2, 0) * some


def _taken_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows = x.nonzero().squeeze(1)
    return (w[rows] * x[rows]).tanh() * (x.sum() > 0).item()


def _repeated_loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.repeat_interleave(w, (x > 0).long() * 2, dim=0).sin()


LOSSES: list[Callable[..., Any]] = [_masked_loss, _softmax_loss, _taken_loss, _repeated_loss]


@pytest.mark.parametrize("program", LOSSES, ids=lambda p: p.__name__)
def test_a_told_size_is_saved_for_the_backward(program: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    notes = Explanation()

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        return litz(module, inputs, options={"on_error": "raise"}, explanation=notes)

    compiled = torch.compile(program, backend=backend, fullgraph=True)
    for x in VALUES:
        mine, theirs = (torch.linspace(-1, 1, 8).requires_grad_() for _ in range(2))
        found, expected = compiled(mine, x), program(theirs, x)
        torch.testing.assert_close(found, expected)
        found.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert len(notes.graphs) == 2 and not notes.by_size and not notes.fallbacks


def test_a_size_that_breaks_the_programs_word_is_named_with_its_line() -> None:
    symbolic = Symbolic(_sliced, dynamic=None)
    symbolic.check(VALUES[0], torch.tensor(3))
    for wrong, told in ((-1, "u0 >= 0"), (9, "u0 <= 8")):
        with pytest.raises(ScalarAssertion, match=f"{told}.*test_told.py"):
            symbolic(VALUES[0], torch.tensor(wrong))
    assert issubclass(ScalarAssertion, RuntimeError)  # as eager's and torch's own is
    symbolic.check(VALUES[0], torch.tensor(8))
    without = Symbolic(_filled, dynamic=None, scalar_asserts=False)
    without.check(torch.tensor(5), interpret=False)
    steps = [step for graph in without.notes.graphs for step in graph.externs]
    assert not any(step.checks for step in steps)
    assert any(step.checks for graph in symbolic.notes.graphs for step in graph.externs)


def test_an_extreme_of_nothing_and_an_index_into_nothing_raise_as_eager_does() -> None:
    for program in (lambda x: x[x > 0].max(), lambda x: x[x > 0][x.long()]):
        symbolic = Symbolic(program, dynamic=None)
        symbolic.check(VALUES[2] * 0.5, interpret=False)
        with pytest.raises((RuntimeError, IndexError)):
            symbolic.function(VALUES[3])
        with pytest.raises((RuntimeError, IndexError)):
            symbolic(VALUES[3])
        assert symbolic.graphs == 1
