"""A training run of twenty steps, made twice from one state: as eager and compiled.

In: a function that makes a model and its step. Out: the losses of both runs and what is left of
the models, held against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import litz
from litz.backend import litz as backend
from litz.report import Explanation
from tests import draws

STEPS = 20
RAISE = {"on_error": "raise"}
# step(number, batch) -> the loss of that step
Step = Callable[[int, torch.Tensor], torch.Tensor]
# make(compile) -> the model whose state is compared, and the step over it
Make = Callable[[Callable[..., Any]], tuple[torch.nn.Module, Step]]


def batches(*shape: int) -> list[torch.Tensor]:
    generator = draws.generator(1)
    return [torch.randn(*shape, generator=generator) for _ in range(STEPS)]


def run(make: Make, compile: Callable[..., Any], given: list[torch.Tensor]) -> Any:
    """The losses, and the parameters and buffers at the end."""
    litz.reset()
    draws.seed(0)
    model, step = make(compile)
    draws.seed(1)
    losses = [step(number, batch).item() for number, batch in enumerate(given)]
    state = {name: t.detach().clone() for name, t in model.state_dict().items()}
    return torch.tensor(losses, dtype=torch.float64), state


def follows_eager(make: Make, *shape: int, rtol: float = 1e-4) -> Explanation:
    """Both runs lose alike at every step, learn something and end in the same state."""
    given, notes = batches(*shape or (8, 16)), Explanation()
    expected, state = run(make, lambda function, **_: function, given)
    found, reached = run(make, partial(_compiled, notes), given)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-5)
    assert len(set(expected.tolist())) > STEPS // 2, "the run stands still: it shows nothing"
    for name, value in state.items():
        # An entry near zero carries the error of the terms that cancel in it.
        torch.testing.assert_close(reached[name], value, rtol=10 * rtol, atol=rtol, msg=name)
    assert not notes.fallbacks and notes.graphs
    return notes


def _compiled(notes: Explanation, function: Any, **options: object) -> Any:
    settings = {**RAISE, **options}
    return torch.compile(function, backend=partial(backend, options=settings, explanation=notes))
