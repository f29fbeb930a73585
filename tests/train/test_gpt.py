"""A small GPT, trained for 200 steps on generated text, ends where eager's training does."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import litz
from tests import draws

WORDS, WIDTH, HEADS, LAYERS, LENGTH, BATCH, STEPS = 48, 64, 4, 2, 32, 8, 200
SEEDS = range(5)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        q, k, v = (t.transpose(1, 2) for t in split.unbind(2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).flatten(2)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.between(x)))), 0.1, self.training)


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places.weight[: words.shape[1]]
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def _text(length: int) -> torch.Tensor:
    """Each word follows from the two before it, most of the time."""
    draw = draws.generator(0)
    table = torch.randint(0, WORDS, (WORDS, WORDS), generator=draw)
    chance = torch.rand(length, generator=draw) < 0.1
    other = torch.randint(0, WORDS, (length,), generator=draw)
    words = [0, 1]
    for k in range(length - 2):
        words.append(int(other[k] if chance[k] else table[words[-2] % 4, words[-1]]))
    return torch.tensor(words)


def _trained(seed: int, backend: str) -> float:
    """The mean loss of the last twenty steps."""
    draws.seed(seed)
    text, model = _text(20_000), GPT()
    run = model if backend == "eager" else litz.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    starts = torch.randint(0, len(text) - LENGTH - 1, (STEPS, BATCH))
    losses = []
    for start in starts:
        window = torch.stack([text[s : s + LENGTH + 1] for s in start])
        logits = run(window[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[-20:]) / 20


def test_two_hundred_steps_end_within_eagers_spread() -> None:
    """Dropout draws other numbers than eager's, so no step is the same; where it ends has to be."""
    eager = [_trained(seed, "eager") for seed in SEEDS]
    ours = _trained(0, "litz")
    spread = max(eager) - min(eager)
    assert ours < 3.0  # it has learned: the words by themselves give 3.9
    assert abs(ours - eager[0]) <= spread, (ours, eager)
