"""What a user may observe beside values: strides, aliasing, mutation, odd inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import litz

RAISE = {"on_error": "raise"}


def _run(function: Callable[..., Any], inputs: list[Any], compiled: bool) -> tuple[Any, list[Any]]:
    given = [_copied(i) for i in inputs]
    if compiled:
        litz.reset()
        function = torch.compile(function, backend="litz", options=RAISE)
    return function(*given), given


def _copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    fresh = torch.empty(0, dtype=value.dtype)
    return fresh.set_(storage, value.storage_offset(), value.shape, value.stride())


def _sharing(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Pairs that lie in one storage."""
    memory = [t.untyped_storage().data_ptr() for t in tensors]
    return [(i, j) for i, a in enumerate(memory) for j, b in enumerate(memory) if i < j and a == b]


def _swap_halves(x: torch.Tensor) -> torch.Tensor:
    x.copy_(x.flip(0))
    return x * 2


def _two_updates(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    old = x + 1
    x.copy_(y * 2)
    y.copy_(old)
    return x - y


def _update_view(x: torch.Tensor) -> torch.Tensor:
    x[1:3, ::2].mul_(3)
    return x.sum(1)


def _return_updated(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.add_(1), x


def _scalars(x: torch.Tensor, n: int, scale: float, flag: bool, nothing: None) -> Any:
    return {"y": x * scale + n if flag else x, "n": n, "none": nothing, "list": [x.sum(), 3]}


X = torch.arange(24.0).view(4, 6)
CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "transposed_result": (lambda x: (x + 1).t(), [X]),
    "strides_follow_the_input": (lambda x: x * 2, [X.t()]),
    "channels_last": (
        lambda x: torch.relu(x) + 1,
        [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)],
    ),
    "storage_offset": (lambda x: x.exp().sum(0), [X[1:, 2:]]),
    "expanded_input": (lambda x: x + 1, [torch.randn(4, 1).expand(4, 6)]),
    "overlapping_input": (lambda x: x * 2, [torch.arange(9.0).as_strided((4, 6), (1, 1))]),
    "input_returned": (lambda x: (x, x + 1), [X]),
    "view_of_input": (lambda x: (x.view(-1)[3:], x * 2), [X]),
    "same_output_twice": (lambda x: (lambda y: (y, y))(x + 1), [X]),
    "views_of_one_result": (lambda x: (x + 1).split(2), [X]),
    "equal_outputs_stay_apart": (lambda x: (x + 1, x + 1), [X]),
    "in_place": (lambda x: x.add_(1) * 2, [X]),
    "in_place_reads_elsewhere": (_swap_halves, [X]),
    "two_updates_that_read_each_other": (_two_updates, [X, X.flip(0).contiguous()]),
    "in_place_through_a_view": (_update_view, [X]),
    "updated_input_returned": (_return_updated, [X]),
    "zero_d": (lambda x: x[1, 1] * 2 + x.sum(), [X]),
    "empty": (lambda x: (x[:0] * 2, x[:0].sum(1), x[:0].sum(0)), [X]),
    "size_one": (lambda x: x[:1].softmax(0) + x[:1, :1].var(unbiased=False), [X]),
    "numbers_and_none": (_scalars, [X, 3, 0.5, True, None]),
    "constant_in_the_graph": (lambda x: x + torch.tensor([1.0, 2, 3, 4, 5, 6]), [X]),
    "no_tensor_work": (lambda x: (x.t(), x[None]), [X]),
}


@pytest.mark.parametrize("case", CASES)
def test_eager_and_compiled_cannot_be_told_apart(case: str) -> None:
    function, inputs = CASES[case]
    expected, left = _run(function, inputs, compiled=False)
    found, right = _run(function, inputs, compiled=True)
    torch.testing.assert_close(found, expected, check_stride=True)
    torch.testing.assert_close(right, left)
    theirs = [t for t in pytree.tree_leaves((expected, left)) if isinstance(t, torch.Tensor)]
    ours = [t for t in pytree.tree_leaves((found, right)) if isinstance(t, torch.Tensor)]
    assert _sharing(ours) == _sharing(theirs)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_grad_modes(mode: Callable[[], Any]) -> None:
    litz.reset()
    compiled = torch.compile(lambda x: torch.softmax(x, -1) * 2, backend="litz", options=RAISE)
    with mode():
        torch.testing.assert_close(compiled(X.clone()), torch.softmax(X, -1) * 2)


def test_the_default_dtype_is_respected() -> None:
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        litz.reset()
        compiled = torch.compile(lambda n: n / 3 + torch.ones(3), backend="litz", options=RAISE)
        assert compiled(torch.arange(3)).dtype is torch.float64
    finally:
        torch.set_default_dtype(before)


def test_a_tensor_subclass_falls_back_or_is_right() -> None:
    class Marked(torch.Tensor):
        pass

    litz.reset()
    marked = torch.randn(3).as_subclass(Marked)
    torch.testing.assert_close(
        torch.compile(lambda x: x + 1, backend="litz")(marked).as_subclass(torch.Tensor),
        marked.as_subclass(torch.Tensor) + 1,
    )


def test_unaligned_storage() -> None:
    raw = torch.zeros(4 * 65 + 1, dtype=torch.uint8)
    x = torch.frombuffer(raw.numpy().data, dtype=torch.float32, count=65, offset=1)
    x.copy_(torch.arange(65.0))
    litz.reset()
    compiled = torch.compile(lambda x: x * 2 + x.sum(), backend="litz", options=RAISE)
    torch.testing.assert_close(compiled(x), x * 2 + x.sum())
