"""What a caller gets is no view to autograd: it may be written to as eager's results may."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests import draws
from tests.stages import linked

ROOT = Path(__file__).parents[2]
RAISE = {"on_error": "raise"}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "gradients": nullcontext,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def _attention(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x).transpose(1, 2).reshape(2, 4, -1)


# Results with memory of their own, which they show in another shape than it was computed in.
FRESH: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...]]] = {
    "linear": (nn.Linear(5, 6, bias=False), (2, 3, 5)),
    "stack": (lambda x: torch.stack([x, x * 2]), (2, 3)),
    "roll": (lambda x: x.roll(1), (2, 3)),
    "kron": (lambda x: torch.kron(x, x), (2, 3)),
    "unfold": (lambda x: F.unfold(x, 2), (1, 2, 5, 5)),
    "group norm": (nn.GroupNorm(2, 4, affine=False), (2, 4, 3)),
    "attention": (_attention, (2, 3, 4, 8)),
    "transposed": (lambda x: (x * 2).t(), (2, 3)),
    "some columns": (lambda x: (x * 2)[:, 1:], (2, 3)),
    "one row of a product": (lambda x: (x @ x.t())[1], (3, 4)),
    "as lines": (lambda x: torch.cat([x.sin(), x]).view(-1), (4, 4)),
    "signal": (nn.Conv1d(4, 5, 1), (2, 4, 3)),
    "sorted": (lambda x: x.sort(0)[0].t(), (4, 3)),
    "nothing": (lambda x: (x[:, :0] * 2).t(), (3, 4)),
}  # fmt: skip


def _written(function: Callable[[Tensor], Any], shape: tuple[int, ...]) -> list[Any]:
    """Results after a write into each, their facts before it, and the gradient then."""
    draws.seed(0)
    given = torch.randn(shape, requires_grad=torch.is_grad_enabled())
    results = pytree.tree_leaves(function(given * 1))
    counted = [not y.is_inference() for y in results]
    facts = [(y.requires_grad, y.is_inference(), y.shape, y.stride()) for y in results]
    before = [y._version if known else 0 for y, known in zip(results, counted, strict=True)]
    for y in results:
        y += 1
    after = [y._version if known else 1 for y, known in zip(results, counted, strict=True)]
    assert before == [0] * len(results) and after == [1] * len(results)
    gradients: list[Any] = []
    if given.requires_grad:
        torch.stack([y.square().sum() for y in results]).sum().backward()
        gradients = [given.grad]
    return [facts, [y.detach().clone() for y in results], gradients]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FRESH)
def test_a_result_may_be_written_to(name: str, mode: str) -> None:
    function, shape = FRESH[name]
    run = torch.compile(function, backend="litz", options=RAISE)
    with MODES[mode]():
        expected = _written(function, shape)
        for _ in range(2):
            found = _written(run, shape)
            assert found[0] == expected[0]
            torch.testing.assert_close(found[1:], expected[1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FRESH)
def test_a_result_is_no_view(name: str, mode: str) -> None:
    function, shape = FRESH[name]
    with MODES[mode]():
        x = torch.randn(shape, requires_grad=torch.is_grad_enabled())
        results = torch.compile(function, backend="litz", options=RAISE)(x * 1)
    for y in pytree.tree_leaves(results):
        assert not y._is_view() and y._base is None


def test_code_behind_a_graph_break_may_write() -> None:
    layer = nn.Linear(5, 6, bias=False)

    def function(x: Tensor) -> Tensor:
        y = layer(x)
        torch._dynamo.graph_break()
        y.mul_(2)
        return y + 1

    x = torch.randn(2, 3, 5, requires_grad=True)
    torch.testing.assert_close(torch.compile(function, backend="litz")(x), function(x))


# -- memory that is shared -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_views_of_an_input_are_views(mode: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[1:], x.t()

    with MODES[mode]():
        x = torch.randn(4, 4, requires_grad=torch.is_grad_enabled()) * 1
        rows, turned = torch.compile(function, backend="litz", options=RAISE)(x)
        assert rows._is_view() == x[1:]._is_view() and turned._is_view() == x.t()._is_view()
        rows.fill_(3)
    assert torch.equal(x[1:], torch.full((3, 4), 3.0)) and torch.equal(turned, x.t())
    if mode != "inference":
        assert rows._version == turned._version == x._version == 1


@pytest.mark.parametrize("mode", MODES)
def test_results_that_share_memory_still_do(mode: str) -> None:
    """And count their changes together: what one of them is saved for notices the other."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        return y[0], y.view(-1)

    with MODES[mode]():
        x = torch.randn(2, 4, requires_grad=torch.is_grad_enabled()) * 1
        first, flat = torch.compile(function, backend="litz", options=RAISE)(x)
        first.fill_(7)
        torch.testing.assert_close(flat.detach()[:4], torch.full((4,), 7.0))
    if mode != "inference":
        assert first._version == flat._version == 1


def test_a_write_into_one_result_is_seen_by_what_saved_another() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y[0], y.t()

    with torch.no_grad():
        first, turned = torch.compile(function, backend="litz", options=RAISE)(torch.randn(2, 4))
    weight = torch.ones(4, requires_grad=True)
    product = (weight * first).sum()
    turned.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_a_write_into_what_the_backward_needs_is_refused() -> None:
    """A result that is kept for the backward as well. (Of a view of one, AOTAutograd makes a tensor
    that counts its changes by itself, whatever the backend: nobody sees such a write.)"""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        product = x @ x  # which the backward does not compute again
        return product, product.sin().sum()

    x = torch.randn(4, 4, requires_grad=True)
    run = torch.compile(program, backend="litz", options=RAISE)
    for function in (program, run):
        shown, total = function(x)
        shown.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


def test_a_write_into_an_input_that_the_backward_needs_is_refused() -> None:
    """It is kept as a view of the input, in the shape of a matrix."""
    layer = nn.Linear(5, 6, bias=False)
    run = torch.compile(layer, backend="litz", options=RAISE)
    for function in (layer, run):
        x = torch.randn(2, 3, 5, requires_grad=True) * 1
        result = function(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.sum().backward()


# -- cost ----------------------------------------------------------------------------------------


COVERING: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "stack": (lambda x: torch.stack([x, x * 2]), "empty((2, 3, 5, ), (15, 5, 1, )"),
    "turned": (lambda x: (x * 2).t(), "empty((5, 3, ), (1, 5, )"),
    "lines": (lambda x: (x * 2).view(-1), "empty((15, ), (1, )"),
}


@pytest.mark.parametrize("name", COVERING)
def test_a_result_that_covers_its_memory_is_allocated_as_it_is_shown(name: str) -> None:
    function, line = COVERING[name]
    text = linked(function, torch.randn(3, 5)).text
    assert line in text and "as_strided" not in text and "reinterpret" not in text


def test_part_of_a_result_costs_one_cheap_call() -> None:
    text = linked(lambda x: (x * 2)[1:], torch.randn(4, 4)).text
    assert text.count("reinterpret(") == 1 and "as_strided" not in text


def test_the_same_on_a_gpu() -> None:
    """Triton's interpreter stands for one; whether it does is decided when it is imported."""
    pytest.importorskip("triton")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    chosen = "written_to or no_view or share or refused or seen"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.codegen.triton.plugin",
         "-k", chosen, str(Path(__file__).relative_to(ROOT))],
        capture_output=True, text=True, cwd=ROOT, timeout=900, env=environment,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-4000:]
