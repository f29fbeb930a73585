"""Scans against eager and in the interpreter: types, dimensions, ties, NaN, long rows, nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests import draws
from tests.lower.agreement import DTYPES, FLOATS, INTEGERS, Function, agree, numbers, takes
from tests.stages import stages

DIMENSIONS = (0, 1, -1)


def along(name: str) -> dict[str, Function]:
    function = getattr(torch, name)
    return {f"{name} {d}": lambda x, d=d: function(x, d) for d in DIMENSIONS}


SCANS: dict[str, Function] = {
    **along("cumsum"),
    **along("cummax"),
    **along("cummin"),
    **along("logcumsumexp"),
    **{f"cumprod {d}": lambda x, d=d: torch.cumprod(x.clamp(-1.25, 1.25), d) for d in DIMENSIONS},
}


@pytest.mark.parametrize("shape", [(3, 5, 37), (2, 1, 4), (4, 64, 16)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_and_dimension(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = numbers(dtype, *shape)
    x = x / 3 if dtype.is_floating_point else x
    table = {name: f for name, f in SCANS.items() if takes(f, x)}
    assert len(table) >= 12
    agree(table, x, wide=True)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap(dtype: torch.dtype) -> None:
    table = {
        "product": lambda x: torch.cumprod(x, 1, dtype=dtype),
        "sum": lambda x: torch.cumsum(x * 40, 1, dtype=dtype),
    }
    agree(table, numbers(dtype, 3, 20))


@pytest.mark.parametrize("to", DTYPES[:-1], ids=str)
def test_the_input_is_converted_first(to: torch.dtype) -> None:
    x = numbers(torch.float32, 4, 9).abs() * 4
    table = {
        "sum": lambda x: torch.cumsum(x, 0, dtype=to),
        "product": lambda x: torch.cumprod(x * 0.2, 1, dtype=to),
    }
    agree(table, x, wide=True)
    agree(table, numbers(torch.int32, 4, 9).abs(), wide=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_of_equals_the_last_counts_and_nan_stays(dtype: torch.dtype) -> None:
    row = [1.0, 3.0, 3.0, torch.nan, 5.0, torch.nan, 0.0, -0.0, torch.inf, -torch.inf, 1.0, 1.0]
    x = torch.tensor([row, row[::-1], [2.0] * 12, [-torch.inf] * 12], dtype=dtype)
    agree({name: f for name, f in SCANS.items() if name.startswith(("cumm", "log"))}, x)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0), (0, 4)], ids=str)
def test_nothing_and_one_number(shape: tuple[int, ...]) -> None:
    table = {name: f for name, f in SCANS.items() if name.endswith(" -1")}
    agree(table, numbers(torch.float32, *shape))


def test_long_rows_are_summed_in_f64_as_in_eager() -> None:
    x = torch.rand(2, 300_000, generator=draws.generator(0))
    run = agree({"sum": lambda x: torch.cumsum(x, 1)}, x)
    assert len(run.reports[0].kernels) == 1
    agree({"log": lambda x: torch.logcumsumexp(x[:, :20_000], 1)}, x)


def test_strided_operands_and_results_that_go_on() -> None:
    x = numbers(torch.float32, 6, 7, 8)
    agree(
        {
            "transposed": lambda x: torch.cumsum(x.transpose(0, 2), 1),
            "sliced": lambda x: torch.cummax(x[::2, 1:, ::3], 1),
            "expanded": lambda x: torch.cumsum(x[:1].expand(5, 7, 8), 0),
            "flipped": lambda x: x.flip(1).cumsum(1).flip(1),
            "fused": lambda x: torch.exp(-torch.cumsum(x.abs() + 1, 2)) * 2,
            "normed": lambda x: torch.softmax(x.cumsum(-1), -1),
            "twice": lambda x: x.cumsum(1).cumsum(2),
        },
        x,
    )


def test_an_extreme_and_its_position_are_one_kernel() -> None:
    run = agree(lambda x: torch.cummax(x, 1), numbers(torch.float32, 30, 40))
    assert len(run.reports[0].kernels) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_the_interpreter_means_the_same(dtype: torch.dtype) -> None:
    x = numbers(dtype, 3, 8)

    def table(x: torch.Tensor) -> list[torch.Tensor]:
        scans = [x.cumsum(1), x.cumprod(0), *x.cummax(1), *x.cummin(0)]
        return scans + ([x.logcumsumexp(1)] if dtype.is_floating_point else [])

    staged = stages(table, x)
    for found in (staged.lowered(), staged.fused()):
        for ours, eager in zip(found, table(x), strict=False):
            np.testing.assert_allclose(ours, eager.double().numpy(), rtol=1e-2, atol=1e-6)
            assert dtype is torch.bfloat16 or np.allclose(ours, eager.numpy(), rtol=1e-12)
