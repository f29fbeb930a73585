"""The compiler: every stage in order, each a function from one type to one type.

In: the FX module that AOTAutograd made, and a config. Out: `CompiledGraph`, or `DeviceGraph` if its
tensors lie on a GPU.
"""

from __future__ import annotations

import torch.fx

from litz.build import build
from litz.capture import capture, devices_of
from litz.codegen import emit
from litz.config import Config
from litz.fuse import fuse
from litz.lower import lower
from litz.passes import optimize
from litz.plan import plan
from litz.report import Report
from litz.runtime import CompiledGraph, DeviceGraph, link
from litz.schedule import schedule
from litz.target import target_for
from litz.trace import Trace


def compile_graph(
    module: torch.fx.GraphModule, kind: str, config: Config
) -> tuple[CompiledGraph | DeviceGraph, Report]:
    """Compile one graph, with a trace of its own."""
    trace = Trace(config.debug, verify=config.verify)
    with trace.watched(f"{kind} graph", progress=not config.disable_progress):
        return _compiled(module, kind, config, trace)


def _compiled(
    module: torch.fx.GraphModule, kind: str, config: Config, trace: Trace
) -> tuple[CompiledGraph | DeviceGraph, Report]:
    """Capture, optimise, lower, fuse, plan, schedule, emit, build, link."""
    target = target_for(devices_of(module), config)
    captured = trace(capture, module, kind)
    graph = trace(optimize, captured, target, config, trace)
    program = trace(lower, graph, target, config)
    kernels = trace(fuse, program, target, config)
    planned = trace(plan, kernels, config)
    scheduled = trace.each(schedule, planned.graph.kernels, target, config, planned.fresh)
    source = trace(emit, planned, scheduled, target)
    binary = trace(build, source, target, config, trace)
    compiled = trace(link, planned, source, binary, graph.constants, config, target)
    report = Report(kind, planned, tuple(scheduled), source, binary, config, trace.timings)
    trace.report(f"{kind} graph")
    return compiled, report
