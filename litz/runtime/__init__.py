"""Stage 10: the plan of a call and its machine code become a callable.

In: `CallPlan`, `Binary`. Out: `CompiledGraph`, which takes the list of inputs and returns the list
of outputs. Kernels between two ATen calls run in one native call; intermediates share one arena;
only outputs are allocated at each call. On a GPU it is a `DeviceGraph`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from litz.config import Config
from litz.errors import CudaGraphsRefused, UnserializableOperand
from litz.ir.call_plan import CallPlan, Recording
from litz.ir.graph import NamedTensor
from litz.ir.source import Binary, DeviceBinary
from litz.runtime.cuda import Cuda
from litz.runtime.cudagraphs import cudagraphify, one_replay_at_a_time
from litz.runtime.device_graph import DeviceGraph
from litz.runtime.graph import CompiledGraph
from litz.runtime.partitioned import partitioned
from litz.trace import stage

ON_THE_CPU = "CUDA graphs record GPU work; this graph runs on the CPU"


@stage("link", "a callable")
def link_host(
    plan: CallPlan, binary: Binary, constants: dict[str, torch.Tensor], config: Config,
    frozen: Mapping[str, NamedTensor] | None = None,
) -> CompiledGraph:  # fmt: skip
    """Print the wrapper, and bind it to the machine code."""
    _refuse_opaque(plan)
    check_cudagraphs_required(plan.recording, config)
    return CompiledGraph(plan, binary, constants, config, frozen)


@stage("link", "a callable")
def link_device(
    plan: CallPlan, binary: DeviceBinary, constants: dict[str, torch.Tensor], config: Config,
    frozen: Mapping[str, NamedTensor] | None = None,
) -> DeviceGraph:  # fmt: skip
    """The same for a GPU, whose calls may be recorded as CUDA graphs."""
    _refuse_opaque(plan)
    check_cudagraphs_required(plan.recording, config)
    device = Cuda(torch.device(plan.device).index or 0)
    graph = DeviceGraph(plan, binary, constants, device, config)
    recorded(graph, constants)
    return graph


def _refuse_opaque(plan: CallPlan) -> None:
    """Raise if a plan with opaque operands comes from another process: their values are missing."""
    for opaque in plan.opaque:
        if opaque.value is None:
            raise UnserializableOperand(opaque.reason)


def recorded(graph: DeviceGraph, constants: dict[str, torch.Tensor]) -> None:
    """Make its calls replays, as far as its plan allows."""
    if not graph.recording.recorded:
        return
    whole = graph.plan.driver is None
    replay = cudagraphify(graph) if whole else partitioned(graph, constants)
    device = graph.device
    graph.call = one_replay_at_a_time(replay, graph.call, device.stream, device.is_capturing)


def check_cudagraphs_required(recording: Recording | None, config: Config) -> None:
    """Raise the reasons against recording the whole graph, if CUDA graphs are required. The
    recording of a CPU's graph is None."""
    if not config.triton.require_cudagraphs:
        return
    if recording is None:
        raise CudaGraphsRefused([ON_THE_CPU])
    if not recording.whole:
        raise CudaGraphsRefused([str(skip) for skip in dict.fromkeys(recording.skips)])


def for_size(config: Config, count: int) -> Config:
    """The config of one more size of a graph, after `count` others. Only the first sizes are
    recorded, since each recording has memory of its own."""
    flags, most = config.triton, config.triton.cudagraph_sizes
    if not (flags.cudagraphs or flags.require_cudagraphs) or count < most:
        return config
    if flags.require_cudagraphs:
        raise CudaGraphsRefused([f"triton.cudagraph_sizes allows {most} sizes of one graph"])
    return replace(config, triton=replace(flags, cudagraphs=False))


__all__ = ["ON_THE_CPU", "CompiledGraph", "DeviceGraph", "for_size", "link_device", "link_host"]
