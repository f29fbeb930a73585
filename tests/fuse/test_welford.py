"""Means and variances of a few long rows on a GPU: one pass over pieces, as exact as two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.codegen.triton.test_kernels import scheduled
from tests.stages import Stages

ROWS = torch.randn(8, 64, 4096)
IMAGE = torch.randn(8, 64, 64, 64)
LAST = IMAGE.contiguous(memory_format=torch.channels_last)

FUNCTIONS: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "rows": (lambda x: torch.var_mean(x, (1, 2)), ROWS),
    "kept": (lambda x: torch.var_mean(x, (1, 2), keepdim=True, correction=0), ROWS),
    "all": (lambda x: [x.var(), x.mean()], ROWS),
    "columns": (lambda x: torch.var_mean(x.view(-1, 128), 0), ROWS),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True).relu(), IMAGE),
    "channels last": (lambda x: F.batch_norm(x, None, None, training=True).relu(), LAST),
    "halves": (lambda x: torch.var_mean(x.bfloat16().float(), (0, 2, 3)), LAST),
    "far from zero": (lambda x: torch.var_mean(x + 1e4, (0, 2, 3)), LAST),
    "lengths that differ": (lambda x: torch.var_mean(x.flatten()[:1000003]), ROWS),
}


def _ways(made: Stages) -> list[str]:
    return [d.reason for d in made.kernels.decisions if d.reason.startswith("mean and variance")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str) -> None:
    function, x = FUNCTIONS[name]
    made = scheduled(function, x)
    exact = function(x.double())
    exact = list(exact) if isinstance(exact, (tuple, list)) else [exact]
    # x + 1e4 is rounded to a thousandth before anything is summed. Squares less the square of the
    # mean would be off by a few; two passes and this are not.
    close = 2e-4 if name == "far from zero" else 1e-5
    *found, _ = made.fused()  # the input comes last
    for mine, theirs in zip(found, exact, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=close, atol=close)
    # 1000003 is a prime: no pieces of one length.
    assert bool(_ways(made)) == (name != "lengths that differ")


def test_x_is_read_by_one_kernel_for_both() -> None:
    function, x = FUNCTIONS["channels last"]
    made = scheduled(function, x)
    readers = [k for k in made.kernels.kernels if made.kernels.inputs[0] in k.reads]
    assert len(made.kernels.kernels) == 3 and len(readers) == 2  # moments, and the result
    apart = scheduled(function, x, split_reductions=False)
    assert not _ways(apart)


def test_short_rows_and_many_rows_stay_as_they_are() -> None:
    for shape in ((4, 100), (4096, 500)):
        assert not _ways(scheduled(lambda x: torch.var_mean(x, 1), torch.randn(shape)))
