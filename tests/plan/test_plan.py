"""Order and arena: lifetimes never overlap in one place, and reuse really happens."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from litz.ir.program import Plan, read, written
from tests.stages import stages

X = torch.randn(16, 16)


def _chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = (x @ x).relu()
    return x


def _assert_no_overlap(plan: Plan) -> None:
    """Two buffers that are alive at one step share no byte, unless one takes the other's place."""
    first, last = {}, {}
    for k, step in enumerate(plan.graph.body):
        for b in (*read(step), *written(step)):
            first.setdefault(b.name, k)
            last[b.name] = k
    names = list(plan.slots)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            # A reader's result may take the place of what dies in that very step.
            alive = max(first[a], first[b]) < min(last[a], last[b])
            one, other = plan.slots[a], plan.slots[b]
            apart = (
                one.offset + one.bytes <= other.offset or other.offset + other.bytes <= one.offset
            )
            assert apart or not alive, (a, b)
            assert one.offset + one.bytes <= plan.arena_bytes


def test_a_chain_needs_two_places() -> None:
    plan = stages(_chain, X).plan
    _assert_no_overlap(plan)
    assert plan.arena_bytes == 2 * X.numel() * 4
    assert plan.unplanned_bytes > 4 * plan.arena_bytes // 2


def test_reuse_can_be_turned_off() -> None:
    plan = stages(_chain, X, allow_buffer_reuse=False, inplace_buffers=False).plan
    assert plan.arena_bytes == plan.unplanned_bytes


def test_a_kernel_takes_the_place_of_what_it_reads_last() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu() @ x

    placed = {}
    for inplace in (True, False):
        options = {"inplace_buffers": inplace, "max_autotune_gemm_backends": "ATEN"}
        plan = stages(function, X, **options).plan
        placed[inplace] = len({s.offset for s in plan.slots.values()})
    assert placed == {True: 1, False: 2}


def test_steps_are_ordered_for_a_low_peak() -> None:
    """Each product is folded into the sum before the next one is made."""

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        products = [x @ x for x in inputs]
        return sum(p.sum() for p in products)  # type: ignore[return-value]

    plan = stages(function, *(X + k for k in range(6))).plan
    _assert_no_overlap(plan)
    assert plan.arena_bytes < 3 * X.numel() * 4


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), max_size=12))
def test_random_graphs_never_overlap(steps: list[tuple[int, int, bool]]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for a, b, product in steps:
            left, right = made[a % len(made)], made[b % len(made)]
            made.append(left @ right if product else left.sin() + right)
        return made[-1] + 1

    _assert_no_overlap(stages(function, X).plan)
