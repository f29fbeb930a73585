"""Suite `conv`: convolutions of known models, one image, float32.

In: nothing. Out: a case for each layer, alone or with the activation that follows it in the model.
Litz is compared with eager, which is oneDNN, with oneDNN with packed weights, and with Inductor.
Images are channels-last, which all of them prefer. A short layer runs on several images, one after
the other, so that torch's own cost of a call matters little. Example: `mobilenet 3x3 depthwise`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from litz.bench.calls import measure_calls
from litz.bench.case import Case, Program, Say, Settings, Suite
from litz.bench.results import OURS, Row

ONEDNN = "onednn"
ORDERS = {4: torch.channels_last, 5: torch.channels_last_3d}
ENOUGH_FLOPS, MOST_IMAGES = 400e6, 16
Layer = tuple[Callable[[], Any], tuple[int, ...], Callable[[Tensor], Tensor] | None]


def _conv(
    rank: int, into: int, out: int, kernel: int, *, across: bool = False, **where: Any
) -> Any:
    """A convolution that keeps the size of its image, except for its stride; or a transposed
    one."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    wide = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    where.setdefault("padding", kernel // 2 * where.get("dilation", 1))
    made: Any = (wide if across else kinds)[rank - 1](into, out, kernel, **where)
    return made


one, two, three = (partial(partial, partial(_conv, rank)) for rank in (1, 2, 3))
LAYERS: dict[str, Layer] = {
    "resnet stem": (two(3, 64, 7, stride=2), (3, 224, 224), F.relu),
    "resnet 3x3, 64 channels": (two(64, 64, 3), (64, 56, 56), None),
    "resnet 3x3, 256 channels": (two(256, 256, 3), (256, 14, 14), F.relu),
    "resnet 3x3, 512 channels": (two(512, 512, 3), (512, 7, 7), None),
    "resnet 3x3, stride 2": (two(128, 256, 3, stride=2), (128, 28, 28), None),
    "resnet 1x1 up": (two(64, 256, 1), (64, 56, 56), None),
    "resnet 1x1 down": (two(256, 64, 1), (256, 56, 56), F.relu),
    "resnet 1x1, stride 2": (two(256, 512, 1, stride=2), (256, 56, 56), None),
    "resnext 3x3, 32 groups": (two(128, 128, 3, groups=32), (128, 28, 28), F.relu),
    "mobilenet 3x3 depthwise": (two(96, 96, 3, groups=96), (96, 56, 56), F.hardswish),
    "mobilenet 3x3 depthwise, stride 2": (
        two(96, 96, 3, groups=96, stride=2), (96, 112, 112), F.relu6),
    "mobilenet 5x5 depthwise": (two(240, 240, 5, groups=240), (240, 14, 14), F.hardswish),
    "mobilenet 1x1 expand": (two(24, 144, 1), (24, 56, 56), F.relu6),
    "mobilenet 1x1 project": (two(96, 24, 1), (96, 56, 56), None),
    "efficientnet 1x1": (two(112, 672, 1), (112, 14, 14), F.silu),
    "convnext 7x7 depthwise, 96 channels": (two(96, 96, 7, groups=96), (96, 56, 56), None),
    "convnext 7x7 depthwise, 384 channels": (two(384, 384, 7, groups=384), (384, 14, 14), None),
    "unet 3x3": (two(64, 64, 3), (64, 128, 128), F.silu),
    "unet up": (two(128, 64, 2, across=True, stride=2, padding=0), (128, 28, 28), None),
    "gan up": (two(128, 64, 4, across=True, stride=2, padding=1), (128, 28, 28), F.relu),
    "deeplab 3x3, dilation 2": (two(64, 64, 3, dilation=2), (64, 56, 56), None),
    "whisper 3": (one(80, 384, 3), (80, 3000), F.gelu),
    "whisper 3, stride 2": (one(384, 384, 3, stride=2), (384, 3000), F.gelu),
    "wav2vec 10, stride 5": (one(1, 512, 10, stride=5, padding=0), (1, 16000), F.gelu),
    "conformer 31 depthwise": (one(256, 256, 31, groups=256), (256, 500), F.silu),
    "vocoder up": (one(256, 128, 16, across=True, stride=8, padding=4), (256, 100), None),
    "resnet3d 3x3x3": (three(64, 64, 3), (64, 8, 28, 28), F.relu),
    "resnet3d stem": (three(3, 64, 3), (3, 8, 56, 56), None),
    "unet3d up": (three(64, 32, 2, across=True, stride=2, padding=0), (64, 8, 14, 14), None),
}  # fmt: skip
QUICK = ("resnet 1x1 down", "mobilenet 3x3 depthwise", "conformer 31 depthwise", "unet up")


class Images(nn.Module):
    """A convolution, with its activation if it has one, on images one after the other."""

    def __init__(self, layer: Any, behind: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.layer, self.behind = layer, behind

    def forward(self, *images: Tensor) -> tuple[Tensor, ...]:
        found = [self.layer(x) for x in images]
        return tuple(found if self.behind is None else map(self.behind, found))


def images(name: str) -> Program:
    """A layer with random weights on random images."""
    torch.manual_seed(0)
    build, shape, behind = LAYERS[name]
    model = Images(build(), behind).eval()
    order = ORDERS.get(1 + len(shape), torch.contiguous_format)
    count = min(max(round(ENOUGH_FLOPS / flops(model.layer, shape)), 1), MOST_IMAGES)
    given = (torch.randn(1, *shape).contiguous(memory_format=order) for _ in range(count))
    return Program(model.to(memory_format=order) if order in ORDERS.values() else model,
                   tuple(given))  # fmt: skip


def flops(layer: Any, shape: tuple[int, ...]) -> float:
    """Multiplications and additions for one image."""
    places = list(shape[1:])
    if not layer.transposed:
        sides = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        windows = zip(places, *sides, strict=True)
        places = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in windows]
    weights: int = layer.weight.numel()
    return 2.0 * weights * math.prod(places)


def cases(quick: bool) -> list[Case]:
    names = QUICK if quick else tuple(LAYERS)
    return [Case("conv", n, "", partial(images, n), measure, beside=(ONEDNN,)) for n in names]


def measure(case: Case, settings: Settings, say: Say) -> list[Row]:
    return measure_calls(case, settings, say, metric="short call", facts=work)


def work(program: Program) -> dict[str, float]:
    layer, shape = program.function.layer, tuple(program.args[0].shape[1:])  # type: ignore
    return {"MFLOP": 1e-6 * len(program.args) * flops(layer, shape)}


def finish(rows: list[Row]) -> list[Row]:
    """Add Litz's rate."""
    return [r.with_facts({"GFLOP/s": _rate(r)}) if OURS in r.samples else r for r in rows]


def _rate(row: Row) -> float:
    return row.facts["MFLOP"] / 1e3 / statistics.median(row.samples[OURS])


SUITE = Suite("Convolutions of known models, one image: the time of a call.", cases, finish)
