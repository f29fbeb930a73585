"""Space-to-depth: a convolution of few channels with stride 2 reads 2 x 2 pixels as one.

In: a convolution of an FX graph, on a GPU, in halves. Out: whether it changed. cuDNN's kernels load
several channels of a pixel together; three RGB channels leave most of a load empty. With stride 2
every window starts at a 2 x 2 block of pixels. A block therefore becomes one pixel with four times
the channels: half the taps along each side of a window, and stride 1. Measured on an H200, 32
images, 3 to 192 channels, 7 x 7 windows: 602 us before, 298 us after; zero-padded to 4 and to 8
channels 606 and 955 us. `channels_last` calls it, since it decides the layout of the result.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx import Node

from litz.target import eager_on

aten = torch.ops.aten

HALF_DTYPES = (torch.bfloat16, torch.float16)
# With more channels (RGB and alpha are four) a load is full enough.
MAX_SPACE_TO_DEPTH_CHANNELS = 4


def space_to_depth(nodes: torch.fx.Graph, node: Node) -> bool:
    """Make a 2 x 2 block one pixel; the caller recomputes the node's fake value.

    convolution(x: n 3 224 224, w: 64 3 7 7, stride=2, padding=3)
    -> convolution(x': n 12 115 115, w': 64 12 4 4, stride=1, padding=0)
    """
    if not _has_few_channels(node):
        return False
    image, weight = (node.args[k] for k in (0, 1))
    assert isinstance(image, Node) and isinstance(weight, Node)
    ends = _ends(node)
    if ends is None:
        return False
    (top, left), (bottom, right) = node.args[4], ends  # type: ignore[misc]
    odd = [n % 2 for n in weight.meta["val"].shape[2:]]
    with nodes.inserting_before(node):
        blocks = _in_blocks(nodes, image, [left, right, top, bottom])
        windows = _in_blocks(nodes, weight, [0, odd[1], 0, odd[0]])
    for place, value in ((0, blocks), (1, windows), (3, [1, 1]), (4, [0, 0])):
        node.update_arg(place, value)
    return True


def _has_few_channels(node: Node) -> bool:
    given: tuple[Any, ...] = node.args
    x, w, _, stride, _, dilation, transposed, _, groups = given
    image, weight = x.meta["val"], w.meta["val"]
    plain = image.dim() == 4 and not transposed and groups == 1 and list(dilation) == [1, 1]
    if not plain or image.dtype not in HALF_DTYPES:
        return False
    if not eager_on(image.device).channels_last_half_conv:
        return False
    return bool(
        1 < image.shape[1] <= MAX_SPACE_TO_DEPTH_CHANNELS
        and list(stride) == [2, 2]
        and min(weight.shape[2:]) > 2
    )


def _ends(node: Node) -> tuple[int, int] | None:
    """Zeros to append to each column and row, so that the last window is complete; None if the
    convolution never reads the end of the image."""
    image, weight = (node.args[k].meta["val"] for k in (0, 1))  # type: ignore[union-attr]
    padding, result = node.args[4], node.meta["val"]
    found: list[int] = []
    for d, before in zip((2, 3), padding, strict=True):  # type: ignore[arg-type]
        covered = 2 * (result.shape[d] - 1 + (weight.shape[d] + 1) // 2)
        found.append(covered - image.shape[d] - before)  # type: ignore[operator]
    return (found[0], found[1]) if min(found) >= 0 else None


def _in_blocks(nodes: torch.fx.Graph, operand: Node, zeros: list[int]) -> Node:
    """n c h w -> n (2 2 c) h/2 w/2 in channels last, zero-padded left, right, top and bottom."""

    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        made = nodes.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in operand.meta.items() if k != "val"}
        plain = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        made.meta["val"] = target(*plain, **kwargs)
        return made

    whole = call(aten.constant_pad_nd.default, operand, zeros, 0.0) if any(zeros) else operand
    n, c, high, wide = whole.meta["val"].shape
    order = {"memory_format": torch.contiguous_format}
    laid = call(aten.clone.default, whole, **order)
    split = call(aten.view.default, laid, [n, c, high // 2, 2, wide // 2, 2])
    turned = call(aten.permute.default, split, [0, 2, 4, 3, 5, 1])
    moved = call(aten.clone.default, turned, **order)
    pixels = call(aten.view.default, moved, [n, high // 2, wide // 2, 4 * c])
    return call(aten.permute.default, pixels, [0, 3, 1, 2])
