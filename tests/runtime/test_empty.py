"""Tensors without elements: as inputs, in between, as results, and as what ATen's calls read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

from tests import draws
from tests.stages import compiled, copied

Function = Callable[..., Any]


def _no_rows() -> torch.Tensor:
    return torch.zeros(0, dtype=torch.long)


def _both(x: torch.Tensor) -> Any:
    y = x + 1
    return y, y.sort(-1).values


# Each is a graph: kernels, views and calls side by side, so that empty tensors pass between them.
GRAPHS: dict[str, Function] = {
    "read by a call": lambda x: (x + 1).sort(-1).values,
    "shown, and read by a call": _both,
    "calls around kernels": lambda x: ((x.sort(-1).values * 2).sort(0).values + 1).argsort(-1),
    "pointwise": lambda x: (x.exp(), (x > 0) & (x < 1), x.half() * 2, x.long() // 3, x.clamp(0, 1)),
    "joined": lambda x: (
        torch.cat([x, x + 1]), torch.cat([x.sort(-1).values, x], -1), torch.stack([x, x], 1),
        F.pad(x + 1, (1, 2)), F.pad(x.sort(-1).values, (1, 2)), x.flip(0), x.roll(1, -1),
    ),
    "reduced": lambda x: (
        x.sum(), x.sum(0), x.sum(-1, keepdim=True), x.mean(0), x.prod(-1), (x > 0).any(0),
        (x > 0).all(-1), (x + 1).sort(0).values.sum(0), x.norm(dim=0),
    ),
    "rows": lambda x: (
        x.softmax(-1), F.log_softmax(x, 0), x.cumsum(0), x.cumprod(-1), x.logcumsumexp(0),
        F.layer_norm(x, x.shape[-1:]), (x.softmax(0) + 1).sort(0).values,
    ),
    "views": lambda x: (
        x.transpose(0, -1) + 1, x.reshape(-1).sort().values, x[1:] * 2, x[..., :0] + 1,
        x.unsqueeze(0).expand(3, *x.shape) + 1, (x + 1).transpose(0, -1).sort(0).values,
    ),
    "products": lambda x: (
        x.flatten(1) @ x.flatten(1).t(), (x + 1).flatten(1).t() @ (x * 2).flatten(1),
        F.linear(x.exp(), torch.ones(3, x.shape[-1]), torch.ones(3)),
        (x.flatten(1) @ x.flatten(1).t()).sort(-1).values + 1,
    ),
    "places": lambda x: (
        x[_no_rows()], x.index_select(-1, _no_rows()), x.scatter_add(0, x[:0].long(), x[:0]),
        x.index_add(0, _no_rows(), x[:0]), torch.slice_scatter(x, x[:0] + 1, 0, 0, 0),
        F.one_hot(x.long().abs() % 3, 3), torch.searchsorted(torch.arange(4.0), x * 2),
    ),
}  # fmt: skip
SHAPES = [(0, 3), (4, 0), (0, 0), (0, 3, 5), (4, 0, 5), (4, 3, 0), (2, 0, 3, 0), (4, 3)]


def _same(found: Any, expected: Any) -> None:
    for ours, theirs in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        assert not theirs.numel() or ours.stride() == theirs.stride()


@pytest.mark.parametrize("options", [{}, {"fallback_by_default": True}], ids=["ours", "aten"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_zero_in_each_position(name: str, shape: tuple[int, ...], options: Any) -> None:
    x = torch.randn(shape, generator=draws.generator(0))
    run = compiled(GRAPHS[name], **options)
    for _ in range(2):
        _same(run(copied(x)), GRAPHS[name](copied(x)))


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        yield


OPS: dict[str, Function] = {
    "a kernel": lambda y: y * 2 + 1,
    "a call": lambda y: (y + 1).sort(0).values,
    "both": lambda y: ((y.sort(0).values * 2).sort(0).values, y.sum(), torch.cat([y, y + 1])),
    "sums": lambda y: (y.sum(0), y.softmax(0), y.cumsum(0), F.pad(y, (0, 0, 1, 1))),
    "a product": lambda y: (y.t() @ (y + 1), (y + 1) @ torch.ones(y.shape[1], 3)),
    "scattered": lambda y: torch.zeros(4, y.shape[1]).index_add(
        0, torch.zeros(y.shape[0], dtype=torch.long), y
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_rows_that_no_element_chose(name: str) -> None:
    """What is found is as long as the data says: it may be nothing at all."""

    def chosen(x: torch.Tensor) -> Any:
        return OPS[name](x[x[:, 0] > 0])

    fast = torch.compile(chosen, backend="litz", fullgraph=True, options={"on_error": "raise"})
    x = torch.randn(6, 5, generator=draws.generator(0))
    for given in (x, -x.abs(), x.abs(), -x.abs(), x):
        _same(fast(given), chosen(given))


@pytest.mark.parametrize("name", OPS)
def test_sizes_that_come_to_nothing(name: str) -> None:
    """`s0 - 3` is no size of an input: it may be zero at a call, or when the graph is compiled."""

    def behind(x: torch.Tensor) -> Any:
        return OPS[name](x[3:])

    for first in (9, 3):
        torch._dynamo.reset()
        fast = torch.compile(behind, backend="litz", dynamic=True, options={"on_error": "raise"})
        for rows in (first, 7, 3, 12):
            x = torch.randn(rows, 5, generator=draws.generator(rows))
            _same(fast(x), behind(x))
