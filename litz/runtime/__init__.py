"""Stage 10: the plan of a call and its machine code become a callable.

In: `CallPlan`, `Binary`. Out: `CompiledGraph`, which takes the list of inputs and returns the list
of outputs. Kernels between two ATen calls run in one native call; intermediates live in one arena;
outputs are all that is allocated. On a GPU it is a `DeviceGraph`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from litz.config import Config
from litz.errors import CudaGraphsRefused, LiveOperand
from litz.ir.call_plan import CallPlan, Recording
from litz.ir.graph import NamedTensor
from litz.ir.source import Binary, DeviceBinary
from litz.runtime.cuda import Cuda
from litz.runtime.cudagraphs import alone, replayed
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
    """Print what a call does as Python, and bind it to the machine code."""
    _refuse_live(plan)
    require(plan.recording, config)
    return CompiledGraph(plan, binary, constants, config, frozen)


@stage("link", "a callable")
def link_device(
    plan: CallPlan, binary: DeviceBinary, constants: dict[str, torch.Tensor], config: Config,
    frozen: Mapping[str, NamedTensor] | None = None,
) -> DeviceGraph:  # fmt: skip
    """The same for a GPU, whose calls may be recorded."""
    _refuse_live(plan)
    require(plan.recording, config)
    device = Cuda(torch.device(plan.device).index or 0)
    graph = DeviceGraph(plan, binary, constants, device, config)
    recorded(graph, constants)
    return graph


def _refuse_live(plan: CallPlan) -> None:
    """A plan with live operands runs only in the process that made it."""
    for live in plan.live:
        if live.value is None:
            raise LiveOperand(live.reason)


def recorded(graph: DeviceGraph, constants: dict[str, torch.Tensor]) -> None:
    """Make its calls replays, as far as its plan says."""
    if not graph.recording.recorded:
        return
    whole = graph.plan.driver is None
    replay = replayed(graph) if whole else partitioned(graph, constants)
    device = graph.device
    graph.call = alone(replay, graph.call, device.stream, device.is_recording)


def require(recording: Recording | None, config: Config) -> None:
    """Raise what is in the way, if the user does not want to go on without; None is a CPU's."""
    if not config.triton.require_cudagraphs:
        return
    if recording is None:
        raise CudaGraphsRefused([ON_THE_CPU])
    if not recording.whole:
        raise CudaGraphsRefused([str(skip) for skip in dict.fromkeys(recording.skips)])


def for_size(config: Config, count: int) -> Config:
    """The config of one more size of a graph, after `count` others: each recording has memory of
    its own, so that only some sizes are recorded."""
    flags, most = config.triton, config.triton.cudagraph_sizes
    if not (flags.cudagraphs or flags.require_cudagraphs) or count < most:
        return config
    if flags.require_cudagraphs:
        raise CudaGraphsRefused([f"triton.cudagraph_sizes allows {most} sizes of one graph"])
    return replace(config, triton=replace(flags, cudagraphs=False))


__all__ = ["ON_THE_CPU", "CompiledGraph", "DeviceGraph", "for_size", "link_device", "link_host"]
