"""Pools against eager: geometry, types, borders, ties, NaN, backward, and what they fuse with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests import draws
from tests.lower.agreement import FLOATS, agree, numbers
from tests.stages import stages

aten = torch.ops.aten
# kernel, stride, padding, dilation, ceil_mode
GEOMETRY = [
    ([2, 2], [2, 2], [0, 0], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], False),
    ([3, 3], [2, 2], [1, 1], [1, 1], True),
    ([4, 2], [1, 3], [2, 1], [2, 2], True),
    ([1, 5], [2, 1], [0, 2], [1, 1], False),
    ([3, 3], [4, 4], [0, 1], [2, 1], True),
    ([7, 7], [7, 7], [3, 0], [1, 1], True),
]


def special(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Ties, infinities and NaN."""
    x = numbers(dtype, *shape).round()
    chance = torch.rand(shape, generator=draws.generator(1))
    x[chance < 0.1] = math.nan
    x[chance > 0.8] = -math.inf
    return x


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRY, ids=str)
def test_max_pool_with_indices(geometry: Any, dtype: torch.dtype) -> None:
    x = special(2, 3, 11, 10, dtype=dtype)
    agree(lambda x: aten.max_pool2d_with_indices(x, *geometry), x)
    last = x.contiguous(memory_format=torch.channels_last)
    agree(lambda x: aten.max_pool2d_with_indices(x, *geometry), last)


@pytest.mark.parametrize("geometry", GEOMETRY[1:5], ids=str)
def test_max_pool_backward(geometry: Any) -> None:
    x = numbers(torch.float32, 2, 3, 11, 10)
    value, where = aten.max_pool2d_with_indices(x, *geometry)
    grad = numbers(torch.float32, *value.shape, seed=2)
    agree(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *geometry, i), grad, x, where)


@pytest.mark.parametrize("divisor", [None, 3])
@pytest.mark.parametrize("with_padding", [True, False])
@pytest.mark.parametrize("geometry", GEOMETRY, ids=str)
def test_average_pool(geometry: Any, with_padding: bool, divisor: int | None) -> None:
    kernel, stride, padding, _, ceil_mode = geometry
    rest = (kernel, stride, padding, ceil_mode, with_padding, divisor)
    x = numbers(torch.float32, 2, 3, 11, 10)
    agree(lambda x: aten.avg_pool2d(x, *rest), x)
    grad = numbers(torch.float32, *aten.avg_pool2d(x, *rest).shape, seed=2)
    agree(lambda g, x: aten.avg_pool2d_backward(g, x, *rest), grad, x)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
def test_average_pool_of_every_type(dtype: torch.dtype) -> None:
    x = numbers(dtype, 3, 9, 8)
    agree(lambda x: F.avg_pool2d(x, 3, 2, 1), x, wide=True)


def test_max_pool_of_integers() -> None:
    for dtype in (torch.int64, torch.int8, torch.uint8):
        x = numbers(dtype, 2, 9, 8)
        agree(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)


# Sizes that divide, that do not, that are larger than the tensor, and one.
ADAPTIVE = [(1, 1), (3, 5), (4, 3), (9, 10), (13, 2)]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", ADAPTIVE, ids=str)
def test_adaptive_pools(size: tuple[int, int], dtype: torch.dtype) -> None:
    x = numbers(dtype, 2, 2, 9, 10)
    agree(lambda x: F.adaptive_avg_pool2d(x, size), x, wide=True)
    agree(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), x)


@pytest.mark.parametrize("size", ADAPTIVE, ids=str)
def test_adaptive_backward(size: tuple[int, int]) -> None:
    x = numbers(torch.float32, 2, 2, 9, 10)
    value, where = aten.adaptive_max_pool2d(x, size)
    grad = numbers(torch.float32, *value.shape, seed=2)
    agree(aten.adaptive_max_pool2d_backward, grad, x, where)
    agree(aten._adaptive_avg_pool2d_backward, grad, x)


