"""Gradients of losses at numbers that are not finite: NaN and zeros are where eager has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
from tests import draws

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.7, -0.7, 3.0]


def _gradient(loss: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    given = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(given).sum(), given)
    return found


def _held_against_eager(loss: Callable[..., Any], x: torch.Tensor) -> None:
    litz.reset()
    compiled = torch.compile(loss, backend="litz", options={"on_error": "raise"})
    found, expected = _gradient(compiled, x), _gradient(loss, x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert torch.equal(found.signbit()[expected == 0], expected.signbit()[expected == 0])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_smooth_l1_at_nan_has_no_gradient_of_zero(reduction: str, dtype: torch.dtype) -> None:
    x = torch.tensor(SPECIAL, dtype=dtype)
    target = torch.zeros_like(x)
    _held_against_eager(lambda x: F.smooth_l1_loss(x, target, reduction=reduction, beta=0.7), x)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 3, 2, 2)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_what_is_infinite_stays_with_the_targets(shape: tuple[int, ...], reduction: str) -> None:
    """A weight, or the gradient that comes in; and what is ignored has none."""
    draws.seed(1)
    x = torch.randn(shape)
    target = torch.randint(0, 2, shape[:1] * (len(shape) > 1) + shape[2:])
    weight = torch.tensor([1.0, 2.0, math.inf])
    _held_against_eager(lambda x: F.nll_loss(x, target, weight, reduction=reduction), x)
    _held_against_eager(lambda x: F.nll_loss(x, target, reduction=reduction) * math.inf, x)
    _held_against_eager(lambda x: F.nll_loss(x, target, ignore_index=1, reduction="sum"), x)
