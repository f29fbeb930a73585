"""What tests where it lies is written out in pieces, each stored straight into its window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.fuse import anchor, index_set_splitting, online_softmax, split_reductions
from litz.ir.expr import walk
from litz.ir.program import Kernel, Phase
from tests.stages import compiled, stages
from tests.test_stages import FUNCTIONS as PROGRAMS
from tests.test_stages import test_every_stage_means_the_same as check_every_stage

A, B = torch.randn(256, 128), torch.randn(256, 300)
SMALL = torch.randn(4, 8)


def _kernels(function: Callable[..., object], *inputs: torch.Tensor) -> list[Kernel]:
    return stages(function, *inputs).kernels.kernels


def _ops(nest: Kernel | Phase) -> set[str]:
    return {n.op for n in walk(*(s.value for s in nest.stores))}


def test_each_part_of_a_cat_is_computed_into_its_own_window() -> None:
    """One kernel writes a row from its first element to its last, and tests none of them."""
    (kernel,) = _kernels(lambda a, b: torch.cat([a.exp(), b.tanh()], 1), A, B)
    left, right = kernel.phases
    assert [a.extent.number for p in kernel.phases for a in p.inner] == [128, 300]
    assert len(kernel.writes) == 1 and not kernel.scratch  # nothing is stored on the way
    assert "exp" in _ops(left) and "tanh" in _ops(right)
    assert "tanh" not in _ops(left) and "exp" not in _ops(right)
    assert not _ops(kernel) & {"where", "lt", "ge"}


def test_windows_of_equal_width_are_written_one_after_the_other() -> None:
    (kernel,) = _kernels(lambda a, b: torch.cat([a.exp(), b.tanh()], 1), A, A + 1)
    assert [len(p.stores) for p in kernel.phases] == [1, 1]


def test_windows_that_read_the_same_elements_are_written_side_by_side() -> None:
    """The halves of a rotary embedding: each element is read once for both."""
    cos, sin = torch.randn(2, 256, 64)

    def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, 1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], 1)

    (kernel,) = _kernels(rotary, A, cos, sin)
    assert [len(p.stores) for p in kernel.phases] == [2]
    torch.testing.assert_close(compiled(rotary)(A, cos, sin), rotary(A, cos, sin))


def test_whole_rows_are_kernels_of_their_own() -> None:
    first, second = _kernels(lambda b: torch.cat([b.exp(), b.tanh()]), B)
    assert first.writes == second.writes
    assert _ops(first) & _ops(second) == {"load", "axis", "const"}


def test_a_softmax_ends_in_the_window_of_a_cat() -> None:
    (kernel,) = _kernels(lambda a, b: torch.cat([a.softmax(-1), b.tanh()], 1), A, B)
    assert len(kernel.phases) == 4 and len(kernel.writes) == 1


def test_a_border_of_whole_rows_is_filled_and_a_narrow_one_is_masked() -> None:
    border, rest = _kernels(lambda b: F.pad(b.exp(), (1, 2, 30, 0)), B)
    assert not border.reads and [a.extent.number for a in border.outer] == [30, 303]
    assert [a.extent.number for a in rest.outer] == [256, 303]
    assert "where" in _ops(rest) and rest.writes == border.writes


def test_the_decision_is_kept() -> None:
    made = stages(lambda a, b: torch.cat([a.exp(), b.tanh()], 1), A, B).kernels
    (decision,) = [d for d in made.decisions if d.action == "rewritten"]
    assert "2 segments" in decision.reason


def _rotated(x: torch.Tensor, s: torch.Tensor, dim: int) -> torch.Tensor:
    first, second = x.chunk(2, dim)
    return torch.cat([-second, first], dim) * s + x


def test_halves_that_read_each_other_are_cut_inside_a_row_alone() -> None:
    """In a row, both halves are read once; in other rows what one has read is gone."""
    inside = stages(lambda x, s: _rotated(x, s, 1), B, B + 1).kernels
    assert [[len(p.stores) for p in k.phases] for k in inside.kernels] == [[2]]
    across = stages(lambda x, s: _rotated(x, s, 0), B, B + 1).kernels
    assert [[len(p.stores) for p in k.phases] for k in across.kernels] == [[1]]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda a: torch.cat([a.exp(), a.tanh()]), (SMALL,)),  # less work than a kernel costs
        (lambda a, b: torch.cat([a[:, :3].exp(), b.tanh()], 1), (A, B)),  # a narrow part
        (lambda a, b: torch.cat([a.exp(), b.exp()], 1).softmax(-1), (A, B)),  # it shares rows
    ],
    ids=["small", "narrow", "read"],
)
def test_what_stays_whole(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> None:
    made = stages(function, *inputs).kernels
    assert len(made.kernels) == 1
    assert not any(d.action == "rewritten" for d in made.decisions)


def test_an_index_is_checked_where_its_value_is_not_chosen() -> None:
    """Eager reads x[rows] everywhere, so that a wrong index raises wherever it stands."""

    anchor = torch.zeros(256, 300, dtype=torch.long)

    def at(x: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        here = torch.arange(300)
        return torch.where(here < 150, x[anchor, here].exp(), x.tanh())

    run = compiled(at)
    torch.testing.assert_close(run(B, anchor), at(B, anchor))
    anchor[3, 200] = 256
    with pytest.raises(IndexError):
        run(B, anchor)


# Every rewrite as early as it can come, so that small programs go through it.
EAGER: dict[Any, dict[str, int]] = {
    index_set_splitting: {
        "KERNEL_COST": -1000,
        "MIN_SEGMENT_BYTES_IN_ROW": 4,
        "MIN_SEGMENT_BYTES": 4,
        "RELOAD_COST": 0,
        "MIN_SEGMENTED_ROWS": 2,
    },
    online_softmax: {"BLOCK": 4},
    split_reductions: {"FEW_ROWS": 1000, "MIN_SPLIT_ELEMENTS": 8, "ELEMENTS_PER_SPLIT": 4},
    anchor: {"MIN_SEGMENTED_ROWS": 2},
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_rewrites_change_no_meaning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, numbers in EAGER.items():
        for constant, number in numbers.items():
            monkeypatch.setattr(module, constant, number)
    check_every_stage(name)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "columns": lambda a, b: torch.cat([a.exp(), b.tanh(), a + 1], 1),
    "rows": lambda a, b: torch.cat([b.exp(), b.tanh() * 2]).relu(),
    "nested": lambda a, b: torch.cat([torch.cat([a.exp(), b.sin()], 1), b.tanh()], 1),
    "both ways": lambda a, b: torch.cat([torch.cat([a.exp(), b], 1), torch.cat([b, a.tanh()], 1)]),
    "pad": lambda a, b: F.pad(b.exp(), (70, 80, 30, 40), value=2.5),
    "crop": lambda a, b: F.pad(b.exp(), (-5, 80, 30, -9)),
    "slice_scatter": lambda a, b: b.exp().slice_scatter(a.tanh(), 1, 100, 228),
    "transposed": lambda a, b: torch.cat([a.exp(), b.tanh()], 1).t() + 1,
    "half": lambda a, b: torch.cat([a.bfloat16().exp(), b.bfloat16().tanh()], 1),
    "update": lambda a, b: b.copy_(torch.cat([b[:, 150:].exp(), b[:, :150].tanh()], 1)),
    "where": lambda a, b: torch.where(torch.arange(300) <= 100, b.exp(), b.tanh()),
    "product": lambda a, b: torch.cat([a.exp(), b.tanh()], 1) @ torch.ones(428, 4),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results(name: str) -> None:
    function = FUNCTIONS[name]
    inputs = (A.clone(), B.clone())
    found = compiled(function, debug_index_asserts=True)(*inputs)
    fresh = (A.clone(), B.clone())
    torch.testing.assert_close(found, function(*fresh))
    torch.testing.assert_close(inputs, fresh)
    # The interpreter's exponential is another one, and bf16 has eight bits.
    near = {"rtol": 2**-7, "atol": 0.0} if name == "half" else {"rtol": 1e-5, "atol": 1e-4}
    interpreted = stages(function, A.clone(), B.clone()).fused()[0]
    torch.testing.assert_close(torch.from_numpy(interpreted), found.float(), **near)
