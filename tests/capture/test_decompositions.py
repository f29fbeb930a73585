"""Decompositions of ours: what eager refuses is refused, and results lie as eager's do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
from litz.capture.decompositions import _attention_f64, decompositions
from tests import draws
from tests.stages import compiled

aten = torch.ops.aten

PLACES = torch.tensor([0, 2])
BYTES = torch.arange(4, dtype=torch.int8)
# Numbers that a type does not hold, and types that a kernel does not take.
REFUSED: dict[str, Callable[[], Any]] = {
    "a threshold": lambda: F.threshold(BYTES, 300, 5),
    "a value below a threshold": lambda: F.threshold(BYTES, 3, 500),
    "a threshold that is NaN": lambda: F.threshold(BYTES, math.nan, 5),
    "index_fill": lambda: BYTES.index_fill(0, PLACES, 300),
    "index_fill with NaN": lambda: BYTES.index_fill(0, PLACES, math.nan),
    "truths between two limits": lambda: torch.clamp(BYTES > 1, BYTES > 2, BYTES > 0),
    "a mean of truths": lambda: (BYTES > 1).index_reduce(0, PLACES, BYTES[:2] > 0, "mean"),
    "a batch norm of integers": lambda: F.batch_norm(
        BYTES.view(2, 2), torch.zeros(2, dtype=torch.int8), torch.ones(2, dtype=torch.int8)
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    litz.reset()
    with pytest.raises(RuntimeError) as expected:
        REFUSED[name]()
    with pytest.raises(type(expected.value)) as found:
        torch.compile(REFUSED[name], backend="litz", options={"on_error": "raise"})()
    assert str(expected.value).splitlines()[0] in str(found.value)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_a_channel_shuffle_lies_as_its_operand_does(rank: int, last: bool) -> None:
    draws.seed(1)
    x = torch.randn(2, 6, *[3, 4, 5][: rank - 2])
    if last and rank > 3:
        x = x.to(memory_format=torch.channels_last if rank == 4 else torch.channels_last_3d)
    litz.reset()
    compiled = torch.compile(F.channel_shuffle, backend="litz", options={"on_error": "raise"})
    found, expected = compiled(x, 3), F.channel_shuffle(x, 3)
    assert torch.equal(found, expected) and found.stride() == expected.stride()


def test_complex_numbers_that_are_not_finite_are_replaced() -> None:
    x = torch.tensor([complex(math.nan, 1), complex(math.inf, -math.inf), 2 - 1j])
    litz.reset()
    compiled = torch.compile(torch.nan_to_num, backend="litz", options={"on_error": "raise"})
    assert torch.equal(compiled(x), torch.nan_to_num(x))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 0), (2, 3, 5, 0), (2, 3, 5, 4)])
def test_attention_in_doubles(shape: tuple[int, ...], causal: bool) -> None:
    """Heads of no numbers have no usual scale (found by the fuzzer, seed 9000671, torch 2.11)."""
    q, k, v = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    found, total = _attention_f64(q, k, v, is_causal=causal)
    expected, _ = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=causal)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert total.dtype is torch.float64


def test_attention_in_doubles_is_eagers_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the strides of its queries, by one kernel, and with its gradients, as with torch 2.11."""
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    monkeypatch.setitem(decompositions(), op, _attention_f64)
    given = [torch.randn(2, 7, 3, 8, dtype=torch.float64).transpose(1, 2) for _ in range(3)]
    attention = F.scaled_dot_product_attention
    run = compiled(attention)
    found, expected = run(*given), attention(*given)
    assert found.stride() == expected.stride() and not run.aten_ops
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    litz.reset()
    trains = torch.compile(attention, backend="litz", options={"on_error": "raise"})
    leaves = [t.requires_grad_() for t in given]
    grads = [torch.autograd.grad(f(*leaves).sin().sum(), leaves) for f in (trains, attention)]
    torch.testing.assert_close(*grads, rtol=1e-12, atol=1e-12)
