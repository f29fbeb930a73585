"""Hand-written networks over images and fields: diffusion, detection, generative, complex.

In: nothing. Out: `IMAGES`, entries. Sizes are batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.entry import BATCHES, SIZED, Entry


def image(n: int) -> dict[str, Any]:
    return {"x": torch.randn(n, 3, 16, 16)}


def noised(n: int) -> dict[str, Any]:
    return {**image(n), "t": torch.randint(0, 1000, (n,))}


def latent(n: int) -> dict[str, Any]:
    return {"x": torch.randn(n, 8)}


def time_embedding(t: Tensor, width: int = 16) -> Tensor:
    angle = t[:, None].float() * torch.exp(-math.log(1e4) * torch.arange(width // 2) / (width // 2))
    return torch.cat([angle.sin(), angle.cos()], -1)


class ResBlock(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(2, a), nn.GroupNorm(2, b)])
        self.convs = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)])
        self.time, self.skip = nn.Linear(16, b), nn.Conv2d(a, b, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.convs[0](F.silu(self.norms[0](x))) + self.time(t)[..., None, None]
        return self.skip(x) + self.convs[1](F.silu(self.norms[1](y)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.down, self.middle, self.up = ResBlock(8, 8), ResBlock(8, 16), ResBlock(24, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        t = time_embedding(t)
        high = self.down(self.first(x), t)
        low = self.middle(F.avg_pool2d(high, 2), t)
        wide = F.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.last(self.up(torch.cat([wide, high], 1), t))


class DiT(nn.Module):
    """Patches, attention, and a norm whose scale and shift come from the time."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.modulation = nn.Linear(16, 96)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU("tanh"), nn.Linear(32, 16))
        self.out = nn.Linear(16, 48)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        a, b, c, d, e, f = self.modulation(F.silu(time_embedding(t)))[:, None].chunk(6, -1)
        words = self.patches(x).flatten(2).mT
        y = F.layer_norm(words, (16,)) * (1 + a) + b
        words = words + c * self.attention(y, y, y, need_weights=False)[0]
        words = words + f * self.mlp(F.layer_norm(words, (16,)) * (1 + d) + e)
        return F.fold(self.out(words).mT, (16, 16), 4, stride=4)


class YoloHead(nn.Module):
    """Boxes on a grid: centres by a sigmoid, sides by anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 3 * 9, 3, 2, 1)
        )
        self.register_buffer("anchors", torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        n, _, h, w = y.shape
        y = y.view(n, 3, 9, h, w).permute(0, 1, 3, 4, 2)
        rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        centre = (y[..., :2].sigmoid() * 2 - 0.5 + torch.stack([columns, rows], -1)) * 4
        side = (y[..., 2:4].sigmoid() * 2) ** 2 * self.anchors[:, None, None]
        return torch.cat([centre, side, y[..., 4:].sigmoid()], -1).flatten(1, 3)


class RetinaNet(nn.Module):
    """A pyramid with shared heads, boxes decoded from anchors, the best of them kept."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList([nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)])
        self.side = nn.Conv2d(8, 8, 1)
        self.head = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        high = F.relu(self.levels[0](x))
        low = F.relu(self.levels[1](high))
        high = self.side(high) + F.interpolate(low, size=high.shape[-2:], mode="bilinear")
        found = torch.cat([self.head(t).flatten(2).mT for t in (high, low)], 1)
        anchors = torch.cat([self._anchors(t) for t in (high, low)])
        centre = anchors[:, :2] + found[..., :2] * anchors[:, 2:]
        side = anchors[:, 2:] * found[..., 2:4].clamp(max=4).exp()
        boxes = torch.cat([centre - side / 2, centre + side / 2], -1).clamp(0, 16)
        best = found[..., 4].topk(5)
        return torch.gather(boxes, 1, best.indices[..., None].expand(-1, -1, 4)), best.values

    @staticmethod
    def _anchors(x: Tensor) -> Tensor:
        step = 16 / x.shape[-1]
        at = (torch.arange(x.shape[-1]) + 0.5) * step
        grid = torch.cartesian_prod(at, at)
        return torch.cat([grid, torch.full_like(grid, 2 * step)], -1)


