"""Binary search against eager: sides, sorters, rows, types, and rows that are not sorted."""

from __future__ import annotations

import math

import pytest
import torch

import litz
from litz.errors import GatherOutOfRange
from tests import draws
from tests.lower.agreement import FLOATS, INTEGERS, agree, numbers

TYPES = [*FLOATS, *INTEGERS]


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_bucketize(dtype: torch.dtype, right: bool) -> None:
    edges = torch.tensor([0, 1, 1, 3, 7, 20]).to(dtype)
    x = numbers(dtype, 4, 9).round()
    agree(lambda x, e: torch.bucketize(x, e, right=right), x, edges)
    agree(lambda x, e: torch.bucketize(x, e, right=right, out_int32=True), x, edges)
    agree(lambda e: torch.bucketize(1, e, right=right), edges)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7, 8, 9, 63, 64, 1000])
def test_every_length(size: int) -> None:
    edges = torch.arange(size).float()
    x = torch.linspace(-2, size + 2, 301)
    agree(lambda e, x: torch.searchsorted(e, x), edges, x)
    agree(lambda e, x: torch.searchsorted(e, x, side="right"), edges, x)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_and_sorters(dtype: torch.dtype) -> None:
    rows = numbers(dtype, 3, 2, 11)
    ordered, order = rows.sort(dim=-1)
    x = numbers(dtype, 3, 2, 5, seed=3)
    agree(lambda e, x: torch.searchsorted(e, x, right=True), ordered, x)
    agree(lambda e, x, s: torch.searchsorted(e, x, sorter=s), rows, x, order)


def test_types_are_promoted() -> None:
    edges = torch.tensor([0, 2, 4, 6])
    agree(torch.searchsorted, edges, torch.tensor([1.5, 2.0, 5.99, 9.0]))
    agree(torch.bucketize, torch.tensor([1, 2, 5]), torch.tensor([1.5, 2.0, 2.5]))


def test_rows_without_order_take_eagers_steps() -> None:
    draws.seed(0)
    rows = torch.randn(4, 37)
    rows[rows > 1.5] = math.nan
    x = torch.randn(4, 50)
    x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    agree(torch.searchsorted, rows, x)


def test_a_sorter_out_of_range_raises() -> None:
    edges, x = torch.arange(4.0), torch.tensor([1.5])
    litz.reset()
    compiled = torch.compile(
        lambda e, x, s: torch.searchsorted(e, x, sorter=s),
        backend="litz", options={"on_error": "raise"},
    )  # fmt: skip
    compiled(edges, x, torch.tensor([0, 1, 2, 3]))
    with pytest.raises(GatherOutOfRange, match="index 9 is out of bounds"):
        compiled(edges, x, torch.tensor([0, 1, 9, 3]))
