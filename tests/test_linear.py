"""Work grows with the ops and no faster: counted in calls, never in seconds."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest
import torch

from litz.config import Config
from litz.ir.verify import verify
from litz.target import host
from tests.stages import staged, through_aot
from tests.toolchain import emit

X = torch.randn(8, 40)
FEW, MANY = 500, 2000
# Work an op may grow by this much: the last group of a short program is not full.
SLACK = 1.15


def chain(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Every value is read by the next one and by one further on."""

    def function(x: torch.Tensor) -> torch.Tensor:
        before = x
        for k in range(count // 2):
            x, before = (x + before).relu() if k % 8 else (x * before).sin(), x
        return x

    return function


def tree(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """pytorch issue 148073: each level uses the one below it three times."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(count // 4):
            x = x * 0.5 + x * x * 0.1
        return x

    return function


def fan(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """One value with as many readers as there are ops, and one sum of them all."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y, total = x.exp(), x
        for k in range(count // 2):
            total = total + y * k
        return total

    return function


def _calls(function: Callable[[torch.Tensor], torch.Tensor]) -> int:
    """The calls of every stage up to the text of the kernels."""
    found: list[int] = []

    def compiler(module: torch.fx.GraphModule) -> Callable[..., torch.Tensor]:
        config, target = Config(), host(1)
        profile = cProfile.Profile(builtins=False)
        profile.enable()
        made = staged(module, target, config, [])
        verify(made.kernels)
        emit(made.plan, made.scheduled, target)
        profile.disable()
        found.append(sum(entry.callcount for entry in profile.getstats()))
        return module.forward  # type: ignore[no-any-return]

    with torch.no_grad():
        through_aot(function, compiler)(X)
    return found[0]


@pytest.mark.parametrize("make", [chain, tree, fan])
def test_work_for_each_op_stays_flat(make: Callable[[int], Callable[..., object]]) -> None:
    _calls(make(50))  # what is made once for a process
    assert _calls(make(MANY)) / MANY < SLACK * _calls(make(FEW)) / FEW


def test_what_a_call_scatters_into_is_made_anew_at_each_call() -> None:
    """Zeros depend on nothing that changes, but the sums in them do."""
    layer = torch.nn.Linear(16, 32)

    def scattered(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.zeros(12, 32).index_add(0, i, layer(x)).cumsum(1)

    compiled = torch.compile(scattered, backend="litz", options={"on_error": "raise"})
    x, i = torch.randn(500, 16), torch.randint(0, 12, (500,))
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x, i), scattered(x, i), rtol=1e-4, atol=1e-4)
