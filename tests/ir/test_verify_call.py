"""The laws of calls: a call that breaks one is refused before anything is printed from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from litz.errors import VerifyError
from litz.ir.call_plan import Allocate, Body, Call, CallPlan, Free, Run
from litz.ir.verify_call import verify_call
from tests import draws
from tests.stages import compiled

X = torch.randn(6, 8, generator=draws.generator(0))


@pytest.fixture(scope="module")
def call() -> CallPlan:
    """Two segments with a sort between them, whose operand and result are freed."""
    run = compiled(lambda x: (x.exp() + 1).sort(-1)[0] * 2 + x.sum())
    run(X)
    found = run.reports[0].call
    kinds = {type(step) for step in found.body.steps}
    assert kinds >= {Allocate, Call, Free, Run} and len(found.segments) == 2
    return found


def _body(call: CallPlan, change: Callable[[list], None]) -> CallPlan:
    steps = list(call.body.steps)
    change(steps)
    return replace(call, body=replace(call.body, steps=tuple(steps)))


def _without(kind: type) -> Callable[[list], None]:
    def change(steps: list) -> None:
        steps.remove(next(s for s in steps if isinstance(s, kind)))

    return change


def _early(steps: list) -> None:
    steps.insert(0, steps.pop(next(k for k, s in enumerate(steps) if isinstance(s, Free))))


def _unknown_output(body: Body) -> Body:
    value = body.outputs[0].value
    other = replace(value, buffer=replace(value.buffer, name="nobody"))
    return replace(body, outputs=(replace(body.outputs[0], value=other),))


WRONG: dict[str, tuple[Callable[[CallPlan], CallPlan], str]] = {
    "no memory": (lambda c: _body(c, _without(Allocate)), "where there is no tensor"),
    "freed too early": (lambda c: _body(c, _early), "where there is no tensor"),
    "a segment left out": (lambda c: _body(c, _without(Run)), "are to run once each"),
    "a segment run twice": (
        lambda c: _body(c, lambda s: s.append(next(x for x in s if isinstance(x, Run)))),
        "are to run once each|where there is no tensor",
    ),
    "a segment that is not there": (
        lambda c: _body(c, lambda s: s.append(Run("litz_segment_9"))),
        "no segment litz_segment_9",
    ),
    "a call left out": (lambda c: _body(c, _without(Call)), "where there is no tensor"),
    "an output of nobody's": (
        lambda c: replace(c, body=_unknown_output(c.body)),
        "nobody is used by an output",
    ),
    "a kernel in no segment": (
        lambda c: replace(c, segments=c.segments[1:]),
        "belongs to 0 segments",
    ),
    "a kernel too many": (lambda c: replace(c, kernels=c.kernels[:-1]), "which is not there"),
    "an argument without a place": (
        lambda c: replace(c, table={}, intermediates=()),
        "which has no place",
    ),
    "a number without an entry": (
        lambda c: replace(c, computed={"tasks 7": c.kernels[0].launches[0].tasks}),
        "tasks 7 is computed and has no entry",
    ),
    "a number that nobody computes": (
        lambda c: replace(c, body=replace(c.body, enters=("size s9",))),
        "nothing computes it",
    ),
}


def test_a_call_keeps_the_laws(call: CallPlan) -> None:
    verify_call(call)


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_law_is_named(name: str, call: CallPlan) -> None:
    change, law = WRONG[name]
    with pytest.raises(VerifyError, match=law):
        verify_call(change(call))
