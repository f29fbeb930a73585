"""A function through torch.compile: called again at other sizes, for gradients, by threads.

In: a function, flags and a `CallMode`. Out: its results, call by call. If a module holds some of
the inputs as parameters, they are overwritten before each call, in one of the ways that programs
use. Inputs and results are on the CPU; the code may be for another device. Nothing falls back to
eager: a failure raises. Example: `ThroughDynamo(f, {}, CallMode())([x])`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from litz.backend import litz
from litz.fuzz.program import CallMode
from litz.fuzz.runs import on_device
from litz.report import Explanation, discarding_explanation

Function = Callable[..., Any]
Tensors = list[torch.Tensor]


def with_gradients(function: Function) -> Function:
    """Its results, and the gradients of a weighted sum of them by every float input. All are
    copies: torch promises neither the layout of gradients nor what shares their memory."""

    def run(*inputs: torch.Tensor) -> Tensors:
        with torch.enable_grad():
            with torch._C.DisableTorchFunction():
                given = [_leaf(t) for t in inputs]
            results = list(function(*given))
            with torch._C.DisableTorchFunction():  # modes see only the program
                leaves = [t for t in given if t.requires_grad]
                parts = [_weighed(r) for r in results if r.requires_grad]
                gradients = _gradients(sum(parts, start=torch.zeros(())), leaves)
                return [*(r.detach().clone() for r in results), *gradients]

    return run


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    if tensor.requires_grad:
        return tensor  # a parameter
    return tensor.detach().requires_grad_()


def _weighed(result: torch.Tensor) -> torch.Tensor:
    """A sum in which every element has its own weight."""
    count = torch.arange(result.numel(), dtype=torch.float64, device=result.device)
    weights = count.cos().reshape(result.shape)
    return (result * weights.to(result.dtype)).sum(dtype=torch.float64)


def _gradients(total: torch.Tensor, leaves: Tensors) -> Tensors:
    if not total.requires_grad:
        return [torch.zeros_like(t) for t in leaves]
    found = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [g.detach().clone(memory_format=torch.contiguous_format) for g in found]


class Holder(torch.nn.Module):
    """A function with some arguments as parameters of a module."""

    def __init__(self, function: Function, held: Mapping[int, torch.Tensor], trained: bool) -> None:
        super().__init__()
        self.function, self.places = function, sorted(held)
        self.held = torch.nn.ParameterList(
            torch.nn.Parameter(held[k].clone(), requires_grad=trained) for k in self.places
        )

    def forward(self, *inputs: torch.Tensor) -> Any:
        full = list(inputs)
        for place, parameter in zip(self.places, self.held, strict=True):
            full.insert(place, parameter)
        return self.function(*full)

    @torch.no_grad()
    def write(self, values: Tensors, way: int) -> None:
        """As an optimizer does, bypassing torch's version counter, or with new memory."""
        for parameter, value in zip(self.held, values, strict=True):
            if way == 0:
                parameter.copy_(value)
            elif way == 1:
                parameter.data.copy_(value)
            else:
                parameter.data = value.clone()


class ThroughDynamo:
    """Compiled at its first call. `backend` is Litz unless another is given."""

    def __init__(
        self, function: Function, options: Mapping[str, Any], call_mode: CallMode,
        parameters: Sequence[int] = (), backend: Any = None, notes: Explanation | None = None,
        device: str = "cpu",
    ) -> None:  # fmt: skip
        torch._dynamo.reset()
        self.device = device
        self.function, self.call_mode, self.parameters = function, call_mode, tuple(parameters)
        self.notes, self.calls = discarding_explanation() if notes is None else notes, 0
        self.backend: Any = backend or self._backend
        self.options = {**options, "on_error": "raise", "disable_progress": True}
        self.holder: Holder | None = None
        self.compiled: Function | None = None

    def _backend(self, module: torch.fx.GraphModule, inputs: Any) -> Function:
        return litz(module, inputs, options=self.options, explanation=self.notes)

    def _compile(self, held: Mapping[int, torch.Tensor]) -> Function:
        if held:
            self.holder = Holder(self.function, held, self.call_mode.gradients)
        run: Any = self.holder or self.function
        dynamic = None if self.call_mode.automatic else True
        compiled: Function = torch.compile(run, backend=self.backend, dynamic=dynamic)
        return compiled

    def __call__(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        self._write(inputs)
        return self._run(inputs)

    def at_once(self, inputs: Sequence[torch.Tensor]) -> list[tuple[Tensors, Tensors]]:
        """Call from several threads, each with its own inputs: results, and inputs afterwards."""
        given = [copy.deepcopy(list(inputs)) for _ in range(self.call_mode.threads)]
        with ThreadPoolExecutor(self.call_mode.threads) as pool:
            return list(zip(pool.map(self._run, given), given, strict=True))

    def _write(self, inputs: Sequence[torch.Tensor]) -> None:
        held = {k: inputs[k].to(self.device) for k in self.parameters}
        if self.compiled is None:
            self.compiled = self._compile(held)
        elif self.holder is not None:
            self.holder.write(list(held.values()), self.calls % 3)
        self.calls += 1

    def _run(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        return on_device(self._run_there, self.device, inputs)

    def _run_there(self, *inputs: torch.Tensor) -> Tensors:
        if not self.call_mode.gradients:
            with torch.no_grad():
                return list(self._called(*inputs))
        full = list(inputs)
        if self.holder is not None:
            for place, parameter in zip(self.holder.places, self.holder.held, strict=True):
                full[place] = parameter
        return with_gradients(self._called)(*full)  # type: ignore[no-any-return]

    def _called(self, *inputs: torch.Tensor) -> Any:
        assert self.compiled is not None
        free = [t for k, t in enumerate(inputs) if k not in self.parameters]
        return self.compiled(*free)
