"""Copies of views, windows that are replaced, indices of triangles, ramps: against eager."""

from __future__ import annotations

import pytest
import torch

from tests.lower.agreement import DTYPES, FLOATS, Function, agree, numbers

COPIES: dict[str, Function] = {
    "alias": lambda x: torch.alias_copy(x),
    "as_strided": lambda x: torch.as_strided_copy(x, (2, 3), (1, 2), 3),
    "detach": lambda x: torch.detach_copy(x),
    "diagonal": lambda x: torch.diagonal_copy(x, 1, 0, 2),
    "expand": lambda x: torch.expand_copy(x[:1], (5, 4, 6)),
    "narrow": lambda x: torch.narrow_copy(x, 1, 1, 2),
    "permute": lambda x: torch.permute_copy(x, (2, 0, 1)),
    "select": lambda x: torch.select_copy(x, 1, -1),
    "slice": lambda x: torch.slice_copy(x, 2, 1, 6, 2),
    "split": lambda x: torch.split_copy(x, 2, 1),
    "split_with_sizes": lambda x: torch.split_with_sizes_copy(x, [1, 2, 1], 1),
    "squeeze": lambda x: torch.squeeze_copy(x[:, :1]),
    "squeeze_dim": lambda x: torch.squeeze_copy(x[:, :1], 1),
    "t": lambda x: torch.t_copy(x[0]),
    "transpose": lambda x: torch.transpose_copy(x, 0, 2),
    "unbind": lambda x: torch.unbind_copy(x, 1),
    "unfold": lambda x: torch.unfold_copy(x, 2, 3, 2),
    "unsqueeze": lambda x: torch.unsqueeze_copy(x, 1),
    "view": lambda x: torch.view_copy(x, (4, 18)),
}


# A copy looks at the size of an element: of integers, one type of a byte and one of eight.
COPIED = [*FLOATS, torch.uint8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", COPIED, ids=str)
def test_copies_are_fresh_and_contiguous(dtype: torch.dtype) -> None:
    """`agree` asks for eager's strides, and for memory that is shared only where eager's is."""
    agree(COPIES, numbers(dtype, 3, 4, 6))
    rest = {k: v for k, v in COPIES.items() if k not in ("view", "as_strided")}
    agree(rest, numbers(dtype, 4, 6, 3).permute(2, 0, 1))


WINDOWS: dict[str, Function] = {
    "rows": lambda x, y: torch.as_strided_scatter(x, y[:2, :3], (2, 3), (6, 1), 6),
    "columns": lambda x, y: torch.as_strided_scatter(x, y[:3, :2], (3, 2), (1, 12), 1),
    "apart": lambda x, y: torch.as_strided_scatter(x, y[:2, :2], (2, 2), (7, 2)),
    "flat": lambda x, y: torch.as_strided_scatter(x, y[0], (6,), (3,), 2),
    "one": lambda x, y: torch.as_strided_scatter(x, y[0, :1], (1,), (1,), 23),
    "diagonal": lambda x, y: torch.diagonal_scatter(x, y[0, :3], -1),
    "diagonal_above": lambda x, y: torch.diagonal_scatter(x, y[0, :4], 2),
    "diagonals": lambda x, y: torch.diagonal_scatter(
        x.view(2, 2, 6).expand(2, 2, 6), y[:2, :2], 1, 0, 2
    ),
    "row": lambda x, y: torch.select_scatter(x, y[0], 0, -2),
    "slice": lambda x, y: torch.slice_scatter(x, y[:, :2], 1, 1, 5, 2),
    "empty_slice": lambda x, y: torch.slice_scatter(x, y[:0], 0, 4, 4),
    "copied": lambda x, y: x.clone().copy_(y[0]),
    "converted": lambda x, y: x.clone().copy_(y.double()),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_windows_are_replaced(dtype: torch.dtype) -> None:
    agree(WINDOWS, numbers(dtype, 4, 6), numbers(dtype, 4, 6, seed=1))


@pytest.mark.parametrize("shape", [(1, 6), (4, 1), (1, 1)], ids=str)
def test_windows_of_expanded_tensors_are_replaced(shape: tuple[int, int]) -> None:
    """Eager gives a tensor whose elements lie apart. Torch 2.11 foretells the expanded one's
    strides, 2.13 does so of `as_strided_scatter`."""
    x, y = numbers(torch.float32, *shape).expand(4, 6), numbers(torch.float32, 4, 6, seed=1)
    agree(WINDOWS, x, y)
    agree({k: lambda x, y, f=f: f(x, y).mT + 1 for k, f in WINDOWS.items()}, x, y)
    agree(WINDOWS, x, y[:1].expand(4, 6))


def test_a_view_by_aten_of_an_expanded_tensor() -> None:
    """What kernels read of it lies in memory of its own, where its elements share places too."""
    table: dict[str, Function] = {
        "computed": lambda x: torch.view_as_complex((x + 1).view(2, 2)[:1].expand(3, 2)),
        "read": lambda x: torch.view_as_real(torch.view_as_complex(x.expand(3, 4)[:, 2:])) * 2,
        "transposed": lambda x: torch.view_as_complex(x.view(2, 1, 2).expand(2, 5, 2)).t(),
    }
    agree(table, numbers(torch.float32, 4), aten=["view_as_complex", "view_as_real"])


def test_a_window_that_shows_an_element_twice_is_atens() -> None:
    agree(
        lambda x: torch.as_strided_scatter(x, x[:2, :2].expand(2, 2), (2, 2), (1, 1)),
        numbers(torch.float32, 3, 4), aten=["as_strided_scatter"],
    )  # fmt: skip


def test_triangles() -> None:
    table: dict[str, Function] = {
        "tril": lambda x: torch.tril_indices(4, 5, -1) + x.long(),
        "triu": lambda x: torch.triu_indices(5, 4, 1, dtype=torch.int32) + x.int(),
        "tril_of": lambda x: x.expand(3, 4, 5).tril(1),
        "triu_of": lambda x: x.expand(3, 4, 5).triu(-1),
    }
    agree(table, torch.ones(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ramps(dtype: torch.dtype) -> None:
    table: dict[str, Function] = {"eye": lambda x: torch.eye(3, 4, dtype=dtype) | x.to(dtype)}
    if dtype is not torch.bool:
        table = {
            "arange": lambda x: torch.arange(3, 17, 2, dtype=dtype) + x.to(dtype),
            "linspace": lambda x: torch.linspace(0, 17, 9, dtype=dtype) + x.to(dtype),
            "logspace": lambda x: torch.logspace(0, 2, 5, dtype=dtype) + x.to(dtype),
            "linspace_tensor": lambda x: torch.linspace(x[0], 8, 5, dtype=dtype),
            "eye": lambda x: torch.eye(3, 4, dtype=dtype) + x.to(dtype),
        }
    agree(table, torch.ones(1), wide=True)


def test_fractional_ramps() -> None:
    table: dict[str, Function] = {
        "float": lambda x: torch.arange(0.1, 40, 0.3) + x,
        "double": lambda x: torch.arange(-3, 4, 0.7, dtype=torch.float64) + x,
        "whole": lambda x: torch.arange(-3.0, 40.0, 2.0) + x,
    }
    agree(table, torch.ones(1))
