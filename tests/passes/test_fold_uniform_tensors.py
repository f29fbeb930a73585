"""Tensors whose elements are all one known number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


def _conjugated(x: torch.Tensor) -> torch.Tensor:
    z = torch.full((4, 2), 2.0, dtype=torch.complex64) * 1j
    return x + z.conj().angle()


def _compared_with_its_conjugate(x: torch.Tensor) -> torch.Tensor:
    z = torch.full((4, 2), 2.0, dtype=torch.complex64) * 1j
    return x + (z == z.conj()).float()


def _window_beyond_a_slice(x: torch.Tensor) -> torch.Tensor:
    behind = torch.full((8,), 2.0)[4:]
    return x + behind.as_strided((4, 2), (1, 4), 0)


def _slice_of_a_slice(x: torch.Tensor) -> torch.Tensor:
    """It begins where its base does not: the first slice is row-major, the second is not."""
    z = torch.zeros(5, 3)
    z[1:, 1:] = x
    return z


def _window_on_a_slice_of_a_slice(x: torch.Tensor) -> torch.Tensor:
    return x + torch.zeros(9, 9)[1:][:, 1:].as_strided((4, 2), (9, 1), 10)


FUNCTIONS = (
    _conjugated, _compared_with_its_conjugate, _window_beyond_a_slice, _slice_of_a_slice,
    _window_on_a_slice_of_a_slice,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_view_that_means_something_else_is_not_its_base(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(4, 2)
    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    assert torch.equal(run(x), function(x))


def test_a_tensor_without_memory_has_no_number() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, torch.full((3,), 2.0, device="meta") * 3

    with pytest.warns(UserWarning, match="no code for device 'meta'"):
        twice, nowhere = torch.compile(function, backend="litz")(torch.ones(3))
    assert twice.tolist() == [2, 2, 2] and nowhere.device.type == "meta"


def test_a_result_keeps_the_stride_of_a_dimension_of_one() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.new_ones((1, 1))[::2].to(torch.int32, copy=True)

    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    found, expected = run(torch.ones(())), function(torch.ones(()))
    assert found.equal(expected) and found.stride() == expected.stride() == (2, 1)
