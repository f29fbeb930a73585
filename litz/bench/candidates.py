"""The candidates: the ways to run a program that are compared.

In: a name. Out: `Candidate`: a backend of torch.compile, or none for eager. `nothing` runs the
graph that Dynamo and AOTAutograd captured, op by op. `floor` does not even that: it returns the
results of its first call again, so its time is torch's own part, a lower bound for every backend.
`litz-best` and `inductor-best` freeze weights and tune. For TorchInductor that is set in its global
configuration while it compiles: options of `torch.compile` do not reach Dynamo, which freezing
needs.
`onednn` is eager with the weights of linear layers and convolutions packed by oneDNN.
Example: `CANDIDATES["litz"].compile(model)(x)`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import compilation_time_metrics
from torch._functorch._aot_autograd.utils import make_boxed_func

from litz.backend import litz
from litz.bench.onednn import why_not_onednn, with_packed_layers
from litz.report import Explanation

# Without this, a graph that Litz cannot compile would run as eager and be timed as Litz.
OPTIONS = {"on_error": "raise"}
# The flags that make both fastest at inference: weights are constants, and choices are timed.
BEST = {"freezing": True, "max_autotune": True}
# Dynamo's name for the seconds that TorchInductor takes from a graph to a callable.
NOTED = "compile_fx_inner"
COMPILERS = ("c++", "g++", "clang++")


def _present() -> str:
    return ""


@dataclass(frozen=True)
class Candidate:
    """`why_not` returns the reason why it cannot run here, or ""."""

    name: str
    backend: str | Callable[..., Any] | None
    why_not: Callable[[], str] = _present
    # used instead of a backend
    prepare: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.prepare is not None:
            return self.prepare(function)
        if self.backend is None:
            return function
        compiled: Callable[..., Any] = torch.compile(function, backend=self.backend)
        return compiled


def _op_by_op(module: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    boxed: Callable[..., Any] = make_boxed_func(module.forward)
    return boxed


def _once(module: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    kept: list[Any] = []

    def run(args: list[Any]) -> list[Any]:
        if not kept:
            kept.extend(module.forward(*args))
        args.clear()
        return list(kept)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


nothing, floor = aot_autograd(fw_compiler=_op_by_op), aot_autograd(fw_compiler=_once)


class _Frozen:
    """A function that TorchInductor compiles at its first call, frozen and tuned."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.run, self.is_compiled = torch.compile(function), False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_compiled:
            return self.run(*args, **kwargs)
        self.is_compiled = True
        with torch._inductor.config.patch(BEST):
            return self.run(*args, **kwargs)


def backend_seconds(notes: Explanation) -> list[float] | None:
    """The seconds from graphs to callables: Litz's from its notes, or TorchInductor's."""
    stages = [s for graph in notes.graphs for path, s in graph.seconds.items() if "." not in path]
    return stages or compilation_time_metrics.get(NOTED)


def _needs_a_compiler() -> str:
    return "" if any(map(shutil.which, COMPILERS)) else "it needs a C++ compiler"


CANDIDATES = {
    each.name: each
    for each in (
        Candidate("litz", partial(litz, options=OPTIONS)),
        Candidate("inductor", "inductor", _needs_a_compiler),
        Candidate("eager", None),
        Candidate("nothing", nothing),
        Candidate("floor", floor),
        Candidate("litz-best", partial(litz, options=OPTIONS | BEST)),
        Candidate("inductor-best", None, _needs_a_compiler, _Frozen),
        Candidate("onednn", None, why_not_onednn, with_packed_layers),
    )
}
