"""Programs that join, cut and turn tensors: every stage gives eager's numbers, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from litz.ir.program import exprs_of, loads
from tests.fuse.mixtures import mixture
from tests.stages import as_array, compiled, copied, stages

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"cpp__simdlen": 128},
    {"max_fusion_size": 4},
    {"aggressive_fusion": True},
    {"pick_loop_orders": False},
    {"cpp__threads": 2},
)
PROGRAMS = 72


def _check(function: Callable[..., Any], inputs: list[torch.Tensor], options: Any) -> None:
    """Loops, kernels and machine code against eager: results, and inputs as they are left."""
    given = [copied(i) for i in inputs]
    expected = [as_array(t) for t in (*function(*given), *given)]
    made = stages(function, *inputs, **options)
    left = [copied(i) for i in inputs]
    native = [as_array(t) for t in (*compiled(function, **options)(*left), *left)]
    for stage, found in (("lower", made.lowered()), ("fuse", made.fused()), ("native", native)):
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=stage)


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_mixtures(seed: int) -> None:
    _check(*mixture(seed), OPTIONS[seed % len(OPTIONS)])


def _cat_beside_a_transpose(k: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Both pieces of the cat share their kernel with the transposed copy."""
    joined = torch.cat([k[:, 1:-3], k[:, 2:-2]], 2)
    return joined, k[:, 2:-2].transpose(-1, -2).contiguous()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int8])
@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
@pytest.mark.parametrize("shape", [(8, 16, 4, 8), (3, 20, 8, 16), (8, 16, 16, 16), (2, 16, 1, 8)])
def test_pieces_of_a_cat_beside_a_transposed_copy(
    shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    """A kernel that runs blocks across its lanes takes every phase there, not the first alone."""
    k = torch.arange(int(np.prod(shape))).reshape(shape).to(dtype)
    _check(_cat_beside_a_transpose, [k], options)


def test_an_update_in_place_waits_for_all_windows_that_read_the_old_values() -> None:
    def update(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat([x.abs(), x * 2], 1)
        x.add_(1)
        return (joined,)

    x = torch.arange(64.0 * 64).reshape(64, 64)
    (kernel,) = stages(update, x).kernels.kernels
    reads = [{n.buffer.name for n in loads(*exprs_of(p))} for p in kernel.phases]
    writes = [{s.buffer.name for s in p.stores} for p in kernel.phases]
    (updating,) = [k for k, names in enumerate(writes) if "arg0_1" in names]
    assert updating == max(k for k, names in enumerate(reads) if "arg0_1" in names) == 1
    _check(update, [x], {})


def test_swapped_inputs() -> None:
    def swap(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = x.clone()
        x.copy_(y)
        y.copy_(old)
        return (torch.cat([old, x], 1),)

    x = torch.arange(64.0 * 16).reshape(64, 16)
    _check(swap, [x, -x], {})
