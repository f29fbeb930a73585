"""One arena for graphs that do not run at the same time; another one for each that does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from litz.runtime import memory
from tests import draws

Function = Callable[[torch.Tensor], torch.Tensor]


def _first(x: torch.Tensor) -> torch.Tensor:
    return (x.softmax(-1) @ x).sort(0).values.cumsum(0) * 2  # kernels around ATen's call


def _second(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x.exp().sum(1), 0) @ x


def _compiled(function: Function, **given: Any) -> Function:
    return torch.compile(function, backend="litz", options={"on_error": "raise"}, **given)


@pytest.fixture(autouse=True)
def _none_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    memory.IDLE_ARENAS.clear()


def _check(fast: Function, function: Function, size: int) -> None:
    x = torch.randn(size, size, generator=draws.generator(size))
    torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-4)


def test_graphs_share_an_arena_as_large_as_the_largest_needs() -> None:
    one, two = _compiled(_first, dynamic=False), _compiled(_second, dynamic=True)
    seen = []
    for size in (64, 200, 64, 100):
        for fast, function in ((one, _first), (two, _second), (one, _first)):
            _check(fast, function, size)
        assert len(memory.IDLE_ARENAS) == 1
        seen.append(memory.IDLE_ARENAS[0].numel())
    assert seen == sorted(seen) and seen[1] == seen[2]


def test_calls_at_the_same_time_have_arenas_of_their_own() -> None:
    pairs = [(_compiled(f, dynamic=d), f) for f in (_first, _second) for d in (False, True)]
    for fast, function in pairs:
        for size in (48, 96):
            _check(fast, function, size)

    def many(number: int) -> None:
        for k in range(30):
            fast, function = pairs[(number + k) % len(pairs)]
            _check(fast, function, 48 if k % 3 else 96)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(many, range(4)))


def test_a_graph_that_runs_inside_another_leaves_its_arena_alone() -> None:
    inner = _compiled(_second, dynamic=False)

    @torch.library.custom_op("litz_arena::inner", mutates_args=())
    def call(x: torch.Tensor) -> torch.Tensor:
        return inner(x).clone()

    @call.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(x.shape[1])

    def outer(x: torch.Tensor) -> torch.Tensor:
        y = x.softmax(-1)  # read on both sides of the call
        return (y * call(y)).sort(0).values + y

    def plain(x: torch.Tensor) -> torch.Tensor:
        y = x.softmax(-1)
        return (y * _second(y)).sort(0).values + y

    fast = _compiled(outer, dynamic=False)
    for _ in range(3):
        _check(fast, plain, 64)
    assert 1 <= len(memory.IDLE_ARENAS) <= 2
