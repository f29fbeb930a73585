"""What of a graph is recorded as a CUDA graph: decided from its steps alone, no GPU is asked.

In: a `KernelGraph`, the name of its device, the config. Out: a `Policy`. With nothing in the way
the whole graph is one recording. Otherwise it is split: runs of kernels between calls are recorded
one by one, in the memory of each call, and the calls run as they are, with a reason that names the
op in the way and the user's line. A number on the CPU that only kernels read is not in the way: it
is brought over before a replay. Example: a sort on the CPU between two parts of a model gives
`aten.sort.default works on cpu (aten.sort.default (model.py:3)); 2 runs of kernels recorded`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from litz.config import Config
from litz.errors import CudaGraphsRefused
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, Origin, ViewArg, read, written
from litz.runtime.launches import FEWEST
from litz.runtime.steps import op_of

# Ops that wait for the GPU, or move data between it and the CPU.
WAITING = frozenset({"_local_scalar_dense", "nonzero", "item", "equal", "_unique2", "unique_dim"})
ON_THE_CPU = "CUDA graphs record GPU work; this graph runs on the CPU"


@dataclass(frozen=True)
class Skip:
    """What is in the way of a recording, and where it came from."""

    why: str
    origin: Origin | None = None

    def __str__(self) -> str:
        return f"{self.why} ({self.origin})" if self.origin is not None else self.why


@dataclass(frozen=True)
class Policy:
    """How a graph is recorded: as a whole if it is asked for and nothing is in the way; else `runs`
    of kernels, each from its first step to before its last. `brought` are the positions, among the
    tensors that are given, of numbers on the CPU."""

    asked: bool
    skips: tuple[Skip, ...]
    runs: tuple[tuple[int, int], ...]
    brought: tuple[int, ...] = ()

    @property
    def whole(self) -> bool:
        return self.asked and not self.skips

    @property
    def reasons(self) -> list[str]:
        """Why what was asked for is not done, one line for each thing in the way."""
        if not self.asked:
            return []
        count = f"{len(self.runs)} run{'s' if len(self.runs) != 1 else ''} of kernels"
        instead = f"{count} recorded" if self.runs else "it runs as it is"
        return [f"{skip}; {instead}" for skip in dict.fromkeys(self.skips)]


def policy_of(graph: KernelGraph, device: str, config: Config) -> Policy:
    """What is recorded, and what is in the way of more."""
    flags = config.triton
    skips = (*_in_config(config), *_in_steps(graph, device), *_in_borders(graph, device))
    runs = tuple(_runs(graph)) if config.triton.launch_graphs else ()
    inputs = [b for b in graph.inputs if isinstance(b, Buffer)]
    brought = tuple(k for k, b in enumerate(inputs) if b.device != device)
    return Policy(flags.cudagraphs or flags.require_cudagraphs, skips, runs, brought)


def require(policy: Policy | None, config: Config) -> None:
    """Raise what is in the way, if the user does not want to go on without; None is a CPU's."""
    if not config.triton.require_cudagraphs:
        return
    if policy is None:
        raise CudaGraphsRefused([ON_THE_CPU])
    if not policy.whole:
        raise CudaGraphsRefused([str(skip) for skip in dict.fromkeys(policy.skips)])


def for_size(config: Config, count: int) -> Config:
    """The config of one more size of a graph, after `count` others: each recording has memory of
    its own, so that only some sizes are recorded."""
    flags, most = config.triton, config.triton.cudagraph_sizes
    if not (flags.cudagraphs or flags.require_cudagraphs) or count < most:
        return config
    if flags.require_cudagraphs:
        raise CudaGraphsRefused([f"triton.cudagraph_sizes allows {most} sizes of one graph"])
    return replace(config, triton=replace(flags, cudagraphs=False))


def _in_config(config: Config) -> Iterator[Skip]:
    if config.nan_asserts:
        yield Skip("nan_asserts looks at each result on the CPU before the next step")


def _in_steps(graph: KernelGraph, device: str) -> Iterator[Skip]:
    constants = set(graph.constants)  # brought over once, before anything is recorded
    # A number of the CPU's that calls read has to stay there.
    called = {b for step in graph.externs for b in (*read(step), *written(step))}
    numbers = {b for b in graph.inputs if isinstance(b, Buffer)} - called
    for step in graph.body:
        used = [b for b in read(step) if b not in constants and b.device != device]
        made = [b for b in written(step) if b.device != device]
        if isinstance(step, Extern):
            why = _in_extern(step, [*used, *made])
        else:
            why = _in_kernel([b for b in used if b not in numbers], made)
        if why is not None:
            yield Skip(why, step.origins[0] if step.origins else None)


def _in_borders(graph: KernelGraph, device: str) -> Iterator[Skip]:
    """What about inputs and outputs is in the way."""
    inputs = {b for b in graph.inputs if isinstance(b, Buffer)}
    for buffer in sorted(inputs, key=lambda b: b.name):
        steps = zip(buffer.shape, buffer.strides, strict=True)
        if any(n.number > 1 and s.number == 0 for n, s in steps):
            yield Skip(f"input {buffer} has elements that share memory")
    for output in graph.outputs:
        if isinstance(output.value, ViewArg) and output.value.buffer in inputs:
            yield Skip(f"an output shares memory with input {output.value.buffer}")
        elif isinstance(output.value, ViewArg) and output.value.buffer.device != device:
            yield Skip(f"an output lies on {output.value.buffer.device}")
    if not graph.body:
        yield Skip("there is no work in it")


def _in_kernel(used: list[Buffer], made: list[Buffer]) -> str | None:
    if made:
        return f"a kernel writes {made[0]} on {made[0].device}"
    return f"a kernel reads {used[0]}, which is made on {used[0].device}" if used else None


def _in_extern(step: Extern, away: list[Buffer]) -> str | None:
    namespace, name = step.target.split(".")[:2]
    if namespace == "higher_order":
        return f"{name} decides on the CPU what runs next"
    if name in WAITING:
        return f"{step.target} waits for the GPU"
    tags = getattr(op_of(step), "tags", ())
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return f"the size of what {step.target} gives depends on data"
    if torch.Tag.cudagraph_unsafe in tags:
        return f"{step.target} is marked as unsafe for CUDA graphs"
    return f"{step.target} works on {away[0].device}" if away else None


def _runs(graph: KernelGraph) -> Iterator[tuple[int, int]]:
    """Kernels between two calls, if there are enough to be worth a recording."""
    first = 0
    for place, step in enumerate((*graph.body, None)):
        if isinstance(step, Kernel):
            continue
        if place - first >= FEWEST:
            yield first, place
        first = place + 1
