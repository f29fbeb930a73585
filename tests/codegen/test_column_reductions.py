"""Column reductions of arrays that no cache holds: rows stream by whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from litz.target import host
from tests.stages import compiled, module_text, stages

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


# Windows over images that are larger than the second cache: whole rows of channels, tested at the
# borders; channels in whole vectors and not, in registers, on the stack and in memory.
POOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "maximum of 3 x 3": lambda x: F.max_pool2d(x, 3, 2, 1),
    "maximum of 2 x 2": lambda x: F.max_pool2d(x, 2),
    "maximum of 3 x 3 with gaps": lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2),
    "mean of 3 x 3": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "mean of 2 x 2": lambda x: F.avg_pool2d(x, 2),
    "mean of windows of several sizes": lambda x: F.adaptive_avg_pool2d(x, 5),
    "mean of long windows": lambda x: F.avg_pool2d(x, 14, 3),
    "of a value": lambda x: F.max_pool2d(F.relu(x - 1), 3, 2, 1) * 2,
    "of a part": lambda x: x[:, :, 1:-1, 1:-1].sum((2, 3)),
}


def _images(channels: int) -> torch.Tensor:
    """A batch that the second cache does not hold."""
    batch = host().l2_bytes // (4 * channels * 15 * 16) + 1
    return torch.randn(batch, channels, 17, 18).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [72, 520])
@pytest.mark.parametrize("name", POOLS)
def test_windows(name: str, channels: int) -> None:
    x = _images(channels)
    x[0, 3, 4, 5] = torch.nan
    x[0, 4, 0, 0] = torch.inf
    run = stages(POOLS[name], x)
    assert any(s.choice.row_by_row for s in run.scheduled)
    expected = POOLS[name](x.double())
    torch.testing.assert_close(
        compiled(POOLS[name])(x), expected, check_dtype=False, atol=1e-4, rtol=1e-5, equal_nan=True
    )


def test_a_test_at_a_border_is_a_branch() -> None:
    """No load is masked, though windows reach over the border."""
    text = module_text(POOLS["maximum of 3 x 3"], _images(192))
    assert "masked.load" not in text and "load volatile <" in text


def _rows(function: Callable[..., object], x: torch.Tensor) -> list[bool]:
    return [s.choice.row_by_row for s in stages(function, x).scheduled]


def test_rows_pass_by_only_where_no_cache_holds_the_array() -> None:
    # The pieces, then the rest.
    assert _rows(lambda x: x.sum(0), torch.randn(ROWS, 1037)) == [True, False]
    assert _rows(lambda x: x.sum(0), torch.randn(64, 1037)) == [False]
    assert True not in _rows(lambda x: x.sum(1), torch.randn(ROWS, 1037))


def test_windows_of_few_channels_or_small_images_are_written_as_before() -> None:
    assert _rows(POOLS["maximum of 3 x 3"], _images(16)) == [False]
    assert _rows(POOLS["maximum of 3 x 3"], _images(192)[:1]) == [False]


def test_a_place_is_not_looked_for_this_way() -> None:
    x = torch.randn(ROWS, 1037)
    assert True not in _rows(lambda x: x.argmax(0), x)
    assert torch.equal(compiled(lambda x: x.argmax(0))(x), x.argmax(0))