class FNO(nn.Module):
    """A Fourier layer: the lowest modes of a field, mixed by complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3, 4, 4, 2))
        self.beside = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        modes = torch.fft.rfft2(x)
        weight = torch.view_as_complex(self.weight)
        mixed = torch.zeros_like(modes)
        mixed[..., :4, :4] = torch.einsum("bixy,ioxy->boxy", modes[..., :4, :4], weight)
        return F.gelu(torch.fft.irfft2(mixed, s=x.shape[-2:]) + self.beside(x))


class ComplexLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 2))

    def forward(self, x: Tensor) -> Any:
        z = torch.complex(x, x.flip(-1)) @ torch.view_as_complex(self.weight)
        z = z * torch.sigmoid(z.abs())
        return z, z.real + z.conj().imag, z.abs(), torch.linalg.vector_norm(z, dim=-1)


class VAE(nn.Module):
    """Given its noise; the loss is the bound on the likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Flatten())
        self.code, self.decode = nn.Linear(128, 16), nn.Linear(8, 128)
        self.image = nn.ConvTranspose2d(8, 3, 4, 4)

    def forward(self, x: Tensor, noise: Tensor) -> Any:
        mean, log_variance = self.code(self.encode(x)).chunk(2, -1)
        z = mean + noise * torch.exp(0.5 * log_variance)
        y = self.image(F.relu(self.decode(z)).view(-1, 8, 4, 4))
        kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(-1)
        return y, kl.mean() + F.binary_cross_entropy_with_logits(y, x.sigmoid())


class GAN(nn.Module):
    """Losses of generator and discriminator, with spectral normalisation and a penalty."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Sequential(
            nn.Linear(8, 64), nn.Unflatten(1, (4, 4, 4)), nn.BatchNorm2d(4), nn.ReLU(),
            nn.ConvTranspose2d(4, 3, 4, 4), nn.Tanh(),
        )  # fmt: skip
        self.judge = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.LeakyReLU(0.2), nn.Flatten(),
                                   nn.Linear(128, 1))  # fmt: skip

    def forward(self, x: Tensor, noise: Tensor) -> Any:
        made = self.make(noise)
        real, false = self.judge(x), self.judge(made.detach())
        judged = F.softplus(-real).mean() + F.softplus(false).mean()
        return judged, F.softplus(-self.judge(made)).mean(), made


class Flow(nn.Module):
    """Affine couplings: forwards with the log-determinant, and backwards again."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Any:
        a, b, determinant = *x.chunk(2, -1), torch.zeros(())
        for net in self.nets:
            scale, shift = net(a).chunk(2, -1)
            a, b = b * scale.tanh().exp() + shift, a
            determinant = determinant + scale.tanh().sum(-1)
        z = torch.cat([a, b], -1)
        for net in reversed(self.nets):
            scale, shift = net(b).chunk(2, -1)
            a, b = b, (a - shift) * (-scale.tanh()).exp()
        return z, determinant, torch.cat([a, b], -1)


class NeRF(nn.Module):
    """Points along rays, encoded by waves, and colours summed through transmittance."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, origin: Tensor, direction: Tensor) -> Any:
        depth = torch.linspace(1, 3, 8)
        points = origin[:, None] + direction[:, None] * depth[:, None]
        waves = points[..., None] * 2.0 ** torch.arange(6)
        found = self.net(torch.cat([waves.sin(), waves.cos()], -1).flatten(-2))
        solid = 1 - torch.exp(-F.softplus(found[..., 3]) * 0.25)
        seen = torch.cumprod(torch.cat([torch.ones_like(solid[:, :1]), 1 - solid[:, :-1]], 1), 1)
        return ((solid * seen)[..., None] * found[..., :3].sigmoid()).sum(1)


class Siamese(nn.Module):
    """One network over two views, with contrastive and triplet losses."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.GELU(), nn.Flatten(), nn.Linear(128, 8))

    def forward(self, x: Tensor) -> Any:
        a, b = (F.normalize(self.net(t), dim=-1) for t in (x, x.flip(-1)))
        scores = a @ b.T / 0.1
        clip = F.cross_entropy(scores, torch.arange(len(x)))
        return clip, F.triplet_margin_loss(a, b, b.roll(1, 0)), F.cosine_similarity(a, b)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.across = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.along = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = x + self.across(self.norms[0](x).mT).mT
        return x + self.along(self.norms[1](x))


