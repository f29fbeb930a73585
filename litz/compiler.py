"""The compiler: every stage in order, each a function from one type to one type.

In: the FX module that AOTAutograd made, and a config. Out: a callable graph and its report. One
thread compiles at a time, with the torch modes of the user's program switched off.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.fx

from litz.autotune import tune
from litz.call import plan_call
from litz.capture import COMPILE_LOCK, capture, devices_of
from litz.config import Config
from litz.cyclic_gc import fewer_collections
from litz.fuse import fuse
from litz.ir.graph import NamedTensor
from litz.lower import lower
from litz.passes import optimize
from litz.plan import plan
from litz.report import Report, Stages
from litz.runtime.modes import without_modes
from litz.target import target_for
from litz.targets import toolchain_of
from litz.toolchain import LinkedGraph
from litz.trace import Trace

# From an input's position to its tensor and the name that the user gave it.
Parameters = Mapping[int, NamedTensor] | None


def compile_graph(
    module: torch.fx.GraphModule, kind: str, config: Config, parameters: Parameters = None
) -> tuple[LinkedGraph, Report]:
    """Compile one graph, with a trace of its own. `parameters` may become constants."""
    trace = Trace(config.debug, verify=config.verify)
    progress = trace.watched(f"{kind} graph", progress=not config.disable_progress)
    with COMPILE_LOCK, without_modes(), fewer_collections(), progress:
        return _compiled(module, kind, config, trace, parameters)


def _compiled(
    module: torch.fx.GraphModule, kind: str, config: Config, trace: Trace, parameters: Parameters
) -> tuple[LinkedGraph, Report]:
    """Capture, optimise, tune, lower, fuse, plan, schedule, emit, plan the call, build, link."""
    target = target_for(devices_of(module), config)
    tools = toolchain_of(target)
    tools.get_ready(target, config, sum(n.op == "call_function" for n in module.graph.nodes))
    captured = trace(capture, module, kind, parameters)
    graph = trace(optimize, captured, target, config, trace)
    tuning = trace(tune, graph, target, tools, config, trace)
    program = trace(lower, graph, target, config, tuning.choices)
    kernels = trace(fuse, program, target, config, tuning.choices)
    planned = trace(plan, kernels, config)
    chosen = (planned.fresh, tuning.choices)
    scheduled = trace.each(tools.schedule, planned.graph.kernels, target, config, *chosen)
    written = trace(tools.emit, planned, scheduled, target)
    given = (graph.constants, config, target, tuple(graph.frozen))
    call = trace(plan_call, planned, written, *given)
    source = trace(tools.drive, written, call, target)
    code = trace(tools.build, source, target, config, trace)
    binary = trace(tools.load, source, code)
    compiled = trace(tools.link, call, binary, graph.constants, config, graph.frozen)
    made = Stages(target, planned, tuple(scheduled), source, binary)
    noted = tuple(graph.decisions)
    report = Report(kind, call, config, trace.timings, tuning, noted, made)
    trace.report(f"{kind} graph")
    return compiled, report
