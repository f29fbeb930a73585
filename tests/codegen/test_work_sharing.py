"""Kernels of one launch, large and small: each point is computed once, on any number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

# Worth all threads, worth one, worth none; in an order that puts small ones between large ones.
SIZES = (1, 3_000_001, 7, 40_000, 1_500_000, 64, 200_000, 2, 999_999)


def _grown(tensors: list[Tensor], products: list[Tensor]) -> list[Tensor]:
    for tensor in tensors:
        tensor.add_(1)
    return [p @ p.t() for p in products]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_each_point_is_computed_once(threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        torch._dynamo.reset()
        tensors = [torch.zeros(n) for n in SIZES]
        products = [torch.randn(n, 96) for n in (200, 33, 500)]
        fast = torch.compile(_grown, backend="litz", options={"on_error": "raise"}, dynamic=False)
        for count in (1, 2):
            found = fast(tensors, products)
            assert all(bool((tensor == count).all()) for tensor in tensors)
        for one, exact in zip(found, _grown([], products), strict=True):
            torch.testing.assert_close(one, exact)
    finally:
        torch.set_num_threads(before)