class NFNet(nn.Module):
    """Standardised weights, group norm, squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3))
        self.gain = nn.Parameter(torch.ones(8, 1, 1, 1))
        self.norm = nn.GroupNorm(4, 8)
        self.squeeze, self.excite = nn.Linear(8, 4), nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        weight = self.gain * (self.weight - mean) * torch.rsqrt(variance * 27 + 1e-4)
        x = F.gelu(self.norm(F.conv2d(F.pad(x, (1, 1, 1, 1), "reflect"), weight)))
        gate = self.excite(F.relu(self.squeeze(x.mean((2, 3))))).sigmoid()
        return F.max_pool2d(x * gate[..., None, None], 3, 2, 1)


class Capsules(nn.Module):
    """Routing by agreement, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 4, 4)
        self.weight = nn.Parameter(torch.randn(64, 5, 6, 4) * 0.3)

    @staticmethod
    def squash(x: Tensor) -> Tensor:
        square = (x * x).sum(-1, keepdim=True)
        return x * square / (1 + square) * torch.rsqrt(square + 1e-6)

    def forward(self, x: Tensor) -> Tensor:
        low = self.squash(self.first(x).reshape(len(x), 64, 4))
        votes = torch.einsum("ijkl,bil->bijk", self.weight, low)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            high = self.squash((logits.softmax(-1)[..., None] * votes).sum(1))
            logits = logits + (votes * high[:, None]).sum(-1)
        return high


class SpatialTransformer(nn.Module):
    """An affine grid from the image itself, sampled bilinearly; a shuffle of pixels behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.where = nn.Sequential(nn.Flatten(), nn.Linear(768, 6))
        self.convolve = nn.Conv2d(3, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        theta = torch.eye(2, 3) + 0.1 * self.where(x).view(-1, 2, 3).tanh()
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        return F.pixel_shuffle(self.convolve(F.grid_sample(x, grid, align_corners=False)), 2)


class DenseNet(nn.Module):
    """Each layer reads all before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(3 + 4 * k), nn.ReLU(), nn.Conv2d(3 + 4 * k, 4, 3, 1, 1))
            for k in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return F.adaptive_avg_pool2d(x, 3)


def _with_noise(n: int) -> dict[str, Any]:
    return {**image(n), "noise": torch.randn(n, 8)}


def _rays(n: int) -> dict[str, Any]:
    return {"origin": torch.randn(n, 3), "direction": torch.randn(n, 3)}


def _row(
    name: str, family: str, build: Callable[[], nn.Module], inputs: Any = image, **options: Any
) -> Entry:
    return Entry(name, family, build, inputs, **{"sizes": BATCHES, "kinds": SIZED, **options})


IMAGES = [
    _row("u-net", "diffusion", UNet, noised),
    _row("dit", "diffusion", DiT, noised),
    _row("yolo head", "detection", YoloHead),
    _row("retinanet", "detection", RetinaNet),
    _row("fno", "complex", FNO),
    _row("complex linear", "complex", ComplexLinear, latent),
    _row("vae", "generative", VAE, _with_noise),
    _row("gan", "generative", GAN, _with_noise),
    _row("normalising flow", "generative", Flow, latent),
    _row("nerf", "generative", NeRF, _rays),
    _row("siamese", "vision", Siamese),
    _row("mlp-mixer", "vision", Mixer),
    _row("nf-net", "vision", NFNet),
    _row("capsules", "vision", Capsules),
    _row("spatial transformer", "vision", SpatialTransformer),
    _row("densenet", "vision", DenseNet),
]
