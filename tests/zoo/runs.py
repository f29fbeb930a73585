"""The kinds of runs: what is asked of a model, eager, compiled or in float64, as a list of tensors.

In: an entry, its model, the inputs of each call, and what compiles a function (or gives it back).
Out: tensors, in an order that does not depend on how it was compiled. Example:

    RUNS["training"](entry, model, calls, torch.compile)  # its loss and gradients
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from litz.bench.case import tensors_in
from tests.zoo.entry import Entry

Calls = list[dict[str, Any]]
Wrap = Callable[[Any], Any]
TOKENS = 12


def inference(entry: Entry, model: nn.Module, calls: Calls, wrap: Wrap) -> list[torch.Tensor]:
    """The results of each call, without gradients."""
    run = wrap(model.eval())
    with torch.no_grad():
        return [t.clone() for call in calls for t in tensors_in(run(**call))]


def training(entry: Entry, model: nn.Module, calls: Calls, wrap: Wrap) -> list[torch.Tensor]:
    """The loss of the first call, and the gradient of every parameter."""
    return sized_training(entry, model, calls[:1], wrap)


def sized_training(entry: Entry, model: nn.Module, calls: Calls, wrap: Wrap) -> list[torch.Tensor]:
    """The loss and the gradients of each call."""
    run = wrap(model.train())
    found = []
    for call in calls:
        model.zero_grad()
        loss = _loss(tensors_in(run(**call)))
        loss.backward()
        # Of a parameter that has no gradient, none is expected.
        gradients = [_nothing(p) if p.grad is None else p.grad for p in model.parameters()]
        found += [loss.detach(), *(g.clone() for g in gradients)]
    return found


def _nothing(parameter: nn.Parameter) -> torch.Tensor:
    return parameter.detach().new_empty(0)


def _loss(results: list[torch.Tensor]) -> torch.Tensor:
    """Every result weighed by other numbers: a plain sum of what is normalised has no gradient."""
    total = torch.zeros(())
    for result in results:
        if result.requires_grad:
            flat = (torch.view_as_real(result) if result.is_complex() else result).flatten()
            total = total + (flat * torch.cos(torch.arange(flat.numel(), dtype=flat.dtype))).mean()
    return total


def optimizer(entry: Entry, model: nn.Module, calls: Calls, wrap: Wrap) -> list[torch.Tensor]:
    """The parameters after a step for each call; the step is what is compiled."""
    options = {"lr": 0.01, **({"momentum": 0.9} if entry.optimizer == "SGD" else {})}
    made = getattr(torch.optim, entry.optimizer)(model.parameters(), **options)
    step = wrap(made.step)
    for call in calls:
        made.zero_grad()
        _loss(tensors_in(model(**call))).backward()
        step()
    return [p.detach() for p in model.parameters()]


def generate(entry: Entry, model: nn.Module, calls: Calls, wrap: Wrap) -> list[torch.Tensor]:
    """Greedy tokens, of one call: `forward` is what is compiled."""
    model = model.eval()
    model.forward = wrap(model.forward)  # type: ignore[method-assign]
    words = {k: v for k, v in calls[0].items() if not k.startswith("decoder") and k != "use_cache"}
    asked = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    with torch.no_grad():
        return [model.generate(**words, **asked, pad_token_id=0)]  # type: ignore[operator]


Run = Callable[[Entry, nn.Module, Calls, Wrap], list[torch.Tensor]]
RUNS: dict[str, Run] = {
    "inference": inference,
    "training": training,
    "sized training": sized_training,
    "optimizer": optimizer,
    "bfloat16": inference,
    "generate": generate,
}


class _Widened(TorchFunctionMode):
    """Calls that name float32 get float64: models ask for it in their norms and angles."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.Tensor.float:
            return args[0].double()
        if function is torch.Tensor.__getattribute__:
            return function(*args, **(kwargs or {}))
        wide = [torch.float64 if a is torch.float32 else a for a in args]
        named = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return function(*wide, **named)


@contextmanager
def in_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(before)
