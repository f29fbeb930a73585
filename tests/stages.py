"""The stages by hand, for the tests: a function compiled without Dynamo, and all it went through.

In: a function and its inputs. Out: `Compiled`, which is called like the function, or `Stages`, with
the result of every stage. Dynamo's part (frames and guards) is left out: it takes most of the time
and none of the risk. Example: `stages(torch.softmax, x, -1).kernels.body` is one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.traceback import preserve_node_meta

from litz import backend
from litz.capture import capture, decompositions
from litz.compiler import compile_graph
from litz.config import Config, snapshot
from litz.fuse import fuse
from litz.ir.choices import NO_CHOICES, Choices
from litz.ir.graph import Graph
from litz.ir.interpret import run_kernels, run_program
from litz.ir.program import Extern, KernelGraph, LoopProgram, Plan
from litz.ir.scheduled import ScheduledKernel
from litz.lower import lower
from litz.passes import optimize
from litz.passes.verify import check_values
from litz.plan import plan
from litz.report import Report
from litz.runtime import CompiledGraph
from litz.target import Target, host
from tests.toolchain import schedule

Function = Callable[..., Any]
NARROW = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def through_aot(
    function: Function, compiler: Callable[[torch.fx.GraphModule], Function]
) -> Function:
    """Functionalised and decomposed as the backend does it, then handed to `compiler`."""

    def called(module: torch.fx.GraphModule, _: Any) -> Function:
        with unset_fake_temporarily():  # as the backend does: passes compute with constants
            return compiler(module)

    traced = aot_function(
        function,
        fw_compiler=called,
        inference_compiler=called,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )

    def run(*inputs: Any) -> Any:
        with preserve_node_meta():  # each node knows the op it came from, as it does behind Dynamo
            return traced(*inputs)

    return run


@contextmanager
def compiles_noted() -> Iterator[list[tuple[CompiledGraph, Report]]]:
    """What the backend compiles inside, a graph after the other."""
    found: list[tuple[CompiledGraph, Report]] = []

    def noted(*args: Any) -> Any:
        found.append(compile_graph(*args))
        return found[-1]

    backend.compile_graph = noted
    try:
        yield found
    finally:
        backend.compile_graph = compile_graph


@dataclass
class Compiled:
    """A function compiled by Litz on its first call; no fallback: what fails, raises."""

    function: Function
    config: Config
    reports: list[Report] = field(default_factory=list)
    graphs: list[CompiledGraph] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._traced = through_aot(self.function, self._compile)

    def _compile(self, module: torch.fx.GraphModule) -> Function:
        callable_, report = compile_graph(module, "inference", self.config)
        self.reports.append(report)
        self.graphs.append(callable_)
        return callable_

    def __call__(self, *inputs: Any) -> Any:
        with torch.no_grad():
            return self._traced(*inputs)

    @property
    def aten_ops(self) -> list[str]:
        """The ops left to ATen, without their overloads."""
        return [op.split(".")[1] for r in self.reports for op in r.aten_ops.elements()]


def compiled(function: Function, **options: Any) -> Compiled:
    """Options are flags by name, with `__` for the dot: `cpp__threads=1`."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    return Compiled(function, snapshot(named))


def linked(function: Function, *inputs: Any, **options: Any) -> CompiledGraph:
    """The callable that the last stage makes of a function."""
    run = compiled(function, **options)
    run(*(copied(i) for i in inputs))
    return run.graphs[0]


def module_text(function: Function, *inputs: Any, **options: Any) -> str:
    """The LLVM module that a function becomes."""
    run = compiled(function, **options)
    run(*(copied(i) for i in inputs))
    return run.reports[0].source.text


@dataclass(frozen=True)
class Stages:
    """What each stage made of one function."""

    graph: Graph
    program: LoopProgram
    kernels: KernelGraph
    plan: Plan
    scheduled: list[ScheduledKernel]
    inputs: list[torch.Tensor]

    def lowered(self) -> list[Any]:
        """The loops of `lower`, interpreted."""
        return self._interpreted(run_program, self.program)

    def fused(self) -> list[Any]:
        """The kernels of `plan` in its order, interpreted."""
        return self._interpreted(run_kernels, self.plan.graph)

    def _interpreted(self, run: Callable[..., list[Any]], program: Any) -> list[Any]:
        constants = {name: as_array(t) for name, t in self.graph.constants.items()}
        inputs = [as_array(t) for t in self.inputs]
        return run(program, inputs, constants, extern=call_aten) + inputs


def stages(function: Function, *inputs: Any, **options: Any) -> Stages:
    """Every stage up to `schedule`, each called by hand."""
    found: list[Stages] = []
    named = {name.replace("__", "."): value for name, value in options.items()}
    config = snapshot(named)
    target = host(config.cpp.threads, config.cpp.simdlen)

    def compiler(module: torch.fx.GraphModule) -> Function:
        found.append(staged(module, target, config, inputs))
        return module.forward  # type: ignore[no-any-return]

    with torch.no_grad():
        through_aot(function, compiler)(*(copied(i) for i in inputs))
    (result,) = found
    return result


def staged(
    module: torch.fx.GraphModule, target: Target, config: Config, inputs: Sequence[Any],
    choices: Choices = NO_CHOICES,
) -> Stages:  # fmt: skip
    graph = optimize(capture(module, "inference"), target, config)
    check_values(graph, graph.nodes, {})
    program = lower(graph, target, config, choices)
    kernels = fuse(program, target, config, choices)
    planned = plan(kernels, config)
    chosen = (frozenset[str](), choices)
    scheduled = [schedule(k, target, config, *chosen) for k in planned.graph.kernels]
    tensors = [i for i in inputs if isinstance(i, torch.Tensor)]
    return Stages(graph, program, kernels, planned, scheduled, tensors)


def copied(value: Any) -> Any:
    """A tensor of its own with the same values and strides; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    fresh = torch.empty(0, dtype=value.dtype)
    return fresh.set_(storage, value.storage_offset(), value.shape, value.stride())  # type: ignore


def as_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A fresh array of the values; bf16 and what is narrower as the float32 the interpreter holds
    it in."""
    widened = tensor.float() if tensor.dtype in NARROW else tensor
    return widened.detach().numpy().copy()


def call_aten(step: Extern, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """An extern call of the interpreter: the op itself over the arrays' values."""
    namespace, name, overload = step.target.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    tensors = [_as_tensor(a) for a in args]
    result = op(*tensors, **{k: _as_tensor(v) for k, v in kwargs.items()})
    return [as_array(r) for r in ([result] if step.single else result)]


def _as_tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    return [_as_tensor(v) for v in value] if isinstance(value, (list, tuple)) else value
