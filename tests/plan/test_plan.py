"""Order and arena: lifetimes never overlap in one place, and reuse really happens."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from litz.ir.program import Plan, read, written
from tests.stages import compiled, stages

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


def test_kernels_that_touch_nothing_of_each_other_are_one_batch() -> None:
    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [x.exp() for x in inputs]

    given = [torch.randn(n, 7) for n in (3, 50, 9, 200)]
    made = stages(function, *given)
    assert made.plan.batches == ((0, 1, 2, 3),)
    for found, x in zip(compiled(function)(*given), given, strict=True):
        torch.testing.assert_close(found, x.exp())


def test_a_kernel_that_waits_for_another_is_in_a_later_batch() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x.exp().sum()
        return total * y, y.sum(0) + total

    body = stages(function, torch.randn(400, 300), torch.randn(50, 60)).plan
    where = {k: n for n, batch in enumerate(body.batches) for k in batch}
    assert sorted(where) == list(range(len(body.graph.kernels)))
    for later, kernel in enumerate(body.graph.kernels):
        for earlier in range(later):
            if set(written(body.graph.kernels[earlier])) & set(read(kernel)):
                assert where[earlier] < where[later]


def test_updates_in_step_share_a_kernel() -> None:
    """What one stores another reads, at the same place in the same turn: values come first."""

    def function(p: torch.Tensor, m: torch.Tensor, g: torch.Tensor) -> None:
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)

    given = [torch.randn(37, 5) for _ in range(3)]
    made = stages(function, *(t.clone() for t in given))
    assert len(made.plan.graph.kernels) == 1 and made.plan.arena_bytes == 0
    ours, eager = [t.clone() for t in given], [t.clone() for t in given]
    compiled(function)(*ours)
    function(*eager)
    torch.testing.assert_close(ours, eager)


def test_updates_out_of_step_do_not() -> None:
    def function(p: torch.Tensor, m: torch.Tensor) -> None:
        new = m * 2
        p.add_(m.t())
        m.copy_(new)

    given = [torch.randn(8, 8) for _ in range(2)]
    assert len(stages(function, *(t.clone() for t in given)).plan.graph.kernels) == 2
    ours, eager = [t.clone() for t in given], [t.clone() for t in given]
    compiled(function)(*ours)
    function(*eager)
    torch.testing.assert_close(ours, eager)


def test_a_kernel_takes_over_what_an_aten_call_brought() -> None:
    """The sigmoid goes where the convolution's result was, which nobody needs any more."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        between = torch.sigmoid(torch.conv1d(x, w))
        return torch.conv1d(between, w).relu()

    x, w = torch.randn(2, 8, 40), torch.randn(8, 8, 3)
    made = stages(function, x, w).plan
    assert len(made.inplace_reuse) == 1 and made.arena_bytes == 0
    torch.testing.assert_close(compiled(function)(x, w), function(x, w))


def test_what_is_read_elsewhere_is_not_written_over() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first = torch.conv1d(x, w)
        return torch.conv1d(torch.sigmoid(first) + first.flip(2), w)

    x, w = torch.randn(2, 8, 40), torch.randn(8, 8, 3)
    assert not stages(function, x, w).plan.inplace_reuse
    torch.testing.assert_close(compiled(function)(x, w), function(x, w))


def test_a_result_that_the_caller_sees_is_not_written_over() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.conv1d(x, w)
        return first, torch.conv1d(torch.sigmoid(first), w)

    x, w = torch.randn(2, 8, 40), torch.randn(8, 8, 3)
    assert not stages(function, x, w).plan.inplace_reuse
    torch.testing.assert_close(compiled(function)(x, w), function(x, w))


def _joined(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Convolutions bring their results before and after a large tensor of our own."""
    first = torch.nn.functional.conv2d(x, weight, padding=1)
    wide = torch.cat([first, first.sin(), first.cos()], 1).roll(1, 2)
    last = torch.nn.functional.conv2d(wide, weight.repeat(1, 3, 1, 1), padding=1)
    return torch.nn.functional.conv2d(last, weight, padding=1).amax((2, 3))


def test_a_large_intermediate_beside_atens_is_lent_memory() -> None:
    x, weight = torch.randn(2, 16, 256, 256), torch.randn(16, 16, 3, 3)
    plan = stages(_joined, x, weight).plan
    assert plan.call_allocated and not plan.call_allocated & set(plan.slots)
    assert plan.arena_bytes < 24 << 20
    found = compiled(_joined)(x, weight)
    torch.testing.assert_close(found, _joined(x, weight), rtol=1e-4, atol=1e-3)


def test_small_intermediates_stay_in_the_arena() -> None:
    plan = stages(_joined, torch.randn(1, 16, 32, 32), torch.randn(16, 16, 3, 3)).plan
    assert not plan.call_allocated
