"""Pads against eager, forward and backward: modes, dimensions, negative pads, types."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lower.agreement import FLOATS, INTEGERS, agree, numbers

SHAPES = {1: (2, 3, 7), 2: (2, 3, 7, 6), 3: (2, 2, 5, 6, 4)}
MODES = ["reflect", "replicate", "circular", "constant"]


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_pads(mode: str, rank: int) -> None:
    pad = [1, 3, 2, 0, 3, 1][: 2 * rank]
    agree(lambda x: F.pad(x, pad, mode), numbers(torch.float32, *SHAPES[rank]))
    agree(lambda x: F.pad(x, pad, mode), numbers(torch.float32, *SHAPES[rank][1:]))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_pads_of_every_type(mode: str, dtype: torch.dtype) -> None:
    agree(lambda x: F.pad(x, [2, 1, 1, 2], mode) + 1, numbers(dtype, 2, 3, 5, 4))


@pytest.mark.parametrize("mode", MODES)
def test_negative_pads_cut(mode: str) -> None:
    agree(lambda x: F.pad(x, [-1, 2, 1, -2], mode), numbers(torch.float32, 2, 3, 7, 6))


def test_an_empty_tensor_is_padded_with_the_fill() -> None:
    agree(lambda x: F.pad(x, [2, 1], value=3.0), torch.ones(4, 0))


BACKWARD = {
    "reflection": [[1, 3, 2, 0, 3, 1], [0, 0, 0, 1, 1, 0], [2, -1, -1, 2, 1, 1]],
    "replication": [[1, 3, 2, 0, 3, 1], [5, 0, 0, 6, 1, 1], [2, -1, -1, 2, 1, 1]],
}


@pytest.mark.parametrize("rank", SHAPES)
@pytest.mark.parametrize(("kind", "pad"), [(k, p) for k, pads in BACKWARD.items() for p in pads])
def test_backward(kind: str, pad: list[int], rank: int) -> None:
    pad = pad[: 2 * rank]
    forward = getattr(torch.ops.aten, f"{kind}_pad{rank}d")
    backward = getattr(torch.ops.aten, f"{kind}_pad{rank}d_backward")
    x = numbers(torch.float32, *SHAPES[rank])
    grad = numbers(torch.float32, *forward(x, pad).shape, seed=1).round()
    agree(lambda g, x: backward(g, x, pad), grad, x)


def test_backward_of_one_element() -> None:
    x = numbers(torch.float32, 2, 1)
    pad = [2, 3]
    grad = numbers(torch.float32, 2, 6)
    agree(lambda g, x: torch.ops.aten.replication_pad1d_backward(g, x, pad), grad, x)
