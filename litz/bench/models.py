"""Models that transformers' configs do not give: a mixer, a recurrence, a U-Net.

In: widths. Out: modules with random weights. Example: `Mixer(tokens=196, width=768, layers=4)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MixerBlock(nn.Module):
    """An MLP across tokens, then one across channels, each after a norm and with a residual."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm_tokens, self.norm_channels = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = _mlp(tokens, width // 2)
        self.channels = _mlp(width, 4 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)
        mixed: Tensor = x + self.channels(self.norm_channels(x))
        return mixed


class Mixer(nn.Module):
    """An MLP-Mixer over patches of an image."""

    def __init__(self, image: int, patch: int, width: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        tokens = (image // patch) ** 2
        self.blocks = nn.Sequential(*(MixerBlock(tokens, width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        pooled: Tensor = self.norm(self.blocks(x)).mean(1)
        return pooled


class Recurrence(nn.Module):
    """An LSTM cell, step by step: small kernels between small GEMMs, many times over."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inputs, self.hidden = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)

    def forward(self, steps: Tensor) -> Tensor:
        hidden = cell = torch.zeros_like(steps[:, 0])
        for x in self.inputs(steps).unbind(1):
            into, forget, new, out = (x + self.hidden(hidden)).chunk(4, dim=-1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(new)
            hidden = torch.sigmoid(out) * torch.tanh(cell)
        return hidden


class UNet(nn.Module):
    """One level of a U-Net: convolutions, down, up, and the two sides joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.middle = _convolutions(3, width), _convolutions(width, 2 * width)
        self.up = _convolutions(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.down(image)
        coarse = self.middle(F.max_pool2d(fine, 2))
        raised = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        mask: Tensor = torch.sigmoid(self.head(self.up(torch.cat([raised, fine], dim=1))))
        return mask


def _mlp(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def _convolutions(into: int, width: int) -> nn.Sequential:
    """Two convolutions with group norms, as in diffusion models."""
    return nn.Sequential(
        nn.Conv2d(into, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU(),
    )  # fmt: skip
