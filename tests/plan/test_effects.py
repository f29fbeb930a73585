"""Calls that have effects keep the order that the program has them in, whatever their sizes are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch.fx.node import _side_effectful_functions
from torch.testing._internal.distributed.fake_pg import FakeStore

from litz.backend import litz
from litz.ir.program import Extern, Plan
from litz.plan.order import order_steps
from litz.report import Explanation
from tests.stages import stages

SIZES = [(4, 4000, 64), (4000, 4, 64), (64, 4000, 4), (8, 8, 8), (64, 4, 4000)]
CALLS: list[str] = []


@torch.library.custom_op("litz_effects::note", mutates_args=())
def note(x: torch.Tensor, name: str) -> torch.Tensor:
    CALLS.append(name)
    return x.sum(0)


@note.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return x.new_empty(x.shape[1:])


note.register_autograd(lambda context, grad: (grad, None))


torch.library.define("litz_effects::tell", "(Tensor x, str name) -> ()")
torch.library.impl("litz_effects::tell", "cpu", lambda x, name: CALLS.append(name))
torch.library.register_fake("litz_effects::tell", lambda x, name: None)


@torch.library.custom_op("litz_effects::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _noted_gradient(context: Any, grad: torch.Tensor) -> torch.Tensor:
    note(grad, "gradient")
    return grad * 2


twice.register_autograd(_noted_gradient)


def _noted_sum(x: torch.Tensor) -> torch.Tensor:
    note(x, "sum")
    return x + 1


torch.library.define("litz_effects::composed", "(Tensor x) -> Tensor")
torch.library.impl("litz_effects::composed", "CompositeImplicitAutograd", _noted_sum)


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def _branches(inputs: tuple[torch.Tensor, ...], effect: Any) -> Any:
    """Each keeps a large value until the end: the sooner it begins, the higher the peak."""
    ends = []
    for number, x in enumerate(inputs):
        large = x.sort(0).values.exp()
        ends.append((large, effect(large.sum(0, keepdim=True), number)))
    return [(large * small).sort(0).values for large, small in ends]


def _effects(plan: Plan) -> list[Extern]:
    return [s for s in plan.graph.body if isinstance(s, Extern) and s.foreign]


def _inputs(sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(n, 8) for n in sizes]


def test_a_low_peak_is_what_orders_steps() -> None:
    """What keeps the order below is no accident: without effects the branches change places."""
    made = stages(lambda *x: _branches(x, lambda y, _: y.cumsum(0)), *_inputs(SIZES[1]))
    moved = order_steps(made.kernels).body
    assert moved != made.kernels.body


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_collectives(group: Any, sizes: tuple[int, ...]) -> None:
    """Ranks whose sizes differ would else wait for each other, or take each other's numbers."""
    kinds = ("sum", "avg", "max")

    def reduced(x: torch.Tensor, number: int) -> torch.Tensor:
        return collectives.all_reduce(x, kinds[number], group)

    made = stages(lambda *x: _branches(x, reduced), *_inputs(sizes))
    order = [(s.target.split(".")[1], s.args[1:2]) for s in _effects(made.plan)]
    assert [kind for name, kind in order if name == "all_reduce"] == [(k,) for k in kinds]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_ops_of_libraries(sizes: tuple[int, ...]) -> None:
    made = stages(lambda *x: _branches(x, lambda y, n: note(y, str(n))), *_inputs(sizes))
    assert [s.args[1] for s in _effects(made.plan)] == ["0", "1", "2"]


def _calls(function: Callable[..., Any], inputs: list[torch.Tensor], **options: Any) -> Any:
    """What a compiled call does, in order; and what its plan says of it."""
    torch._dynamo.reset()
    notes = Explanation()
    given = {"on_error": "raise", **options}
    backend = partial(litz, options=given, explanation=notes)
    fast = torch.compile(function, backend=backend, fullgraph=True)
    CALLS.clear()
    fast(*inputs)
    (report,) = notes.graphs
    return list(CALLS), report.plan


@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
@pytest.mark.parametrize("order", [*permutations(("note", "tell", "random"))], ids=str)
def test_effects_of_every_kind_keep_one_order(
    order: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    """An op of a library, one without results, and one that draws from the generator."""

    def effect(x: torch.Tensor, number: int) -> torch.Tensor:
        kind = order[number]
        if kind == "random":
            return torch.randn_like(x)
        if kind == "note":
            return note(x, kind)
        torch.ops.litz_effects.tell(x, kind)
        return x

    def run(*x: torch.Tensor) -> Any:
        return _branches(x, effect)

    called, plan = _calls(run, _inputs(sizes), fallback_random=True)
    assert called == [kind for kind in order if kind != "random"]
    calls = [s for s in plan.graph.body if isinstance(s, Extern) and s.has_effect]
    names = {"note": "note", "tell": "tell", "randn_like": "random"}
    assert [names[s.target.split(".")[1]] for s in calls] == list(order)


def _dead(x: torch.Tensor) -> torch.Tensor:
    note(x + 1, "a")
    torch.ops.litz_effects.tell(x, "b")
    note(x, "c")
    note(x, "c")
    return x * 2


@pytest.mark.parametrize("grad", [False, True])
def test_an_effect_that_nothing_reads_stays(grad: bool) -> None:
    """Though its result goes nowhere, and though it was called the same before."""
    torch._dynamo.reset()
    x = torch.randn(4, 4, requires_grad=grad)
    fast = torch.compile(_dead, backend="litz", fullgraph=True, options={"on_error": "raise"})
    for _ in range(2):
        CALLS.clear()
        result = fast(x)
        assert CALLS == ["a", "b", "c", "c"]
    if grad:
        result.sum().backward()
        assert CALLS == ["a", "b", "c", "c"]  # the backward runs none of them again
        assert torch.equal(x.grad, torch.full((4, 4), 2.0))


def test_effects_that_the_program_does_not_name_stay() -> None:
    """Those of a gradient's formula, and of an op that is written in others."""
    torch._dynamo.reset()
    x = torch.randn(4, 4, requires_grad=True)

    def run(x: torch.Tensor) -> torch.Tensor:
        return twice(torch.ops.litz_effects.composed(x)).sin()

    fast = torch.compile(run, backend="litz", fullgraph=True, options={"on_error": "raise"})
    CALLS.clear()
    result = fast(x)
    assert CALLS == ["sum"]
    result.sum().backward()
    assert CALLS == ["sum", "gradient"]


def test_nothing_is_left_of_what_tracing_was_told() -> None:
    before = set(_side_effectful_functions)
    _calls(_dead, [torch.randn(4, 4)], fallback_random=True)
    assert before == _side_effectful_functions
