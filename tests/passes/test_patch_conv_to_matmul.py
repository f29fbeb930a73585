"""A convolution that takes an image apart into patches is a product on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.capture import capture
from litz.ir.graph import Graph
from litz.passes.patch_conv_to_matmul import patch_conv_to_matmul

IMAGE, WEIGHT, BIAS = (2, 3, 8, 12), (5, 3, 4, 4), (5,)


def _passed(function: Callable[..., Tensor], *shapes: tuple[int, ...], device: str) -> Graph:
    with FakeTensorMode():
        inputs = [torch.empty(s, device=device) for s in shapes]
        graph = capture(make_fx(function, tracing_mode="fake")(*inputs), "inference")
        graph.module.meta["replaced"] = patch_conv_to_matmul(graph)
    return graph


@pytest.mark.parametrize("bias", [True, False])
def test_same_numbers_in_the_same_place(bias: bool) -> None:
    shapes = [IMAGE, WEIGHT, *([BIAS] if bias else [])]

    def patches(*operands: Tensor) -> Tensor:
        return F.conv2d(*operands, stride=4).flatten(2).transpose(1, 2)

    graph = _passed(patches, *shapes, device="cuda")
    assert graph.module.meta["replaced"] == 1
    assert not any(n.target is torch.ops.aten.convolution.default for n in graph.nodes)
    inputs = [torch.randn(s) for s in shapes]
    found, expected = graph.module(*inputs), patches(*inputs)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


@pytest.mark.parametrize(
    ("how", "image"),
    [
        ({"stride": 2}, IMAGE),  # windows overlap
        ({"stride": 4, "padding": 1}, IMAGE),
        ({"stride": 4}, (2, 3, 9, 12)),  # a rest is left out
    ],
)
def test_what_is_no_patch_stays(how: dict[str, Any], image: tuple[int, ...]) -> None:
    graph = _passed(lambda x, w: F.conv2d(x, w, **how), image, WEIGHT, device="cuda")
    assert graph.module.meta["replaced"] == 0


def test_a_cpu_keeps_its_convolutions() -> None:
    graph = _passed(lambda x, w: F.conv2d(x, w, stride=4), IMAGE, WEIGHT, device="cpu")
    assert graph.module.meta["replaced"] == 0
