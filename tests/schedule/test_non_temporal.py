"""Large results are written past the caches where that is safe and pays; they stay right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from litz.config import Config
from litz.target import host
from tests.stages import compiled, stages
from tests.toolchain import schedule

X = torch.randn(64, 256)
SMALL_CACHE = replace(host(), l3_bytes=4096, vector_bytes=64, triple="x86_64-linux-gnu")


def _past(function: Callable[..., object], *inputs: torch.Tensor) -> list[tuple[str, ...]]:
    made = stages(function, *inputs)
    kernels = made.kernels.kernels
    return [
        schedule(k, SMALL_CACHE, Config(), made.plan.fresh).choice.non_temporal for k in kernels
    ]


def test_a_result_larger_than_the_last_cache_is_written_past_it() -> None:
    assert _past(lambda x: x + 1, X) == [("b0",)]
    assert _past(lambda x: x + 1, X[:2]) == [()]


def test_rows_that_are_no_whole_lines_are_not() -> None:
    assert _past(lambda x: x.softmax(1), X) == [("b0",)]
    assert _past(lambda x: x[:, :250].softmax(1), X) == [()]


def test_an_input_may_lie_anywhere_and_is_updated_in_place() -> None:
    def update(x: torch.Tensor) -> None:
        x.mul_(2)

    assert _past(update, X.clone()) == [()]


def test_what_takes_longer_to_compute_than_to_store_is_not() -> None:
    assert _past(torch.erf, X) == [()]


def test_what_the_kernel_reads_again_is_not() -> None:
    (non_temporal,) = _past(lambda x: (y := x + 1, y.softmax(1)), X)
    made = stages(lambda x: (y := x + 1, y.softmax(1)), X)
    (kernel,) = made.kernels.kernels
    assert len(non_temporal) == len(
        {b.name for b in kernel.writes} - {b.name for b in kernel.reads}
    )


@pytest.mark.parametrize("shape", [(64, 256), (37, 272), (1, 4096), (8, 16, 48), (5000,)])
def test_results_are_the_same(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, tails and rows: each element is there when the call returns."""
    monkeypatch.setattr("litz.target._cache_bytes", lambda level, default: 4096)
    x = torch.randn(shape)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, (x * 2).amax(-1), torch.layer_norm(x, x.shape[-1:])

    run = compiled(function, cpp__min_chunk_size=16)
    for found, expected in zip(run(x), function(x), strict=True):
        torch.testing.assert_close(found, expected)
    if host().triple.startswith("x86") and host().vector_bytes == 64:
        assert "!nontemporal" in run.reports[0].source.text
        assert "sfence" in run.reports[0].source.text
