"""Sparse, quantised and complex tensors, and shapes that depend on data: as eager, through ATen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests import draws

X = torch.randn(8, 8, generator=draws.generator(0))

FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse inside": lambda x: torch.sparse.mm(x.relu().to_sparse(), x) + 1,
    "quantised": lambda x: torch.quantize_per_tensor(x + 1, 0.1, 3, torch.quint8).dequantize() * 2,
    "rounded as if quantised": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 255),
    "complex": lambda x: torch.view_as_real(torch.fft.fft(x)).abs().sum(),
    "unique": lambda x: x.round().unique() + 1,
    "nonzero": lambda x: (x > 0).nonzero() * 2,
}


@pytest.mark.filterwarnings("ignore")  # torch's own: quantised types are on their way out
@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_kinds(name: str) -> None:
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    torch.testing.assert_close(torch.compile(function, backend="litz")(X), function(X))


@pytest.mark.filterwarnings("ignore")  # Litz says that it runs such a graph as eager
def test_a_sparse_input() -> None:
    def function(s: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(s, x) + 1

    torch._dynamo.reset()
    sparse = X.relu().to_sparse()
    torch.testing.assert_close(
        torch.compile(function, backend="litz")(sparse, X), function(sparse, X)
    )
