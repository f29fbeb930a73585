"""The call of a graph: what its text does, and what it leaves behind."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from litz.errors import InputMismatch
from litz.runtime.memory import HUGE_PAGE_THRESHOLD
from tests.stages import linked


def test_kernels_between_two_calls_are_one_line() -> None:
    made = linked(lambda x: (x.cumsum(0) + x.sum(0)) @ x + x.sum(1), torch.randn(8, 8))
    text = made.text
    assert text.count("segment_") == 2 and text.count("op_") == 1
    assert "out=" in text


def test_an_intermediate_is_made_once_and_not_at_each_call() -> None:
    made = linked(lambda x: (x @ x + 1) @ x, torch.randn(8, 8))
    x = torch.randn(8, 8)
    made([x])
    (space,) = made.free
    views = [id(v) for v in space.views]
    made([x])
    assert [id(v) for v in made.free[0].views] == views


def test_another_layout_is_an_error_that_names_the_input() -> None:
    run = linked(lambda x: x + 1, torch.randn(4, 6))
    with pytest.raises(InputMismatch, match="shape"):
        run([torch.randn(6, 4)])
    with pytest.raises(InputMismatch, match="strides"):
        run([torch.randn(6, 4).t()])
    with pytest.raises(InputMismatch, match=r"expected torch\.float32, got torch\.int32"):
        run([torch.zeros(4, 6, dtype=torch.int32)])
    free = linked(lambda x: x + 1, torch.randn(4, 6), size_asserts=False)
    assert "mismatch" not in free.text


def test_strides_that_are_never_stepped_along_do_not_matter() -> None:
    run = linked(lambda x: x + 1, torch.randn(1, 6))
    x = torch.randn(2, 6)[:1].as_strided((1, 6), (99, 1))
    (found,) = run([x])
    torch.testing.assert_close(found, x + 1)


def test_a_workspace_goes_back_after_an_error() -> None:
    made = linked(lambda x, i: x[i] + 1, torch.randn(4), torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        made([torch.randn(4), torch.tensor([1, 9])])
    assert len(made.free) == 1
    (found,) = made([torch.arange(4.0), torch.tensor([1, 3])])
    assert found.tolist() == [2, 4]


def test_nothing_of_a_call_is_kept() -> None:
    made = linked(lambda x: torch.sort(x)[0] + 1, torch.randn(100))
    x = torch.randn(100)
    (found,) = made([x])
    seen = [weakref.ref(x), weakref.ref(found)]
    del x, found
    gc.collect()
    assert all(r() is None for r in seen)


@pytest.mark.parametrize("huge", [True, False])
def test_large_outputs(huge: bool) -> None:
    x = torch.randn(HUGE_PAGE_THRESHOLD // 4 + 3)
    made = linked(lambda x: x * 2, x, cpp__huge_pages=huge)
    assert ("empty_large" in made.text) == huge
    torch.testing.assert_close(made([x])[0], x * 2)


def _turned(t: torch.Tensor) -> torch.Tensor:
    return t.t().contiguous() if t.dim() == 2 else t


def _back(t: torch.Tensor) -> torch.Tensor:
    return t.t() if t.dim() == 2 else t


def _as_it_is(t: torch.Tensor) -> torch.Tensor:
    return t


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [1, 6])  # one row is expanded
@pytest.mark.parametrize("hooks", [(_turned, _back), (torch.Tensor.contiguous, _as_it_is)])
def test_hooks_may_give_saved_values_another_layout(
    hooks: tuple[Any, Any], rows: int, dynamic: bool
) -> None:
    first, x = torch.nn.Linear(8, 5), torch.randn(rows, 8)
    wanted, found = (
        _gradients(call, first, x, *hooks)
        for call in (_two_layers, torch.compile(_two_layers, backend="litz", dynamic=dynamic))
    )
    torch.testing.assert_close(found, wanted)


def _two_layers(x: torch.Tensor, first: torch.nn.Linear) -> torch.Tensor:
    return first(x).relu() @ first.weight.sin()


def _gradients(call: Any, first: torch.nn.Linear, x: torch.Tensor, pack: Any, unpack: Any) -> Any:
    x = x.expand(6, 8).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = call(x, first)
    return torch.autograd.grad(y.square().sum(), [x, *first.parameters()])


def test_hooks_may_not_give_saved_values_another_type_or_shape() -> None:
    first, call = torch.nn.Linear(8, 5), torch.compile(_two_layers, backend="litz")
    for unpack in (torch.Tensor.double, lambda t: t[..., :1]):
        with pytest.raises(InputMismatch, match="expected"):
            _gradients(call, first, torch.randn(6, 8), _as_it_is, unpack)
