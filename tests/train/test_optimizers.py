"""Compiled optimizer steps: eager's updates, few launches for many parameters, few compiles."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import pytest
import torch

import litz
from litz.backend import litz as backend
from litz.lower.registry import rule_for
from litz.report import Explanation
from tests import draws

SIZES = [(8, 16), (33,), (4, 3, 5)]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"weight_decay": 0.01},
    "AdamW": {},
    "Adagrad": {"lr_decay": 0.1},
    "RMSprop": {"momentum": 0.5, "centered": True},
}
ONE_BY_ONE = ("SGD", "AdamW")  # the same updates, written as loops over parameters


def parameters(count: int = 3) -> list[torch.nn.Parameter]:
    draw = draws.generator(0)
    return [
        torch.nn.Parameter(torch.randn(SIZES[k % len(SIZES)], generator=draw)) for k in range(count)
    ]


def set_gradients(held: list[torch.nn.Parameter], seed: int) -> None:
    draw = draws.generator(seed)
    for p in held:
        p.grad = torch.randn(p.shape, generator=draw)


def compiled(step: Any) -> tuple[Any, Explanation]:
    litz.reset()
    notes = Explanation()
    settings = partial(backend, options={"on_error": "raise"}, explanation=notes)
    return torch.compile(step, backend=settings), notes


@pytest.mark.parametrize(
    ("name", "foreach"), [*((n, True) for n in OPTIMIZERS), *((n, False) for n in ONE_BY_ONE)]
)
def test_updates_are_eagers(name: str, foreach: bool) -> None:
    make = partial(getattr(torch.optim, name), lr=0.01, foreach=foreach, **OPTIMIZERS[name])
    one, other = parameters(), parameters()
    eager, ours = make(one), make(other)
    step, notes = compiled(ours.step)
    for seed in range(5):
        set_gradients(one, seed)
        set_gradients(other, seed)
        eager.step()
        step()
        for p, q in zip(one, other, strict=True):
            torch.testing.assert_close(q, p, rtol=1e-5, atol=1e-6)
    for p, q in zip(one, other, strict=True):
        for key, value in eager.state[p].items():
            torch.testing.assert_close(ours.state[q][key], value, rtol=1e-5, atol=1e-6)
    assert not notes.fallbacks and not notes.aten_ops
    assert len(notes.graphs) <= 2, "the first step makes the state, the second finds it there"
    assert all(len(graph.plan.batches) <= 2 for graph in notes.graphs)


def test_many_parameters_are_one_launch_and_few_functions() -> None:
    held = parameters(30)
    set_gradients(held, 0)
    step, notes = compiled(torch.optim.AdamW(held).step)
    step()
    (graph,) = notes.graphs
    # An update for each parameter beside one of its count of steps; one function for each size.
    assert [len(batch) for batch in graph.plan.batches] == [30, 30]
    assert len(graph.source.functions) == len(SIZES) + 1
    assert graph.plan.arena_bytes == 0


def test_a_scheduler_does_not_compile_again() -> None:
    def run(make_step: Any) -> list[torch.Tensor]:
        held = parameters()
        rate = torch.tensor(0.01)
        optimizer = torch.optim.AdamW(held, lr=rate)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=6)
        step = make_step(optimizer.step)
        for seed in range(8):
            set_gradients(held, seed)
            step()
            scheduler.step()
        return [p.detach() for p in held]

    counts: list[int] = []

    def counting(function: Any) -> Any:
        step, notes = compiled(function)

        def run_step() -> None:
            step()
            counts.append(len(notes.graphs))

        return run_step

    torch.testing.assert_close(run(counting), run(lambda step: step), rtol=1e-5, atol=1e-6)
    assert counts[1:] == [counts[1]] * 7 and counts[1] <= 2


def test_an_op_that_another_compiler_defines_later_has_its_rule() -> None:
    """TorchInductor defines prims.fma when it is imported, and AdamW is then spelled with it."""
    importlib.import_module("torch._inductor.inductor_prims")
    assert rule_for(torch.ops.prims.fma.default) is not None
    held = parameters(3)
    set_gradients(held, 0)
    step, notes = compiled(torch.optim.AdamW(held, foreach=False).step)
    step()
    assert not notes.aten_ops
