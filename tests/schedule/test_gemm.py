"""Chunks of a matrix product: threads, which take tasks in a row, get about the same of it."""

from __future__ import annotations

import itertools

import pytest

from litz.schedule.gemm import PANEL_ROWS, _critical_path, _mc

SIZES = list(itertools.product((1, 3), (1, 5, 16, 37, 64, 100), (1, 2, 12), (1, 2, 3, 8)))


def _shares(batches: int, rows: int, panels: int, chunk: int, threads: int) -> list[int]:
    """What each thread does, task by task."""
    starts = range(0, rows, chunk)
    tasks = [min(chunk, rows - s) for _ in range(batches) for s in starts for _ in range(panels)]
    cuts = [len(tasks) * k // threads for k in range(threads + 1)]
    return [sum(tasks[a:b]) + PANEL_ROWS * (b - a) for a, b in itertools.pairwise(cuts)]


@pytest.mark.parametrize(("batches", "rows", "panels", "threads"), SIZES)
def test_the_longest_share_is_that_of_the_tasks(
    batches: int, rows: int, panels: int, threads: int
) -> None:
    for chunk in (6, 12, 42):
        found = _critical_path(batches, rows, panels, chunk, threads)
        assert found == max(_shares(batches, rows, panels, chunk, threads))


@pytest.mark.parametrize(("batches", "rows", "panels", "threads"), SIZES)
def test_a_chunk_is_whole_blocks_and_fits(
    batches: int, rows: int, panels: int, threads: int
) -> None:
    for fitting in (1, 40, 1000):
        chunk = _mc(batches, rows, panels, fitting, 6, threads)
        assert chunk % 6 == 0 and chunk <= max(fitting // 6 * 6 + 6, 6)
        whole = -(-rows // 6) * 6
        if whole <= fitting:  # no worse than all rows at once, and all at once on one thread
            alone = _critical_path(batches, rows, panels, whole, threads)
            assert _critical_path(batches, rows, panels, chunk, threads) <= alone
            assert threads > 1 or chunk == whole


def test_sixteen_rows_are_not_cut_into_twelve_and_four() -> None:
    """One thread would do three quarters of the work."""
    assert _mc(1, 16, 12, 42, 6, 2) >= 16
