"""Poisoned memory: what was never written is NaN, and a write outside of a buffer is an error."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch

from litz.errors import InternalError
from litz.ir.call_plan import ARENA
from litz.runtime.poison import REDZONE, check_arena_gaps, check_redzone, guarded
from tests.stages import compiled, linked


def _chain(x: torch.Tensor) -> torch.Tensor:
    return (x.cumsum(0) / x.sum(0)) @ x + 1


def _with(made: Any, change: Any) -> None:
    """Let something else happen behind each run of kernels."""
    names = made.call.__globals__
    for name in [n for n in names if n.startswith("segment_")]:
        run = names[name]

        def both(address: int, run: Any = run) -> None:
            run(address)
            change((ctypes.c_void_p * 64).from_address(address))

        names[name] = both


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_results_are_what_they_are_without_it(dtype: torch.dtype) -> None:
    x = torch.randn(24, 24).to(dtype)
    plain = compiled(_chain, debug_poison_memory=False)(x)
    assert torch.equal(compiled(_chain, debug_poison_memory=True)(x), plain)


def test_kernels_that_do_not_run_leave_poison() -> None:
    made = linked(_chain, torch.randn(8, 8), debug_poison_memory=True)
    names = made.call.__globals__
    names["segment_0"] = lambda address: None
    (found,) = made([torch.randn(8, 8)])
    assert found.isnan().all()


def test_every_call_begins_with_poison() -> None:
    made = linked(_chain, torch.randn(8, 8), debug_poison_memory=True)
    seen: list[bool] = []
    names = made.call.__globals__
    first = names["segment_0"]

    def look(address: int) -> None:
        arena = made.free[0].arena if made.free else None
        assert arena is None  # a call has taken it
        table = (ctypes.c_void_p * 64).from_address(address)
        seen.append(ctypes.string_at(table[ARENA], 64) == b"\xff" * 64)
        first(address)

    names["segment_0"] = look
    for _ in range(2):
        made([torch.randn(8, 8)])
    assert seen == [True, True]


def test_a_write_behind_an_output_raises() -> None:
    made = linked(lambda x: x + 1, torch.randn(8), debug_poison_memory=True)
    place = next(k for name, k in made.plan.table.items() if name.startswith("t"))
    _with(made, lambda table: ctypes.memset(table[place] + 4 * 8 + 3, 0, 1))
    with pytest.raises(InternalError, match="behind t0"):
        made([torch.randn(8)])


def test_a_write_between_intermediates_raises() -> None:
    made = linked(_chain, torch.randn(8, 8), debug_poison_memory=True)
    (slot, *_) = made.plan.slots.values()
    end = slot.offset + slot.bytes - REDZONE
    _with(made, lambda table: ctypes.memset(table[ARENA] + end + 1, 7, 1))
    with pytest.raises(InternalError, match="where no intermediate lies"):
        made([torch.randn(8, 8)])


def test_a_write_past_the_arena_raises() -> None:
    arena = torch.full((256,), 255, dtype=torch.uint8)
    check_arena_gaps(arena, [(64, 128), (0, 60)])
    arena[200] = 0
    with pytest.raises(InternalError, match="at 200"):
        check_arena_gaps(arena, [(0, 60), (64, 128)])
    check_arena_gaps(arena, [(0, 60), (64, 128), (180, 201)])


def test_symbolic_sizes_are_guarded_too() -> None:
    torch._dynamo.reset()
    options = {"debug_poison_memory": True, "on_error": "raise"}
    run = torch.compile(_softmax_of_product, backend="litz", dynamic=True, options=options)
    for rows in (5, 40, 7, 1, 64):
        x = torch.randn(rows, 12)
        torch.testing.assert_close(run(x), _softmax_of_product(x), rtol=1e-4, atol=1e-5)


def _softmax_of_product(x: torch.Tensor) -> torch.Tensor:
    return (x @ x.t()).softmax(-1).cumsum(0) @ x


@pytest.mark.parametrize("shape", [(3, 5), (), (1,)], ids=str)
def test_a_fresh_tensor_has_a_guard(shape: tuple[int, ...]) -> None:
    like = torch.empty(shape)
    made = guarded(tuple(like.shape), like.stride(), torch.float32)
    assert made.shape == like.shape and made.stride() == like.stride() and made.isnan().all()
    check_redzone("it", made)
    ctypes.memset(made.untyped_storage().data_ptr() + made.untyped_storage().nbytes() - 1, 0, 1)
    with pytest.raises(InternalError, match="behind it"):
        check_redzone("it", made)


def test_a_fresh_tensor_without_elements_has_no_memory() -> None:
    made = guarded((0, 4), (4, 1), torch.float32)
    assert made.shape == (0, 4) and made.data_ptr() == 0
    check_redzone("it", made)
