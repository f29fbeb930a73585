"""Zeros of both signs, infinities and NaN: results are eager's, sign for sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.stages import compiled

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INF, NAN = float("inf"), float("nan")
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 3.0, -3.0, 5.5, -7.25, 1e4, -1e4, INF, -INF, NAN]

PAIRS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "floor_divide": torch.floor_divide,
    "fmin": torch.fmin,
    "fmax": torch.fmax,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "pow": torch.pow,
    "copysign": torch.copysign,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
}
ONES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{f"pow {p}": lambda x, p=p: x**p for p in (0.5, -0.5, 2, 3, -1, -2, 0, 1.5, 0.25)},
    **{f"remainder {n}": lambda x, n=n: x % n for n in (3, -3, 2.5, INF, -INF, 0.0)},
    **{f"fmod {n}": lambda x, n=n: x.fmod(n) for n in (3, -3, 2.5, INF)},
    "remainder of a number": lambda x: torch.remainder(5.5, x),
}


def equal_in_sign(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Where two are the same number; of zeros, the same one. NaN has no sign."""
    nan = found.isnan() & expected.isnan()
    return nan | ((found == expected) & (found.signbit() == expected.signbit()))


def agree(function: Callable[..., Any], *inputs: torch.Tensor, close: float = 0) -> None:
    found, expected = compiled(function)(*inputs), function(*inputs)
    same = equal_in_sign(found, expected)
    if close:
        near = ((found - expected).abs() <= close * expected.abs()) & expected.isfinite()
        same |= near & (found.signbit() == expected.signbit())
    places = (~same).nonzero()[:, 0].tolist()
    assert not places, [
        (*(float(x.flatten()[k]) for x in inputs), float(found[k]), float(expected[k]))
        for k in places[:8]
    ]


# Of these, digits may differ: eager rounds float16 on the way, or it is a function with a bound.
# Roots of float64 are the nearest here; eager's are MKL's, which need not be on every processor.
ROUNDED = {"floor_divide", "pow", "atan2", "hypot"}
ROUNDED |= {f"pow {p}" for p in (1.5, 0.25, -2, -0.5, 3)}


def _close(name: str, dtype: torch.dtype) -> float:
    root = name == "pow 0.5" and dtype is torch.float64
    return 2 * torch.finfo(dtype).eps if name in ROUNDED or root else 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str, dtype: torch.dtype) -> None:
    numbers = torch.tensor(NUMBERS, dtype=dtype)
    x, y = (t.flatten() for t in torch.meshgrid(numbers, numbers, indexing="ij"))
    agree(PAIRS[name], x, y, close=_close(name, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ONES)
def test_functions_of_one(name: str, dtype: torch.dtype) -> None:
    agree(ONES[name], torch.tensor(NUMBERS * 3, dtype=dtype), close=_close(name, dtype))


REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(0),
    "sum of rows": lambda x: x.T.contiguous().sum(1),
    "mean": lambda x: x.mean(0),
    "cumsum": lambda x: x.cumsum(0)[-1],
    "prod": lambda x: x.prod(0),
    "nansum": lambda x: x.nansum(0),
    "amax": lambda x: x.amax(0),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_sums_of_negative_zeros(name: str, dtype: torch.dtype) -> None:
    for length in (1, 2, 3, 8, 9, 40, 300):
        agree(REDUCTIONS[name], torch.full((length, 3), -0.0, dtype=dtype))
