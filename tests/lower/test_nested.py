"""Jagged nested tensors: what is done to their rows is compiled; their raggedness is handed on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests import draws

WEIGHT = torch.randn(4, 4, generator=draws.generator(1))
LENGTHS = ((3, 5), (2, 7), (6, 1, 4))


def _nested(lengths: Sequence[int], requires_grad: bool) -> torch.Tensor:
    generator = draws.generator(sum(lengths))
    rows = [torch.randn(n, 4, generator=generator) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=requires_grad)


def _attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.unflatten(-1, (2, 2)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2)


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "elementwise": lambda x: x.sin() * 2 + x,
    "linear": lambda x: F.linear(x, WEIGHT).relu(),
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, (4,)),
    "attention": _attention,
    "rows": lambda x: x.values().tanh() * 2,
    "one by one": lambda x: [t.exp() for t in x.unbind()],
    "padded": lambda x: torch.nested.to_padded_tensor(x, 0.0) * 2,
    "mean": lambda x: x.mean(),
}


def _parts(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [t for v in values for t in (v.unbind() if v.is_nested else [v])]


def _square(value: Any) -> torch.Tensor:
    return torch.stack([t.square().sum() for t in _parts(value)]).sum()


@pytest.mark.filterwarnings("ignore:.*nested:UserWarning")  # torch's own: the API may change
@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_gradients(name: str) -> None:
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    for lengths in LENGTHS:
        x = _nested(lengths, False)
        torch.testing.assert_close(_parts(run(x)), _parts(function(x)), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*nested:UserWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_with_gradients(name: str) -> None:
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    for lengths in LENGTHS[:2]:
        gradients = []
        for each in (run, function):
            x = _nested(lengths, True)
            _square(each(x)).backward()
            assert x.grad is not None
            gradients.append(x.grad.values())
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
