"""Column reductions of arrays that no cache holds: rows pass by whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from litz.target import host
from tests.stages import compiled, stages

# Rows of 1,037 floats that make an array twice as large as the second cache.
ROWS = 2 * host().l2_bytes // (4 * 1037) + 3

FUNCTIONS: dict[str, Callable[[torch.Tensor], object]] = {
    "sum": lambda x: x.sum(0),
    "maximum": lambda x: x.amax(0),
    "several at once": lambda x: ((x * x).sum(0), x.amin(0), x.sum(0) + 1),
    "two passes": lambda x: x.var(0),
    "with a factor for each row": lambda x: (x * x[:, :1]).sum(0),
    "in double": lambda x: x.double().sum(0),
    "any": lambda x: (x > 3).any(0),
    "of half of the columns": lambda x: x[:, ::2].sum(0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_columns(name: str) -> None:
    x = torch.randn(ROWS, 1037)
    expected = FUNCTIONS[name](x.double())
    torch.testing.assert_close(
        compiled(FUNCTIONS[name])(x), expected, check_dtype=False, atol=2e-3, rtol=2e-6
    )


def test_bfloat16_is_summed_in_float32() -> None:
    x = torch.randn(2 * ROWS, 1037).bfloat16()
    result = compiled(lambda x: x.sum(0))(x)
    torch.testing.assert_close(result, x.double().sum(0).bfloat16())


def test_a_nan_stays() -> None:
    x = torch.randn(ROWS, 1037)
    x[7, 5] = torch.nan
    result = compiled(lambda x: x.amax(0))(x)
    assert result.isnan().nonzero().tolist() == [[5]]


def _rows(function: Callable[..., object], x: torch.Tensor) -> list[int]:
    return [s.choice.rows for s in stages(function, x).scheduled]


def test_rows_pass_by_only_where_no_cache_holds_the_array() -> None:
    assert _rows(lambda x: x.sum(0), torch.randn(ROWS, 1037)) == [4, 0]  # the pieces, then the rest
    assert _rows(lambda x: x.sum(0), torch.randn(64, 1037)) == [0]
    assert set(_rows(lambda x: x.sum(1), torch.randn(ROWS, 1037))) == {0}


def test_a_place_is_not_looked_for_this_way() -> None:
    x = torch.randn(ROWS, 1037)
    assert 4 not in _rows(lambda x: x.argmax(0), x)
    assert torch.equal(compiled(lambda x: x.argmax(0))(x), x.argmax(0))
