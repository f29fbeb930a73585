"""Loop order, lanes and tasks: the schedule each shape of kernel gets."""

from __future__ import annotations

from collections.abc import Callable

import torch

from litz.ir.expr import walk
from litz.ir.scheduled import ScheduledKernel
from litz.target import host
from tests.stages import stages

LANES = host().vector_bytes // 4


def _scheduled(function: Callable[..., object], *inputs: object, **options: object) -> (
    ScheduledKernel
):  # fmt: skip
    (kernel,) = stages(function, *inputs, **options).scheduled
    return kernel


def _divisions(scheduled: ScheduledKernel) -> int:
    stores = scheduled.kernel.stores
    return sum(n.op in ("floordiv", "mod") for n in walk(*(s.index[0] for s in stores),
               *(s.value for s in stores)))  # fmt: skip


def test_contiguous_axes_merge_into_one() -> None:
    made = _scheduled(lambda x: x + 1, torch.randn(4, 5, 6))
    (axis,) = made.kernel.outer
    assert axis.extent.number == 120 and made.choice.vector is axis
    assert made.choice.lanes == LANES


def test_a_flattened_transpose_is_split_rather_than_divided() -> None:
    made = _scheduled(lambda x: x.transpose(1, 2).reshape(2, 24) + 1, torch.randn(2, 4, 6))
    assert _divisions(made) == 0
    assert sorted(a.extent.number for a in made.kernel.outer) == [2, 4, 6]


def test_a_row_reduction_runs_its_row_in_lanes() -> None:
    made = _scheduled(lambda x: x.sum(1), torch.randn(64, 256))
    assert made.choice.vector is None and made.tasks == 64


def test_a_column_reduction_runs_its_columns_in_lanes() -> None:
    made = _scheduled(lambda x: x.sum(0), torch.randn(64, 256))
    assert made.choice.vector is made.kernel.outer[-1]
    assert made.choice.lanes > LANES  # several vectors side by side hide the adder's latency


def test_doubles_take_half_the_lanes() -> None:
    made = _scheduled(lambda x: x * 2, torch.randn(64, 64, dtype=torch.float64))
    assert made.choice.lanes == LANES // 2


def test_simdlen_narrows_the_lanes() -> None:
    assert _scheduled(lambda x: x * 2, torch.randn(64, 64), cpp__simdlen=128).choice.lanes == 4


def test_a_transposing_copy_walks_across_in_small_pieces() -> None:
    made = _scheduled(lambda x: x.t().contiguous(), torch.randn(256, 512))
    first, last = made.kernel.outer
    assert made.choice.vector is first and made.choice.chunk <= 8 * LANES
    assert last.extent.number == 512  # the axis along which the input lies in order


def test_loop_orders_can_be_left_alone() -> None:
    x = torch.randn(16, 32).t()
    picked = _scheduled(lambda x: x + 1, x)
    assert [a.extent.number for a in picked.kernel.outer] == [512]
    left = _scheduled(lambda x, y: x + y, x, torch.randn(32, 16), pick_loop_orders=False)
    assert left.choice.vector is left.kernel.outer[-1]


def test_outer_axes_follow_the_access_that_moves_the_most_bytes() -> None:
    """The sums of blocks are stored block by block, but the rows are what is read."""
    x = torch.randn(3, 3 * 8192)
    picked, left = (
        stages(lambda x: x.logsumexp(-1), x, pick_loop_orders=flag).scheduled[0].kernel
        for flag in (True, False)
    )
    assert [a.extent.number for a in picked.outer] == [3, 12]
    assert [a.extent.number for a in left.outer] == [12, 3]


def test_small_kernels_stay_on_one_thread() -> None:
    small = _scheduled(lambda x: x + 1, torch.randn(8, 8))
    large = _scheduled(lambda x: x + 1, torch.randn(1024, 1024))
    assert small.tasks < 2 * small.choice.grain
    assert large.tasks >= 2 * large.choice.grain


def test_min_chunk_size_sets_what_a_thread_must_get() -> None:
    x = torch.randn(128, 128)
    few = _scheduled(lambda x: x + 1, x, cpp__min_chunk_size=1 << 20)
    many = _scheduled(lambda x: x + 1, x, cpp__min_chunk_size=16)
    assert few.choice.grain > many.choice.grain


def test_what_results_share_counts_once() -> None:
    def cell(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.sigmoid(x[0]) * x[4] + torch.sigmoid(x[1]) * torch.tanh(x[2])
        return state, torch.sigmoid(x[3]) * torch.tanh(state)

    given = [torch.randn(384) for _ in range(5)]
    (both,), (one,) = (stages(f, *given).scheduled for f in (cell, lambda *x: cell(*x)[1]))
    assert both.choice.grain == one.choice.grain


def test_equal_layers_schedule_to_equal_kernels() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.relu(x @ w) @ w) @ w

    first, second = stages(function, torch.randn(8, 8), torch.randn(8, 8)).scheduled
    assert first.kernel.phases == second.kernel.phases and first.choice == second.choice


def test_many_sums_in_one_kernel_leave_registers_for_what_they_add() -> None:
    x, registers = torch.randn(64, 1024), host().registers

    def sums(x: torch.Tensor, dim: int, count: int) -> list[torch.Tensor]:
        return [(x * k).abs().sum(dim) for k in range(1, count + 1)]

    few = _scheduled(lambda x: sums(x, 1, 2), x)
    many = _scheduled(lambda x: sums(x, 1, registers // 4), x)
    assert few.choice.unroll == 4 and many.choice.unroll == 2
    columns = _scheduled(lambda x: sums(x, 0, registers // 2), x)
    assert columns.choice.lanes == LANES
