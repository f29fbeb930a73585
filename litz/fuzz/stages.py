"""A graph compiled up to one stage, and run as that stage left it.

In: the FX module that AOTAutograd made, and the name of a stage. Out: a callable over the list of
its inputs. ATen runs a graph, the interpreter runs loops; machine code runs one kernel at a time,
over separate memory, until the stage that links them. Example:
`Partway("lower", config).compiled(module, "inference")([x])` runs the lowered loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.fx
from torch._functorch.partitioners import default_partition

from litz.autotune import tune
from litz.call import plan_call
from litz.capture import (
    COMPILE_LOCK,
    capture,
    devices_of,
    forbid_new_guards,
    is_symbolic,
    simplify_masks,
    specialization_key,
    specialize,
    through_aot_autograd,
)
from litz.config import Config
from litz.errors import InternalError, SizeUnknown
from litz.fuse import fuse
from litz.fuzz.interpreted import as_code, as_scheduled, interpreted
from litz.ir.choices import Choices
from litz.ir.graph import Graph
from litz.ir.program import LoopProgram, Plan
from litz.ir.source import Binary
from litz.lower import GUARD_ERRORS, lower
from litz.passes import JOINT_PASSES, PASSES, Pass, optimize, partition
from litz.plan import plan
from litz.runtime import CompiledGraph
from litz.runtime.modes import without_modes
from litz.target import Target, target_for
from litz.targets import toolchain_of
from litz.trace import Trace

# In the order of the pipeline. `codegen` is run unoptimised, `build` as LLVM optimises it, and
# `link` with separate memory for each buffer: only the plan's arena comes after that.
STAGES = (
    "capture", "partition", "passes", "lower", "fuse", "plan", "schedule", "codegen", "build",
    "link",
)  # fmt: skip
ON_A_DEVICE = STAGES[: STAGES.index("schedule")]  # the interpreter cannot run kernels of a GPU
# Stages that are lists of passes, which can be cut off after any of them.
LISTS: dict[str, Sequence[Pass]] = {"partition": JOINT_PASSES, "passes": PASSES}

Boxed = Callable[[list[Any]], Any]


def boxed(run: Callable[[list[Any]], Any]) -> Boxed:
    """A callable that AOTAutograd gives its inputs as one list."""

    def call(args: list[Any]) -> Any:
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


class Partway:
    """Compiles up to `stage`; if that is a list of passes, up to `passes` of them."""

    def __init__(self, stage: str, config: Config, passes: int | None = None) -> None:
        self.stage, self.config, self.last = stage, config, STAGES.index(stage)
        self.passes = {stage: LISTS[stage][:passes]} if stage in LISTS else {}

    def reaches(self, stage: str) -> bool:
        return self.last >= STAGES.index(stage)

    # -- behind Dynamo -----------------------------------------------------------------------

    def backend(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """A backend like `litz.backend.litz`."""
        if self.config.joint_graph_constant_folding:
            simplify_masks(module)
        split = self._split if self.reaches("partition") else default_partition
        return through_aot_autograd(module, inputs, self._graph, split, self.config.fallback_random)

    def _split(self, joint: torch.fx.GraphModule, args: Sequence[Any], **given: Any) -> Any:
        trace = Trace()
        chosen = self.passes.get("partition")
        return trace(partition, joint, args, self.config, trace, passes=chosen, **given)

    def _graph(self, module: torch.fx.GraphModule, _: Sequence[Any], kind: str) -> Boxed:
        """One callable for all sizes, or one for each, as the backend decides."""
        if not is_symbolic(module):
            return self.compiled(module, kind)
        try:
            with COMPILE_LOCK, forbid_new_guards(module):
                return self.compiled(module, kind)
        except Exception as error:
            expected = isinstance(error, SizeUnknown) or isinstance(error.__cause__, GUARD_ERRORS)
            if isinstance(error, InternalError) and not expected:
                raise
            return boxed(BySize(module, partial(self.compiled, kind=kind)))

    # -- one graph ---------------------------------------------------------------------------

    def compiled(self, module: torch.fx.GraphModule, kind: str) -> Boxed:
        """A callable for the graph as the stage leaves it."""
        with COMPILE_LOCK, without_modes():
            return boxed(self._compiled(module, kind))

    def _compiled(self, module: torch.fx.GraphModule, kind: str) -> Boxed:
        trace, config = Trace(verify=self.config.verify), self.config
        target = target_for(devices_of(module), config)
        graph = trace(capture, module, kind)
        if self.reaches("passes"):
            graph = trace(optimize, graph, target, config, trace, self.passes.get("passes"))
        if not self.reaches("lower"):
            return _by_aten(graph)
        choices = trace(tune, graph, target, toolchain_of(target), config, trace).choices
        program = trace(lower, graph, target, config, choices)
        if self.stage == "lower":
            return partial(interpreted, program, graph.constants)
        return self._fused(program, graph, target, choices, trace, _by_aten(capture(module, kind)))

    def _fused(
        self, program: LoopProgram, graph: Graph, target: Target, choices: Choices, trace: Trace,
        plain: Boxed,
    ) -> Boxed:  # fmt: skip
        config, constants, tools = self.config, graph.constants, toolchain_of(target)
        kernels = trace(fuse, program, target, config, choices)
        if self.stage == "fuse":
            return partial(interpreted, kernels, constants)
        planned = trace(plan, kernels, config)
        steps = planned.graph.kernels
        if self.stage == "plan":
            return partial(interpreted, planned.graph, constants)
        made = trace.each(tools.schedule, steps, target, config, planned.fresh, choices)
        if self.stage == "schedule":
            hook = as_scheduled(steps, made)
            return partial(interpreted, planned.graph, constants, kernel=hook)
        placed = without_arena(planned, keeps_prepacked=self.stage == "link")
        written = trace(tools.emit, placed, made, target)
        given = (constants, config, target, tuple(graph.frozen))
        call = trace(plan_call, placed, written, *given)
        source = trace(tools.drive, written, call, target)
        if self.stage == "codegen":
            config = replace(config, cpp=replace(config.cpp, opt_level=0))
        try:
            code = trace(tools.build, source, target, config, trace)
        except Exception:
            if self.stage == "codegen":
                return plain  # the next stage will raise
            raise
        binary = trace(tools.load, source, code)
        assert isinstance(binary, Binary)
        if self.stage != "link":
            hook = as_code(call, binary)
            return partial(interpreted, placed.graph, constants, kernel=hook)
        linked = trace(tools.link, call, binary, constants, config, graph.frozen)
        assert isinstance(linked, CompiledGraph)
        linked.unfolded = plain
        return linked.call


def _by_aten(graph: Graph) -> Boxed:
    module = graph.module
    module.recompile()

    def run(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return module.forward(*given)

    return run


def without_arena(plan: Plan, keeps_prepacked: bool) -> Plan:
    """The same order, with separate memory for each intermediate. Prepacked weights are computed in
    every call, unless `keeps_prepacked`."""
    graph = plan.graph if keeps_prepacked else replace(plan.graph, static=frozenset())
    call_allocated = plan.call_allocated | set(plan.slots)
    inplace_reuse = plan.inplace_reuse if keeps_prepacked else {}
    return replace(
        plan,
        graph=graph,
        slots={},
        arena_bytes=0,
        regions=(),
        inplace_reuse=inplace_reuse,
        call_allocated=call_allocated,
    )


class BySize:
    """A graph with symbolic sizes, compiled for each combination of them."""

    def __init__(
        self, module: torch.fx.GraphModule, compile: Callable[[torch.fx.GraphModule], Boxed]
    ) -> None:
        self.module, self.compile = module, compile
        self.known: dict[tuple[Any, ...], Boxed] = {}

    def __call__(self, args: list[Any]) -> Any:
        sizes = specialization_key(args)
        if sizes not in self.known:
            with COMPILE_LOCK, without_modes():
                self.known[sizes] = self.compile(specialize(self.module, args))
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        args.clear()
        return self.known[sizes](tensors)
