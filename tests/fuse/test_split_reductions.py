"""A few long rows are reduced in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests import draws
from tests.stages import compiled, stages

LONG = 1 << 17


def test_one_long_row_becomes_pieces_and_their_sum() -> None:
    pieces, whole = stages(lambda x: x.sum(), torch.randn(LONG)).kernels.body
    assert [a.extent.number for a in pieces.outer] == [16]
    assert whole.outer == () and pieces.writes == whole.reads


def test_the_decision_is_kept() -> None:
    made = stages(lambda x: x.sum(), torch.randn(LONG)).kernels
    (decision,) = [d for d in made.decisions if d.action == "rewritten"]
    assert decision.reason == "1 rows are reduced in 16 pieces (split_reductions)"


def test_short_rows_and_many_rows_stay_whole() -> None:
    assert len(stages(lambda x: x.sum(), torch.randn(4096)).kernels.body) == 1
    assert len(stages(lambda x: x.sum(1), torch.randn(64, 4096)).kernels.body) == 1


def test_the_flag_acts() -> None:
    made = stages(lambda x: x.sum(), torch.randn(LONG), split_reductions=False)
    assert len(made.kernels.body) == 1


def test_the_pieces_do_not_depend_on_the_threads() -> None:
    x = torch.randn(LONG + 5)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(compiled(lambda x: ((x * x).sum(), x.var()))(x))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for some in found for a, b in zip(some, found[0], strict=True))


def test_a_second_pass_waits_for_the_first() -> None:
    made = stages(lambda x: x.var(), torch.randn(LONG))
    assert len(made.kernels.body) == 4
    assert any("split over threads" in d.reason for d in made.kernels.decisions)


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: x.sum(),
    "kept": lambda x: (x * 2, (x * 2).sum()),
    "columns": lambda x: x.view(-1, 3).sum(0),
    "rows": lambda x: x.view(3, -1).prod(1),
    "extremes": lambda x: (x.amax(), x.amin(), x.view(3, -1).amax(1)),
    "any and all": lambda x: ((x > 3).any(), (x > -9).all(), (x > 9).any()),
    "argmax": lambda x: x.argmax(),
    "softmax": lambda x: x.softmax(0),
    "middle": lambda x: x.view(7, -1, 3).sum((0, 2)).sum(),
    "norm": lambda x: x.norm(),
    "integers": lambda x: (x * 9).to(torch.int64).sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("length", [LONG // 4 * 3 * 7, 21 * 9973])
def test_results(name: str, length: int) -> None:
    """A length that pieces divide, and one whose last piece is cut short."""
    x = torch.randn(length, dtype=torch.float64, generator=draws.generator(1))
    function = FUNCTIONS[name]
    torch.testing.assert_close(compiled(function, debug_index_asserts=True)(x), function(x))


@pytest.mark.parametrize(("shape", "dims"), [((1 << 22,), 0), ((4096, 512), 0), ((16, 1 << 17), 1)])
def test_long_float_sums_are_as_exact_as_eager_s(shape: tuple[int, ...], dims: int) -> None:
    """One running sum of these is ten times further off."""
    x = torch.rand(shape, generator=draws.generator(2))
    exact = x.double().sum(dims)
    mine, theirs = (
        ((s.double() - exact).abs() / exact).max()
        for s in (compiled(lambda x: x.sum(dims))(x), x.sum(dims))
    )
    assert mine <= 2 * theirs + 1.2e-7


def test_what_is_stored_on_the_way_stays_in_its_row() -> None:
    """No number of pieces up to twice what is wanted divides 20011, so the last one is short."""
    x = torch.randn(15, 20011, dtype=torch.float64)

    def function(x: torch.Tensor) -> Any:
        return x * 2, x.sum(1)

    found = compiled(function, debug_index_asserts=True)(x)
    torch.testing.assert_close(found, function(x))
