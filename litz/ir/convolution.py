"""Convolutions: their geometry, and which of them Litz computes.

In: sizes and strides of an `aten.convolution`. Out: `Convolution`, and `library_reason`, the reason
why one stays with oneDNN, or nothing. Example: a 3 x 3 convolution over 64 channels is a gemm with
a row for each output pixel and a depth (K) of 9 x 64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Convolution:
    """The sizes of a convolution. `channels` are all input channels, `results` all output
    channels."""

    images: int
    channels: int
    results: int
    groups: int
    extents: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    outputs: tuple[int, ...]

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return math.prod(self.kernel)

    @property
    def places(self) -> int:
        """Output pixels of all images, each with its window."""
        return self.images * math.prod(self.outputs)

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved by itself."""
        alone = self.groups == self.channels == self.results > 1
        return alone and not self.transposed

    @property
    def is_dense(self) -> bool:
        return self.groups == 1 and not self.transposed

    @property
    def is_pointwise(self) -> bool:
        """Whether each pixel is one window and nothing else is: then it is a gemm."""
        moves = any(n != 1 for n in self.stride) or any(self.padding)
        return self.is_dense and self.taps == 1 and not moves


def convolution_of(
    image: Sequence[int], weight: Sequence[int], result: Sequence[int], *where: Any
) -> Convolution:
    """The geometry of `aten.convolution(image, weight, bias, *where)`, from sizes."""
    stride, padding, dilation, transposed, _, groups = where
    rank = len(image) - 2

    def listed(sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(sizes) * (rank if len(sizes) == 1 else 1)

    return Convolution(
        *(image[0], image[1], result[1], groups),
        extents=tuple(image[2:]), kernel=tuple(weight[2:]), stride=listed(stride),
        padding=listed(padding), dilation=listed(dilation), transposed=bool(transposed),
        outputs=tuple(result[2:]),
    )  # fmt: skip


# The fewest channels whose gemm is deep enough to outweigh the fixed cost of a block.
FEWEST_STEPS = 8
# The most channels at which a gemm over windows is as fast as oneDNN, or faster. oneDNN gains by
# its blocking (1.10 times at 256 channels, 1.16 at 512), and loses by its call (25 us, and the
# epilogues that it cannot fuse).
MOST_CHANNELS = 64


def library_reason(conv: Convolution, lanes: int, single_places: bool) -> str:
    """Why the library computes it; "" if Litz does. `lanes` are the float lanes of the target's
    gemms (0 if it generates none); `single_places` is the flag `conv_1x1_as_mm`."""
    if lanes < 2:
        return "convolutions are the library's on this target"
    if conv.is_depthwise:
        slides = conv.kernel[-1] > 1 and conv.outputs[-1] > 1
        return "" if slides and conv.channels >= lanes else "too few channels or windows to share"
    if not conv.is_dense:
        return "channels in groups, or transposed"
    if conv.channels < FEWEST_STEPS or conv.results < lanes:
        return "a product of too few channels"
    if conv.taps > 1:
        plane = len(conv.kernel) == 2 and conv.channels <= MOST_CHANNELS
        return "" if plane or not has_onednn() else "windows over many channels"
    return "" if single_places else "a product, but for conv_1x1_as_mm"


def may_be_packed(*where: Any) -> bool:
    """Whether oneDNN takes an `aten.convolution(image, weight, bias, *where)`. It computes a
    transposed one as the backward of a convolution. With an output padding of a whole stride, that
    convolution would have further windows; torch allows any padding below the dilation."""
    stride, _, _, transposed, outside, _ = where
    return not transposed or all(added < step for added, step in zip(outside, stride, strict=True))


def has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())
