"""A result does not depend on how many threads computed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests import draws
from tests.stages import compiled

X = torch.randn(96, 1031, generator=draws.generator(0))
W = torch.randn(1031, generator=draws.generator(1))

FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "pointwise": lambda x, w: F.gelu(x * w) + x,
    "norms": lambda x, w: F.layer_norm(x, (1031,), w, w) + F.rms_norm(x, (1031,), w),
    "softmax": lambda x, w: (x.softmax(-1), x.softmax(0), x.view(3, -1).softmax(-1)),
    "sums": lambda x, w: (x.sum(), x.sum(0), x.sum(1), x.var(), x.view(3, -1).logsumexp(-1)),
    "transpose": lambda x, w: x.t().contiguous().exp(),
    "scan": lambda x, w: (x.cumsum(0), x.cumsum(1)),
    "join": lambda x, w: torch.cat([x.exp(), F.pad(x, (3, 0)), x.tanh()], 1),
    "half": lambda x, w: (x.bfloat16() * w.bfloat16()).softmax(-1).sum(0),
    "random": lambda x, w: torch.zeros_like(x).scatter_add(1, (x * 100).long().abs(), x),
}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_threads_change_no_bit(name: str, threads: None) -> None:
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        result = compiled(FUNCTIONS[name])(X, W)
        found.append(result if isinstance(result, (tuple, list)) else [result])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
