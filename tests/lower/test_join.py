"""Joins, padding, constants against eager: parts, types, empty ones, what is made from nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.lower.agreement import DTYPES, Function, agree, numbers


@pytest.mark.parametrize("count", range(2, 9))
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_of_parts(count: int, dim: int) -> None:
    """Few parts are chosen by position, many are stored one by one: both may be fused into."""
    parts = [numbers(torch.float32, 3, 4, 5, seed=k) for k in range(count)]
    table: dict[str, Function] = {
        "alone": lambda *p: torch.cat(p, dim),
        "computed": lambda *p: torch.cat([q.exp() for q in p], dim),
        "used": lambda *p: torch.cat(p, dim).sum(0) * 2,
        "shorter": lambda *p: torch.cat(
            [q.narrow(dim, 0, 3 - k % 2) for k, q in enumerate(p)], dim
        ),
        "stack": lambda *p: torch.stack(p, dim),
    }
    agree(table, *parts)


@pytest.mark.parametrize("count", [2, 7])
def test_cat_of_types_and_of_nothing(count: int) -> None:
    mixed = [numbers(d, 3, 4) for d in DTYPES[:count]]
    empty, odd = torch.empty(3, 0), torch.empty(0)
    table: dict[str, Function] = {
        "mixed": lambda e, o, *p: torch.cat(p, 1),
        "integers": lambda e, o, *p: torch.cat([p[0] > 0, (p[1] * 3).to(torch.int8)]),
        "empty part": lambda e, o, *p: torch.cat([p[0], e, p[0]], 1),
        "empty of rank one": lambda e, o, *p: torch.cat([o, p[0]], 1),
        "only empty": lambda e, o, *p: torch.cat([e, e], 1),
        "only one": lambda e, o, *p: torch.cat([e, p[0]], 1) + 1,
        "hstack": lambda e, o, *p: torch.hstack(p),
        "vstack": lambda e, o, *p: torch.vstack([p[0], p[0][0]]),
    }
    agree(table, empty, odd, *mixed)


PADS: dict[str, Function] = {
    "one": lambda x: F.pad(x, (1, 2)),
    "two": lambda x: F.pad(x, (1, 0, 0, 3)),
    "value": lambda x: F.pad(x, (2, 2), value=3),
    "negative": lambda x: F.pad(x, (-1, 2, 1, -2)),
    "cut": lambda x: F.pad(x, (-1, -1)),
    "nothing": lambda x: F.pad(x, (0, 0)),
    "reflect": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 2), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 2), mode="circular"),
    "computed": lambda x: F.pad((x * 2).relu(), (1, 1)).sum(-1),
    "twice": lambda x: F.pad(F.pad(x, (1, 1), value=1), (1, 1), value=2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_padding(dtype: torch.dtype) -> None:
    agree(PADS, numbers(dtype, 2, 4, 5), wide=True)


PLACED: dict[str, Function] = {
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y[1:3], 0, 1, 3),
    "slice_scatter step": lambda x, y: torch.slice_scatter(x, y[:, :2], 1, 0, 4, 2),
    "slice_scatter all": lambda x, y: torch.slice_scatter(x, y),
    "select_scatter": lambda x, y: torch.select_scatter(x, y[0], 0, -1),
    "diagonal_scatter": lambda x, y: torch.diagonal_scatter(x, y[0, :4]),
    "computed": lambda x, y: torch.slice_scatter(x * 2, (y + 1)[:2], 0, 2) + 1,
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 7),
    "where": lambda x, y: torch.where(y > 0, x, torch.tensor(2, dtype=x.dtype)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=str)
def test_parts_replaced(dtype: torch.dtype) -> None:
    agree(PLACED, numbers(dtype, 4, 5), numbers(dtype, 4, 5, seed=1), wide=True)


MADE: dict[str, Function] = {
    "arange": lambda x: torch.arange(7) + x[0].long(),
    "arange step": lambda x: torch.arange(3, -9, -2) * x.long()[:6],
    "arange float": lambda x: torch.arange(0, 1, 0.1)[:6] + x,
    "arange half": lambda x: torch.arange(6, dtype=torch.bfloat16) + x,
    "linspace": lambda x: torch.linspace(-1, 1, 6) * x,
    "full": lambda x: torch.full((2, 6), 3) + x,
    "full bool": lambda x: torch.full((6,), True) & (x > 0),
    "ones": lambda x: torch.ones(3, 6) - x,
    "zeros": lambda x: torch.zeros_like(x) + x,
    "eye": lambda x: torch.eye(6) * x,
    "eye wide": lambda x: torch.eye(4, 6, dtype=torch.int64) * x.long(),
    "new_full": lambda x: x.new_full((6,), 2.5) * x,
    "scalar": lambda x: torch.tensor(2.5) * x,
    "constant": lambda x: torch.tensor([1.0, 2, 3, 4, 5, 6]) * x,
    "constant twice": lambda x: (lambda c: c[0] * x + c[1])(torch.tensor([[2.0], [3.0]])),
    "outer": lambda x: torch.arange(6)[:, None] < torch.arange(6)[None],
    "alone": lambda x: torch.arange(5).float().sin(),
    "only a constant": lambda x: torch.full((3,), 2.0),
    "tril_indices": lambda x: torch.tril(torch.ones(6, 6, dtype=torch.bool)) & (x > 0),
}


def test_made_from_nothing() -> None:
    agree(MADE, numbers(torch.float32, 6))


def test_a_result_made_from_constants_belongs_to_the_caller() -> None:
    run = agree(lambda x: (torch.ones(3), torch.tensor([1.0, 2.0]), x + 1), torch.zeros(2))
    first, second, _ = run(torch.zeros(2))
    first.fill_(9)
    second.fill_(9)
    assert run(torch.zeros(2))[0].tolist() == [1, 1, 1]
    assert run(torch.zeros(2))[1].tolist() == [1, 2]
