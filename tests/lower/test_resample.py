"""Interpolation and grid_sample against eager: modes, paddings, corners, types, odd coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests import draws
from tests.lower.agreement import FLOATS, HALF_DTYPES, agree
from tests.stages import stages

MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "trilinear": (3,),
    "bicubic": (2,),
    "area": (1, 2, 3),
}
CASES = [(mode, rank) for mode, ranks in MODES.items() for rank in ranks]


def images(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    draws.seed(0)
    return torch.randn(2, 3, *(7, 5, 6)[:rank]).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("mode", "rank"), CASES)
def test_interpolation(mode: str, rank: int, dtype: torch.dtype) -> None:
    x = images(rank, dtype)
    agree(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), x, wide=True)
    size = (4, 9, 3)[:rank]
    agree(lambda x: F.interpolate(x, size=size, mode=mode), x, wide=True)


@pytest.mark.parametrize(("mode", "rank"), [c for c in CASES if "linear" in c[0] or "cub" in c[0]])
def test_interpolation_with_corners(mode: str, rank: int) -> None:
    agree(
        lambda x: F.interpolate(x, scale_factor=2, mode=mode, align_corners=True),
        images(rank), wide=True,
    )  # fmt: skip


def test_interpolation_of_bytes() -> None:
    x = torch.randint(0, 255, (1, 2, 5, 5), dtype=torch.uint8)
    agree(lambda x: F.interpolate(x, scale_factor=2), x)


def test_channels_last_stays() -> None:
    x = images(2).contiguous(memory_format=torch.channels_last)
    agree(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x)


def test_trusted_indices_are_not_checked() -> None:
    """What torch's decompositions compute is in range: no kernel asks again."""
    made = stages(lambda x: F.interpolate(x, scale_factor=2), images(2))
    assert "check_index" not in str([s.value for k in made.kernels.kernels for s in k.stores])


def grids(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Coordinates inside, on the border, and far outside."""
    draws.seed(1)
    grid = torch.randn(2, *(3, 4, 5)[:rank], rank).to(dtype) * 1.5
    grid.view(-1)[:4] = torch.tensor([-1.0, 1.0, 0.0, 40.0])
    return grid


PADDINGS = ["zeros", "border", "reflection"]


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(
    ("mode", "rank"),
    [("bilinear", 2), ("nearest", 2), ("bicubic", 2), ("bilinear", 3), ("nearest", 3)],
)
def test_grid_sample(mode: str, rank: int, padding: str, corners: bool) -> None:
    agree(
        lambda x, g: F.grid_sample(x, g, mode, padding, align_corners=corners),
        images(rank), grids(rank), wide=True,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, *HALF_DTYPES], ids=str)
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_grid_sample_of_every_type(mode: str, dtype: torch.dtype) -> None:
    # Halves: a grid of halves names the same places for both, but eager's weights are halves too.
    agree(
        lambda x, g: F.grid_sample(x, g, mode, "border", align_corners=True),
        images(2, dtype) / 8, (grids(2) / 4).to(dtype), wide=True,
    )  # fmt: skip


@pytest.mark.parametrize("padding", PADDINGS)
def test_grid_sample_at_no_place(padding: str) -> None:
    grid = torch.full((1, 1, 4, 2), math.nan)
    grid[0, 0, 1] = math.inf
    grid[0, 0, 2] = -1e30
    x = torch.randn(1, 1, 4, 4)
    if padding == "reflection":  # where infinity is reflected to is nobody's promise
        grid[0, 0, 1:3] = 0.5
    agree(lambda x, g: F.grid_sample(x, g, "bilinear", padding, False), x, grid)
    agree(lambda x, g: F.grid_sample(x, g, "nearest", padding, False), x, grid)


def test_grid_sample_of_one_element() -> None:
    x, grid = torch.randn(1, 2, 1, 1), grids(2)[:1]
    for padding in PADDINGS:
        agree(lambda x, g, p=padding: F.grid_sample(x, g, "bilinear", p, True), x, grid)


def test_affine_grid() -> None:
    for corners in (True, False):
        agree(
            lambda x, t, c=corners: F.grid_sample(
                x, F.affine_grid(t, [2, 3, 4, 4], c), align_corners=c
            ),
            images(2), torch.randn(2, 2, 3) / 2,
        )  # fmt: skip


SHUFFLES: dict[str, Callable[..., Any]] = {
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "unfold": lambda x: F.unfold(x, 3, dilation=2, padding=1, stride=2),
    "fold": lambda x: F.fold(F.unfold(x, 2), (6, 6), 2),
    "roll": lambda x: x.roll((1, -2), (1, 3)),
    "roll_flat": lambda x: x.roll(5),
    "rot90": lambda x: x.rot90(3, (2, 3)),
    "flip": lambda x: x.flip(1, 3),
    "tile": lambda x: x.tile(2, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "max_unpool": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", SHUFFLES)
def test_shuffles(case: str, dtype: torch.dtype) -> None:
    agree(SHUFFLES[case], torch.randn(2, 8, 6, 6).to(dtype))
