"""A load that strides over the lanes is read by rows and transposed in registers."""

from __future__ import annotations

import pytest
import torch

from tests import draws
from tests.stages import compiled, module_text, stages

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8)


def _numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = draws.generator(0)
    return (torch.randn(*shape, generator=generator) * 9).to(dtype)


def test_the_schedule_runs_blocks_across_the_lanes() -> None:
    made = stages(lambda x, y: y + x.t(), torch.randn(96, 64), torch.randn(64, 96))
    (kernel,) = made.scheduled
    choice = kernel.choice
    assert choice.vector is not None and choice.transpose_axis is not None
    assert (choice.vector.extent.number, choice.transpose_axis.extent.number) == (96, 64)
    assert kernel.tasks == -(-96 // choice.chunk) * -(-64 // choice.lanes)


def test_a_plain_kernel_has_no_blocks() -> None:
    (kernel,) = stages(lambda x, y: x + y, torch.randn(96, 64), torch.randn(96, 64)).scheduled
    assert kernel.choice.transpose_axis is None


def test_no_gather_is_left() -> None:
    text = module_text(lambda x: x.t().contiguous(), torch.randn(64, 64))
    assert "masked.gather" not in text and "shufflevector" in text


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
@pytest.mark.parametrize("rows", [1, 5, 16, 33])
@pytest.mark.parametrize("columns", [3, 16, 70])
def test_transposes_of_any_size(dtype: torch.dtype, rows: int, columns: int) -> None:
    """Whole blocks, blocks cut short across, groups of lanes cut short, and both."""
    x = _numbers(dtype, rows, columns)
    run = compiled(lambda x: (x.t().contiguous(), x.t().reshape(-1)), debug_index_asserts=True)
    for found, expected in zip(run(x), (x.t().contiguous(), x.t().reshape(-1)), strict=True):
        assert torch.equal(found, expected)


def test_several_loads_and_more_dimensions() -> None:
    x, y = _numbers(torch.float32, 3, 20, 34), _numbers(torch.float32, 34, 20, 3)
    run = compiled(lambda x, y: x.permute(2, 1, 0) * 2 + y.permute(0, 1, 2) - x.permute(2, 1, 0))
    torch.testing.assert_close(run(x, y), x.permute(2, 1, 0) + y)


def test_a_buffer_that_is_updated_is_read_before_it_changes() -> None:
    def swap(x: torch.Tensor) -> torch.Tensor:
        x.copy_(x.t() + 1)
        return x * 2

    x = _numbers(torch.float32, 40, 40)
    expected = x.clone()
    result = swap(expected)
    torch.testing.assert_close(compiled(swap)(x), result)
    torch.testing.assert_close(x, expected)
