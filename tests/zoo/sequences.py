"""Hand-written networks over sequences: recurrent, convolutional, state-space, speech, mixtures.

In: nothing. Out: `SEQUENCES`, entries. Sizes are lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.entry import BOTH, SIZED, Entry

WIDTH = 16


def signal(n: int) -> dict[str, Any]:
    return {"x": torch.randn(2, n, WIDTH)}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.cell = kind(WIDTH, 12, batch_first=True, **options)

    def forward(self, x: Tensor) -> Any:
        return self.cell(x)


class CellLoop(nn.Module):
    """A cell, step by step, in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(WIDTH, 12)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], 12)
        states = []
        for t in range(6):
            h, c = self.cell(x[:, t], (h, c))
            states.append(h)
        return torch.stack(states, 1)


class QRNN(nn.Module):
    """Gates by convolution, then a running weighted sum."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv1d(WIDTH, 3 * WIDTH, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        z, f, o = self.gates(x.mT)[..., :-1].chunk(3, 1)
        keep = torch.cumsum(F.logsigmoid(f), -1)
        state = torch.exp(keep) * torch.cumsum(torch.exp(-keep) * (1 - f.sigmoid()) * z.tanh(), -1)
        return (o.sigmoid() * state).mT


class TCN(nn.Module):
    """WaveNet: dilated causal convolutions with gates, residual and skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.gated = nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 2, dilation=2**k) for k in range(3))
        self.out = nn.ModuleList(nn.Conv1d(WIDTH, 2 * WIDTH, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x, total = x.mT, torch.zeros(())
        for gated, out in zip(self.gated, self.out, strict=True):
            a, b = gated(F.pad(x, (gated.dilation[0], 0))).chunk(2, 1)
            residual, skip = out(a.tanh() * b.sigmoid()).chunk(2, 1)
            x, total = x + residual, total + skip
        return F.relu(total)


class S4(nn.Module):
    """A diagonal state-space model: its kernel as a sum of complex exponentials, by FFT."""

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        self.log_step = nn.Parameter(torch.rand(WIDTH, 1) - 3)
        self.decay = nn.Parameter(torch.rand(WIDTH, states))
        self.frequency = nn.Parameter(torch.randn(WIDTH, states))
        self.weight = nn.Parameter(torch.randn(WIDTH, states, 2))
        self.skip = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        pole = torch.complex(-self.decay.exp(), self.frequency) * self.log_step.exp()
        powers = torch.exp(pole[..., None] * torch.arange(n, device=x.device))
        kernel = 2 * torch.einsum("hs,hsl->hl", torch.view_as_complex(self.weight), powers).real
        spectrum = torch.fft.rfft(x.mT, 2 * n) * torch.fft.rfft(kernel, 2 * n)
        return torch.fft.irfft(spectrum, 2 * n)[..., :n].mT + x * self.skip


class SelectiveScan(nn.Module):
    """Mamba's recurrence, step by step."""

    def __init__(self, states: int = 4) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 2 * states + WIDTH)
        self.log_decay = nn.Parameter(torch.randn(WIDTH, states))

    def forward(self, x: Tensor) -> Tensor:
        step, b, c = self.project(x).split([WIDTH, 4, 4], -1)
        step = F.softplus(step)
        state = x.new_zeros(x.shape[0], WIDTH, 4)
        rows = []
        for t in range(6):
            decay = torch.exp(-step[:, t, :, None] * self.log_decay.exp())
            state = decay * state + (step[:, t] * x[:, t])[..., None] * b[:, t, None]
            rows.append((state * c[:, t, None]).sum(-1))
        return torch.stack(rows, 1)


class Conformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = self._feed(), self._feed()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.inside = nn.Conv1d(WIDTH, 2 * WIDTH, 1)
        self.deep = nn.Conv1d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.batch = nn.BatchNorm1d(WIDTH)
        self.outside = nn.Conv1d(WIDTH, WIDTH, 1)

    def _feed(self) -> nn.Module:
        layers = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.SiLU(), nn.Linear(32, WIDTH)
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = F.silu(self.batch(self.deep(F.glu(self.inside(x.mT), 1))))
        x = x + self.outside(y).mT
        return x + 0.5 * self.last(x)


class MoE(nn.Module):
    """Two experts of four for each word, each given the words that chose it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights, chosen = self.router(rows).softmax(-1).topk(2)
        result = torch.zeros_like(rows)
        for k, expert in enumerate(self.experts):
            where, rank = torch.where(chosen == k)
            result = result.index_add(0, where, expert(rows[where]) * weights[where, rank, None])
        return result.view_as(x)


class CTC(nn.Module):
    """Recurrent, with the loss of connectionist temporal classification."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(WIDTH, 12, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 9)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.cell(x)[0]).log_softmax(-1).transpose(0, 1)
        lengths = torch.full((2,), x.shape[1], dtype=torch.long)
        return F.ctc_loss(scores, labels, lengths, torch.tensor([3, 2]))


class LinearAttention(nn.Module):
    """Causal attention without softmax, by running sums; with rotary positions."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        angle = torch.arange(x.shape[1], device=x.device)[:, None] * torch.linspace(1, 0.1, 8)
        q, k = (self._turn(F.elu(t) + 1, angle) for t in (q, k))
        state = torch.cumsum(k[..., None] * v[..., None, :], 1)
        return torch.einsum("bnd,bnde->bne", q, state) / x.shape[1]

    @staticmethod
    def _turn(x: Tensor, angle: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class PointerNetwork(nn.Module):
    """Attention over the inputs as the distribution over outputs, and its entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Any:
        states, last = self.encode(x)
        scores = self.score(torch.tanh(self.query(last[0])[:, None] + self.key(states)))[..., 0]
        chance = scores.softmax(-1)
        return chance, -(chance * scores.log_softmax(-1)).sum(-1), scores.argmax(-1)


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _source(n: int) -> dict[str, Any]:
    return {"src": torch.randn(2, n, WIDTH)}


def _labelled(n: int) -> dict[str, Any]:
    return {**signal(n), "labels": torch.randint(1, 9, (2, 3))}


def _row(name: str, family: str, build: Callable[[], nn.Module], **options: Any) -> Entry:
    return Entry(name, family, build, **{"inputs": signal, "kinds": SIZED, **options})


SEQUENCES = [
    _row("lstm", "recurrent", lambda: Recurrent(nn.LSTM, num_layers=2)),
    _row("gru", "recurrent", lambda: Recurrent(nn.GRU)),
    _row("rnn", "recurrent", lambda: Recurrent(nn.RNN)),
    _row(
        "bidirectional lstm",
        "recurrent",
        lambda: Recurrent(nn.LSTM, bidirectional=True, proj_size=6),
    ),
    _row("lstm cell loop", "recurrent", CellLoop),
    _row("qrnn", "recurrent", QRNN),
    _row("pointer network", "recurrent", PointerNetwork),
    _row("ctc", "speech", CTC, inputs=_labelled),
    _row("wavenet", "speech", TCN),
    _row("conformer", "speech", Conformer),
    _row("s4", "state-space", S4),
    _row("selective scan", "state-space", SelectiveScan),
    _row("linear attention", "state-space", LinearAttention),
    _row("mixture of experts", "mixture", MoE),
    _row("transformer encoder", "encoder", _transformer, inputs=_source, kinds=BOTH),
]
