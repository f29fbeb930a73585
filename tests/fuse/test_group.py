"""Which loops share a kernel: for bytes that need not move, for a launch, in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.codegen.triton.test_kernels import scheduled
from tests.stages import Stages, compiled, stages

X = torch.randn(64, 100)
Y = torch.randn(64, 100)


def _reasons(made: Stages, action: str) -> list[str]:
    return [d.reason for d in made.kernels.decisions if d.action == action]


def test_loops_share_a_kernel_for_the_bytes_they_need_not_read_again() -> None:
    made = stages(lambda x: (x + 1, x * 2), X)
    assert len(made.kernels.kernels) == 1
    assert _reasons(made, "fused") == [f"saves {64 * 100 * 4} bytes"]


def test_fewer_bytes_than_the_threshold_are_not_worth_it() -> None:
    made = stages(lambda x: (x + 1, x * 2), X, score_fusion_memory_threshold=1 << 20)
    assert len(made.kernels.kernels) == 2
    assert "saving 25600 bytes is below score_fusion_memory_threshold=1048576" in _reasons(
        made, "refused"
    )


def test_loops_that_share_nothing_stay_apart_unless_asked() -> None:
    """A launch is a call of a few nanoseconds here, and streams in one loop hinder each other."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x + 1, y * 2

    assert len(stages(function, X, Y).kernels.kernels) == 2
    made = stages(function, X, Y, aggressive_fusion=True)
    (kernel,) = made.kernels.kernels
    assert len(kernel.stores) == 2
    assert _reasons(made, "fused") == ["saves a launch (aggressive_fusion)"]
    torch.testing.assert_close(compiled(function, aggressive_fusion=True)(X, Y), function(X, Y))


def test_aggressive_fusion_needs_equal_rows() -> None:
    made = stages(lambda x, y: (x + 1, y[:, :7] * 2), X, Y, aggressive_fusion=True)
    assert len(made.kernels.kernels) == 2


def _updates(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """An optimizer's step, as it were: of each tensor for itself."""
    for k, tensor in enumerate(tensors):
        tensor.mul_(0.5).add_(tensor.sin(), alpha=k)
    return [tensors[0].sum()]


def test_on_a_gpu_small_loops_share_a_launch() -> None:
    scalars = [torch.randn(()) for _ in range(9)]
    vectors = [torch.randn(70) for _ in range(3)]
    large = [torch.randn(300, 300) for _ in range(2)]
    made = scheduled(_updates, *vectors, *large, *scalars)
    kernels = made.kernels.kernels
    stored = [[s.buffer.shape for s in k.stores] for k in kernels]
    assert len(kernels) == 5  # the vectors, the sum of one, two large ones, all scalars
    assert max(len(shapes) for shapes in stored) == len(scalars)
    assert "saves a launch (both are small)" in _reasons(made, "fused")
    for mine, theirs in zip(made.fused(), made.lowered(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_small_loops_wait_for_what_they_need() -> None:
    """A call sorts what the first kernel makes: what is made of that cannot join it."""

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        x = a + 1
        return x, b * x.sort().values, c * 2

    made = scheduled(function, *(torch.randn(70) for _ in "abc"))
    assert [len(k.stores) for k in made.kernels.kernels] == [1, 2]
    for mine, theirs in zip(made.fused(), made.lowered(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_loop_is_turned_to_the_rows_of_the_reduction_beside_it() -> None:
    """The transposed result lies in memory as x does: row by row, x is read once for both."""

    def function(x: torch.Tensor) -> Any:
        return x.sum(1), x.t() + 1

    (kernel,) = stages(function, X).kernels.kernels
    assert [a.extent.number for a in kernel.outer] == [64]
    off = stages(function, X, loop_ordering_after_fusion=False)
    assert len(off.kernels.kernels) == 2
    assert "its leading axes do not make 64 rows" in _reasons(off, "refused")
    torch.testing.assert_close(compiled(function)(X), function(X))


def test_pointwise_loops_meet_at_the_element_they_share() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.t().exp(), x * y

    made = stages(function, X, Y)
    (kernel,) = made.kernels.kernels
    first, second = kernel.phases[0].stores
    assert first.index == second.index[::-1]
    assert [a.extent.number for a in made.scheduled[0].kernel.outer] == [6400]  # one stream
    assert len(stages(function, X, Y, loop_ordering_after_fusion=False).kernels.kernels) == 2
    torch.testing.assert_close(compiled(function)(X, Y), function(X, Y))


def test_a_result_that_lies_the_other_way_is_not_turned() -> None:
    """Its rows would be stored column by column."""
    made = stages(lambda x, y: (x.t().contiguous() + 1, x * y), X, Y)
    assert len(made.kernels.kernels) == 2


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "square": lambda x: (x[:, :64].t() + 1, x[:, :64] * 2, x[:, :64] + x[:, :64].t()),
    "permuted": lambda x: (x.view(4, 16, 100).permute(2, 0, 1) * 2, x.view(4, 16, 100).sum(2)),
    "two sums": lambda x: (
        x.view(4, 16, 100).sum(1),
        x.view(4, 16, 100).permute(2, 1, 0).amax(1),
    ),
    "diagonal": lambda x: (x[:, :64] * 2, x[:, :64].diagonal() + 1),
    "columns": lambda x: (x.sum(0), x.t().exp()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("options", [{}, {"aggressive_fusion": True}], ids=str)
def test_results(name: str, options: dict[str, Any]) -> None:
    found = compiled(CASES[name], debug_index_asserts=True, **options)(X)
    torch.testing.assert_close(found, CASES[name](X))


def _total(*arrays: torch.Tensor) -> torch.Tensor:
    total = arrays[0]
    for array in arrays[1:]:
        total = total + array
    return total


def test_a_loop_walks_no_more_arrays_than_the_cache_keeps_apart() -> None:
    arrays = [torch.randn(1 << 16) for _ in range(40)]
    made = stages(_total, *arrays)
    assert [len(k.reads) for k in made.kernels.kernels] == [10, 16, 16]
    assert "17 arrays walked at once push each other out of the cache" in _reasons(made, "refused")
    torch.testing.assert_close(compiled(_total)(*arrays), _total(*arrays))


def test_small_arrays_are_walked_together() -> None:
    assert len(stages(_total, *(torch.randn(256) for _ in range(40))).kernels.kernels) == 1


def test_what_would_walk_too_many_arrays_together_stays_apart() -> None:
    def function(x: torch.Tensor, *others: torch.Tensor) -> Any:
        return [_total(x, *others[:9]), _total(x, *others[9:])]

    arrays = [torch.randn(1 << 16) for _ in range(19)]
    made = stages(function, *arrays)
    assert len(made.kernels.kernels) == 2
    assert any("walked at once" in reason for reason in _reasons(made, "refused"))
