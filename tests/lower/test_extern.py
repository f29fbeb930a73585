"""What stays with ATen runs right inside a compiled graph: control flow, custom ops, complex."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import map, scan, while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import litz
from tests import draws

RAISE = {"on_error": "raise"}


@torch.library.custom_op("litz_tests::add_one_", mutates_args={"x"})
def _add_one(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("litz_tests::double", mutates_args=())
def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@_double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _custom(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    _add_one(y)
    return _double(y) + 1


def _autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x.t()).softmax(-1)


# function -> what is left to ATen in it
CASES: dict[str, tuple[Callable[[torch.Tensor], Any], set[str]]] = {
    "cond": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x - 1, (x * 2,)) * 3,
        {"higher_order.cond"},
    ),
    "while_loop": (
        lambda x: (
            while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x.exp()))[
                1
            ]
            + 1
        ),
        {"higher_order.while_loop"},
    ),
    "scan": (
        lambda x: scan(lambda c, y: (c + y, c * y), x[0] * 2, x)[1] + 1,
        {"higher_order.scan"},
    ),
    "map": (lambda x: map(lambda y: y.sin(), x * 2) + 1, {"higher_order.map_impl"}),
    "flex_attention": (
        lambda x: flex_attention(
            x[None, None], x[None, None], x[None, None], score_mod=lambda s, b, h, i, j: s + i - j
        ).relu(),
        {"higher_order.flex_attention", "aten.sort.stable"},
    ),
    "checkpoint": (lambda x: checkpoint(torch.sin, x, use_reentrant=False) * 2, set()),
    "custom_op": (_custom, {"higher_order.auto_functionalized_v2", "litz_tests.double.default"}),
    "effects": (
        lambda x: torch.linalg.inv(x @ x.t() + torch.eye(4)) + 1,
        {"aten.mm.default", "aten.linalg_inv_ex.default", "higher_order.with_effects"},
    ),
    "complex": (
        lambda x: torch.view_as_real(torch.fft.fft(x) * 2) + 1,
        {"aten._fft_r2c.default", "aten.mul.Tensor", "aten.view_as_real.default"},
    ),
    "autocast": (_autocast, {"aten.mm.default"}),
    "sort": (lambda x: x.sort(-1)[0] + 1, {"aten.sort.default"}),
    "topk": (lambda x: x.topk(2, -1)[0] * 2, {"aten.topk.default"}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_runs_inside_a_compiled_graph(case: str) -> None:
    function, left = CASES[case]
    x = torch.randn(4, 8, generator=draws.generator(0))
    litz.reset()
    explanation = litz.explain(function, x)
    assert not explanation.fallbacks
    assert set(explanation.aten_ops) <= left
    compiled = torch.compile(function, backend="litz", options=RAISE)
    torch.testing.assert_close(compiled(x), function(x))
