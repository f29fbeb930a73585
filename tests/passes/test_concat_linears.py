"""Linears of one input become one product, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import litz
from litz.report import Explanation
from tests import draws

ON = {"cpp.enable_concat_linear": True, "on_error": "raise"}


class Heads(nn.Module):
    """Queries, keys and values with attention, or a gate; `kind` says which."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        bias = kind != "gate"
        self.q, self.k = nn.Linear(48, 64, bias=bias), nn.Linear(48, 40, bias=bias)
        self.v = nn.Linear(48, 64, bias=bias)

    def forward(self, x: Tensor) -> object:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.kind == "gate":
            return F.silu(q) * v
        if self.kind == "shown":
            return q, k, v
        q, v = (t.view(2, 20, 4, 16).transpose(1, 2) for t in (q, v))
        return F.scaled_dot_product_attention(q, v, v).sum(1), k.relu()


def _products(notes: Explanation) -> int:
    return sum(s.choice.gemm is not None for g in notes.graphs for s in g.scheduled)


@pytest.mark.parametrize(("kind", "products"), [("attention", 1), ("gate", 1), ("shown", 3)])
def test_one_product_that_follows_its_parameters(kind: str, products: int) -> None:
    draws.seed(0)
    model, x = Heads(kind), torch.randn(2, 20, 48)
    torch._dynamo.reset()
    with torch.no_grad(), litz.config.patch(ON):
        assert _products(litz.explain(model, x)) == products
    torch._dynamo.reset()
    run = torch.compile(model, backend="litz", options=ON)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        model.k.weight.mul_(2)
        model.v.weight.data.mul_(3)
        torch.testing.assert_close(run(x), model(x))


def test_it_is_off_by_default() -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        assert _products(litz.explain(Heads("gate"), torch.randn(2, 20, 48))) == 2
