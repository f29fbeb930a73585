"""Results that show an input which the function writes to, with symbolic sizes and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.fuzz.runs import captured

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _copied_into(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    shown = x.flatten()
    x.copy_(y)
    return shown


def _added_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x.flatten()


def _written_through_a_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    shown = x.flatten()
    shown.mul_(y)
    return shown


def _expanded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[..., ::2].add_(y)
    return x.expand(2, *x.shape)


def _two_views(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(y)
    return x.view(x.shape[0] * x.shape[1]).view(-1, x.shape[1]).t()


def _one_of_several(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    shown = x.mT.chunk(2, 1)[-1]
    x[1:].add_(y)
    return shown


def _one_of_several_of_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x.unbind(0)[1].tensor_split(2)[1]


def _equal_but_its_own(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What is written to an input and returned as well does not show the input."""
    total = x + y
    x.copy_(total)
    return total.view(-1)


SHOW = (_copied_into, _added_to, _written_through_a_view, _expanded, _two_views)


def _compared(
    function: Function, dynamic: bool | None, columns: slice, trained: bool, how: Any
) -> None:
    torch._dynamo.reset()
    run = torch.compile(function, backend=how, dynamic=dynamic)
    for rows in (5, 7, 4):
        mine, theirs = (torch.arange(6.0 * rows).view(rows, 6) for _ in range(2))
        y = torch.tensor(10.0, requires_grad=trained)
        with torch.set_grad_enabled(trained):
            got = run(mine[1:-1, columns], y)
            meant = function(theirs[1:-1, columns], y)
        assert torch.equal(got, meant) and torch.equal(mine, theirs)
        assert (got.stride(), got.storage_offset()) == (meant.stride(), meant.storage_offset())
        shows = got.untyped_storage().data_ptr() == mine.untyped_storage().data_ptr()
        assert shows == (meant.untyped_storage().data_ptr() == theirs.untyped_storage().data_ptr())
        with torch.no_grad():
            for result in (got, meant):  # what shows an input is the input
                result[(0,) * result.dim()] += 1
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("function", [*SHOW, _equal_but_its_own])
def test_a_result_shows_the_input_that_was_written_to(
    function: Function, dynamic: bool, trained: bool
) -> None:
    _compared(function, dynamic, slice(None), trained, "litz")


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_input_with_gaps_is_shown_with_them(dynamic: bool, trained: bool) -> None:
    _compared(_expanded, dynamic, slice(1, 5), trained, "litz")


@pytest.mark.parametrize("columns", [slice(None), slice(1, None, 2)])
@pytest.mark.parametrize("dynamic", [False, True, None])
@pytest.mark.parametrize("function", [_one_of_several, _one_of_several_of_one])
def test_one_of_several_views_is_shown_too(
    function: Function, dynamic: bool | None, columns: slice
) -> None:
    """Without gradients: with them, torch makes it a tensor of its own."""
    _compared(function, dynamic, columns, False, "litz")


def test_torchs_capture_alone_shows_other_memory() -> None:
    """If this fails, torch has mended it, and the pass may go."""
    with pytest.raises(AssertionError):
        _compared(_added_to, True, slice(None), False, captured)


VIEWS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "expanded again": lambda x: (x.expand(2, *x.shape), x * 2),
    "a part": lambda x: (x[1:], x * 2),
    "transposed": lambda x: (x.mT, x * 2),
    "one of several": lambda x: (x.unbind(-1)[1], x * 2),
}


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("name", VIEWS)
def test_gradients_of_views_of_an_input_whose_elements_share_memory(
    name: str, dynamic: bool | None
) -> None:
    """Seed 34001387 of the fuzzer: `as_strided` spreads a gradient over the elements that share
    memory, where `expand` keeps those of each."""
    function = VIEWS[name]
    compiled = torch.compile(
        function, backend="litz", dynamic=dynamic, options={"on_error": "raise"}
    )
    for rows in (3, 5):
        x = torch.randn(1, 1, 4).expand(rows, 1, 4)
        found = []
        for run in (function, compiled):
            leaf = x.detach().requires_grad_()
            results = run(leaf)
            weights = [torch.arange(r.numel()).cos().view(r.shape) for r in results]
            found.append(torch.autograd.grad(results, [leaf], weights)[0])
        torch.testing.assert_close(found[1], found[0])