def test_three_dimensions() -> None:
    x = special(2, 2, 6, 7, 5)
    agree(lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True), x)
    agree(lambda x: F.avg_pool3d(x, (2, 3, 2), 2, 1, True, False), x)
    agree(lambda x: F.adaptive_avg_pool3d(x, (4, 1, 5)), x)
    agree(lambda x: F.adaptive_max_pool3d(x, (4, 3, 2), return_indices=True), x)
    x = numbers(torch.float32, 2, 2, 6, 7, 5)
    rest: Any = ([3, 3, 3], [2, 2, 2], [1, 1, 1])
    value, where = aten.max_pool3d_with_indices(x, *rest)
    grad = numbers(torch.float32, *value.shape)
    agree(
        lambda g, x, i: aten.max_pool3d_with_indices_backward(g, x, *rest, [1, 1, 1], False, i),
        grad, x, where,
    )  # fmt: skip
    agree(lambda g, x: aten.avg_pool3d_backward(g, x, *rest, False, True, None), grad, x)
    agree(aten._adaptive_avg_pool3d_backward, grad, x)
    value, where = aten.adaptive_max_pool3d(x, (4, 3, 2))
    agree(aten.adaptive_max_pool3d_backward, numbers(torch.float32, *value.shape), x, where)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool1d(x, 3, 2, 1),
        lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True),
        lambda x: F.avg_pool1d(x, 4, 2, 1, ceil_mode=True),
        lambda x: F.adaptive_avg_pool1d(x, 4),
        lambda x: F.adaptive_max_pool1d(x, 4, return_indices=True),
        lambda x: F.lp_pool1d(x, 3.0, 3, 2),
    ],
)
def test_one_dimension(function: Callable[..., Any]) -> None:
    agree(function, torch.randn(2, 3, 15))
    agree(function, torch.randn(3, 15))


def test_lp_pool() -> None:
    agree(lambda x: F.lp_pool2d(x, 2.0, 3, 2), torch.randn(2, 3, 9, 9))


def test_the_last_nan_of_a_window_is_its_place() -> None:
    x = torch.tensor([[[1.0, math.nan, 2.0], [math.nan, 5.0, 5.0], [7.0, 7.0, 0.0]]])
    agree(lambda x: F.max_pool2d(x, 2, 1, return_indices=True), x)
    agree(lambda x: F.max_pool2d(x, 3, 1, return_indices=True), x)


def test_empty_batch() -> None:
    agree(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(0, 3, 9, 9))
    agree(lambda x: F.adaptive_avg_pool2d(x, 3), torch.randn(0, 3, 9, 9))


def test_no_access_leaves_a_buffer() -> None:
    table: dict[str, Callable[..., Any]] = {
        "max": lambda x: F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True, return_indices=True),
        "average": lambda x: F.avg_pool2d(x, (4, 3), 3, (2, 1), True, False),
        "adaptive": lambda x: F.adaptive_max_pool2d(x, (13, 4), return_indices=True),
        "reflect": lambda x: F.pad(x, (3, 1, 2, 2), "reflect"),
        "grid": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False),
        "cubic": lambda x: F.interpolate(x, size=(5, 13), mode="bicubic"),
        "search": lambda x: torch.searchsorted(x.flatten(), x),
    }
    agree(table, numbers(torch.float32, 2, 3, 11, 10) / 8, debug_index_asserts=True)


def test_the_interpreter_agrees() -> None:
    x = special(2, 3, 9, 8)
    for function in (
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda x: F.avg_pool2d(x, 2, 2, 1),
        lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    ):
        made = stages(function, x)
        expected = function(x)
        for mine, eagers in zip(
            made.lowered(), expected if isinstance(expected, tuple) else [expected], strict=False
        ):
            np.testing.assert_allclose(mine, eagers.numpy(), rtol=1e-5)


def test_a_pool_and_its_neighbours_are_one_kernel() -> None:
    made = stages(lambda x: F.max_pool2d(x.relu(), 2) * 2 + 1, torch.randn(2, 3, 8, 8))
    assert len(made.kernels.kernels) == 1


def test_indices_that_nobody_reads_are_not_computed() -> None:
    made = stages(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(2, 3, 9, 9))
    (kernel,) = made.kernels.kernels
    assert [s.buffer.dtype.name for s in kernel.stores] == ["f32"]
