"""Stage 9: a plan and its machine code become a callable.

In: `Plan`, `Source`, `Binary`. Out: `CompiledGraph`, which takes the list of inputs and returns the
list of outputs. Kernels between two ATen calls run in one native call; intermediates live in one
arena; outputs are all that is allocated. On a GPU it is a `DeviceGraph`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from litz.config import Config
from litz.ir.graph import NamedTensor
from litz.ir.program import Plan
from litz.ir.source import Binary, DeviceBinary, DeviceSource, Source
from litz.runtime.cuda import Cuda
from litz.runtime.cudagraphs import alone, replayed
from litz.runtime.device_graph import DeviceGraph
from litz.runtime.graph import CompiledGraph
from litz.runtime.graph_policy import ON_THE_CPU, for_size, policy_of, require
from litz.runtime.parts import in_parts
from litz.target import CpuTarget, GpuTarget
from litz.trace import stage


@stage("link", "a callable")
def link_host(
    plan: Plan, source: Source, binary: Binary, constants: dict[str, torch.Tensor], config: Config,
    target: CpuTarget | None = None, frozen: Mapping[str, NamedTensor] | None = None,
) -> CompiledGraph:  # fmt: skip
    """Settle what is known beforehand, so that a call does the rest line by line."""
    require(None, config)
    return CompiledGraph(plan, source, binary, constants, config, frozen)


@stage("link", "a callable")
def link_device(
    plan: Plan, source: DeviceSource, binary: DeviceBinary, constants: dict[str, torch.Tensor],
    config: Config, target: GpuTarget, frozen: Mapping[str, NamedTensor] | None = None,
) -> DeviceGraph:  # fmt: skip
    """The same for a GPU, whose calls may be recorded."""
    device = Cuda(torch.device(target.device).index or 0)
    graph = DeviceGraph(plan, source, binary, constants, device, config)
    require(graph.policy, config)
    recorded(graph, constants)
    return graph


def recorded(graph: DeviceGraph, constants: dict[str, torch.Tensor]) -> None:
    """Make its calls replays, as far as its policy says."""
    if not graph.policy.recorded:
        return
    whole = graph.policy.whole and not graph.policy.shows_inputs
    replay = replayed(graph) if whole else in_parts(graph, constants)
    device = graph.device
    graph.call = alone(replay, graph.call, device.stream, device.is_recording)


__all__ = [
    "ON_THE_CPU", "CompiledGraph", "DeviceGraph", "for_size", "link_device", "link_host",
    "policy_of",
]  # fmt: skip
