"""Losses of mixed types: results and gradients have eager's types, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests import draws

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LOSSES: dict[str, Loss] = {
    "soft margin": lambda x, y: F.soft_margin_loss(x, y.sign()),
    "soft margin, each": lambda x, y: F.soft_margin_loss(x, y.sign(), reduction="none"),
    "soft margin, used": lambda x, y: F.soft_margin_loss(x, y.sign()) * x.sum(),
    "smooth": lambda x, y: F.smooth_l1_loss(x, y),
    "mean square": lambda x, y: F.mse_loss(x, y),
}
CASES = [
    *itertools.product(LOSSES, [(F32, F64), (F64, F32)]),
    ("soft margin", (BF16, F32)),
    ("soft margin, each", (BF16, F32)),
]
# The backward of torch 2.11 wants one type of these losses, so that eager gets one there: autograd
# casts the gradient back, and results and gradients have the types of 2.13.
ONE_TYPE = ("mean square",) if torch.__version__ < "2.13" else ()
# Of eager's own results, in which these types differ from float64.
ROUNDING = {BF16: 2e-2, F32: 1e-5, F64: 1e-5}


@pytest.mark.parametrize(("name", "types"), CASES)
def test_mixed_types(name: str, types: tuple[torch.dtype, torch.dtype]) -> None:
    torch._dynamo.reset()
    generator = draws.generator(0)
    x, y = (torch.randn(6, 8, generator=generator).to(t) for t in types)
    x.requires_grad_()
    loss = LOSSES[name]
    wide = torch.promote_types(*types)
    expected = loss(x.to(wide), y.to(wide)) if name in ONE_TYPE else loss(x, y)
    gradients = torch.autograd.grad(expected.sum(), x)
    found = torch.compile(loss, backend="litz", options={"on_error": "raise"})(x, y)
    allowed = ROUNDING[types[0]]
    torch.testing.assert_close(found, expected, rtol=allowed, atol=allowed)
    slopes = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(slopes, gradients, rtol=allowed, atol=allowed)
