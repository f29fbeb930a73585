"""Decompositions of our own, called as they are: some are in force with an older torch alone."""

from __future__ import annotations

import pytest
import torch

from litz.capture.decompositions import _attention_in_doubles

aten = torch.ops.aten


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 0), (2, 3, 5, 0), (2, 3, 5, 4)])
def test_attention_in_doubles(shape: tuple[int, ...], causal: bool) -> None:
    """Heads of no numbers have no usual scale (found by the fuzzer, seed 9000671, torch 2.11)."""
    q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    found, total = _attention_in_doubles(q, k, v, is_causal=causal)
    expected, _ = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=causal)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert total.dtype is torch.float64
