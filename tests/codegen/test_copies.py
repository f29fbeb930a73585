"""Copies of an unrolled reduction whose row has an unknown length, below other reduced axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

from tests import draws
from tests.dynamic.symbolic import Symbolic

Function = Callable[[torch.Tensor], Any]
# Rows of a matrix whose neighbours are one element further apart than they are long: two axes that
# stay two. The first has whole groups of vectors and a rest, as has the last.
SIZES = [(3, 401), (3, 33), (5, 64), (9, 32), (2, 100), (7, 31), (4, 2), (6, 532)]

KINDS: dict[str, Function] = {
    "sum": torch.sum,
    "sum of two axes": lambda x: x.view(1, *x.shape).sum((1, 2)),
    "product": lambda x: x.prod(),
    "maximum": torch.amax,
    "minimum": torch.amin,
    "place": torch.argmax,
    "any": lambda x: (x == 3).any(),
    "all": lambda x: (x > -100).all(),
    "count": lambda x: (x > 1).sum(),
}
FLOATS: dict[str, Function] = {
    "mean": torch.mean,
    "variance": lambda x: torch.var_mean(x),
    "deviation": lambda x: x.std(correction=0),
    "norm": lambda x: x.norm(),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
    "squares": lambda x: torch.nn.functional.mse_loss(x, x.flip(0)),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, x.shape),
    "two of one row": lambda x: (x.sum(), x.amax(), (x * x).sum()),
}


def _variance(x: torch.Tensor, correction: int) -> float:
    """Of whole numbers, exactly. Of 3,192 of them eager's, in float64, was off by 83 units in the
    last place, and the compiled one by half a unit."""
    n, total, squares = x.numel(), int(x.sum()), int((x * x).sum())
    return float(Fraction(n * squares - total * total, n * (n - correction)))


EXACT: dict[str, Function] = {
    "variance": lambda x: (x.new_tensor(_variance(x, 1)), x.mean()),
    "deviation": lambda x: x.new_tensor(math.sqrt(_variance(x, 0))),
}


def _numbers(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, whose sums every type holds, inside a wider matrix."""
    made = draws.generator(rows * columns)
    whole = torch.randint(-2, 3, (rows, columns + 1), generator=made)
    return whole.to(dtype)[:, :columns]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_turn_of_the_outer_axis_counts(kind: str, dtype: torch.dtype) -> None:
    function = Symbolic(KINDS[kind])
    for rows, columns in SIZES:
        x = _numbers(rows, columns, dtype)
        torch.testing.assert_close(function(x), KINDS[kind](x), rtol=0, atol=0)
    assert function.graphs == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", FLOATS)
def test_floats(kind: str, dtype: torch.dtype) -> None:
    function = Symbolic(FLOATS[kind])
    for rows, columns in SIZES:
        x = _numbers(rows, columns, dtype)
        # Of float64, what eager gives is itself rounded at each of its steps.
        ulp = torch.finfo(dtype).eps * (32 if dtype is torch.float64 else 2)
        close = {"rtol": ulp, "atol": 2 * ulp}
        exact = EXACT.get(kind, FLOATS[kind])(x.double())
        torch.testing.assert_close(function(x), exact, check_dtype=False, **close)
    assert function.graphs == 1


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_every_width_of_vectors(bits: int) -> None:
    def both(x: torch.Tensor) -> Any:
        return x.sum(), x.view(1, *x.shape).sum((1, 2))

    function = Symbolic(both, **{"cpp.simdlen": bits})
    for rows, columns in SIZES:
        x = _numbers(rows, columns, torch.float32)
        torch.testing.assert_close(function(x), both(x), rtol=0, atol=0)


def test_three_axes_and_columns_between() -> None:
    """Images with a border: rows of rows, for each channel."""

    def function(x: torch.Tensor) -> Any:
        inner = x[:, :, 1:-1, 1:-1]
        return inner.sum((0, 2, 3)), inner.amax((0, 2, 3)), inner.sum((0, 1)), inner.sum(1)

    symbolic = Symbolic(function)
    for images, height, width in ((2, 7, 203), (3, 5, 34), (2, 4, 100), (4, 9, 66), (2, 3, 205)):
        made = draws.generator(width)
        x = torch.randint(-9, 10, (images, 3, height, width), generator=made).float()
        torch.testing.assert_close(symbolic(x), function(x), rtol=0, atol=0)


def test_batch_norm_of_images_of_many_sizes() -> None:
    """Sizes that become symbols by themselves, with the second call."""
    layer = torch.nn.BatchNorm2d(4)
    exact = torch.nn.BatchNorm2d(4).double()
    symbolic = Symbolic(layer, dynamic=None)
    for pixels in (16, 20, 24, 40, 23):
        x = torch.randn(2, 4, pixels, pixels, generator=draws.generator(pixels))
        torch.testing.assert_close(
            symbolic(x), exact(x.double()), rtol=1e-5, atol=1e-5, check_dtype=False
        )
    torch.testing.assert_close(
        layer.running_var, exact.running_var, rtol=1e-5, atol=1e-5, check_dtype=False
    )
