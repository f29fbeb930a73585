"""What of a graph is recorded as CUDA graphs: decided from its steps alone, no GPU is asked.

In: a `KernelGraph`, the name of its device, the config. Out: a `Policy`. With nothing in the way
the whole graph is one recording. A step that cannot be recorded cuts the graph: what lies before
it and behind it, kernels and calls alike, is recorded in parts of their own; the step runs as it
is, and a reason names its op and the user's line. A number on the CPU that only kernels read is not
in the way: it is brought over before a replay. Example: a sort on the CPU between two parts of a
model gives `aten.sort.default works on cpu (aten.sort.default (model.py:3)); 2 parts of the graph
are recorded`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from litz.config import Config
from litz.errors import CudaGraphsRefused
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, Origin, ViewArg, read, written
from litz.ir.sizes import roots, used_in
from litz.runtime.launches import FEWEST
from litz.runtime.steps import op_of

# Ops that wait for the GPU, or move data between it and the CPU.
WAITING = frozenset({"_local_scalar_dense", "nonzero", "item", "equal", "_unique2", "unique_dim"})
# Namespaces of ops that work on streams of their own.
OTHER_STREAMS = {
    "streams": "moves work to another stream",
    "_c10d_functional": "communicates on a stream of its own",
    "c10d_functional": "communicates on a stream of its own",
    "c10d": "communicates on a stream of its own",
}
ON_THE_CPU = "CUDA graphs record GPU work; this graph runs on the CPU"


@dataclass(frozen=True)
class Skip:
    """What is in the way of a recording, and where it came from."""

    why: str
    origin: Origin | None = None

    def __str__(self) -> str:
        return f"{self.why} ({self.origin})" if self.origin is not None else self.why


@dataclass(frozen=True)
class Part:
    """Neighbouring steps, from `first` to before `last`, that are recorded together or run as they
    are."""

    first: int
    last: int
    recorded: bool


@dataclass(frozen=True)
class Policy:
    """How a graph is recorded: as a whole if it is asked for and nothing is in the way; else in
    `parts`. Where nothing is recorded, `runs` of kernels may be, each from its first step to before
    its last. `brought` are the positions, among what is given, of numbers on the CPU;
    `shows_inputs` says that an output is an input, or a view of one."""

    asked: bool
    skips: tuple[Skip, ...]
    parts: tuple[Part, ...]
    runs: tuple[tuple[int, int], ...]
    brought: tuple[int, ...] = ()
    shows_inputs: bool = False

    @property
    def whole(self) -> bool:
        return self.asked and not self.skips

    @property
    def recorded(self) -> int:
        """How many parts are recorded."""
        return sum(p.recorded for p in self.parts)

    @property
    def reasons(self) -> list[str]:
        """Why what was asked for is not done, one line for each thing in the way."""
        if not self.asked:
            return []
        instead = "it runs as it is"
        if self.recorded:
            many = "s of the graph are" if self.recorded > 1 else " of the graph is"
            instead = f"{self.recorded} part{many} recorded"
        elif self.runs:
            count = f"{len(self.runs)} run{'s' if len(self.runs) != 1 else ''} of kernels"
            instead = f"{count} recorded"
        return [f"{skip}; {instead}" for skip in dict.fromkeys(self.skips)]


def policy_of(graph: KernelGraph, device: str, config: Config) -> Policy:
    """What is recorded, and what is in the way of more."""
    asked = config.triton.cudagraphs or config.triton.require_cudagraphs
    everywhere = (
        *_in_config(config), *_in_kernels(graph, device), *_in_nothing(graph), *_in_inputs(graph),
    )  # fmt: skip
    cuts = _cuts(graph, device)
    skips = (*everywhere, *cuts.values())
    parts = tuple(_parts(len(graph.body), cuts)) if asked and not everywhere else ()
    runs = tuple(_runs(graph)) if config.triton.launch_graphs else ()
    if not any(p.recorded for p in parts):
        parts = ()
    inputs = {k: b for k, b in enumerate(graph.inputs) if isinstance(b, Buffer)}
    brought = tuple(k for k, b in inputs.items() if b.device != device)
    shown = {o.value.buffer for o in graph.outputs if isinstance(o.value, ViewArg)}
    return Policy(asked, skips, parts, runs, brought, not shown.isdisjoint(inputs.values()))


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


# -- what is in the way ----------------------------------------------------------------------


def _in_config(config: Config) -> Iterator[Skip]:
    if config.nan_asserts:
        yield Skip("nan_asserts looks at each result on the CPU before the next step")


def _in_nothing(graph: KernelGraph) -> Iterator[Skip]:
    if not graph.body:
        yield Skip("there is no work in it")


def _in_inputs(graph: KernelGraph) -> Iterator[Skip]:
    """A recording is for one size of each input."""
    sizes = roots(*(n for i in graph.inputs for n in (i.shape if isinstance(i, Buffer) else [i])))
    if sizes:
        names = ", ".join(sorted(str(n) for n in sizes))
        yield Skip(f"its inputs change in size ({names})")


def _in_kernels(graph: KernelGraph, device: str) -> Iterator[Skip]:
    """Kernels run between calls in one piece: one that cannot be recorded stops all of them."""
    for step in graph.kernels:
        for buffer in (b for b in written(step) if b.device != device):
            why = f"a kernel writes {buffer} on {buffer.device}"
            yield Skip(why, step.origins[0] if step.origins else None)


def _cuts(graph: KernelGraph, device: str) -> dict[int, Skip]:
    """The calls that cannot be recorded, by their place."""
    constants = set(graph.constants)  # they never change: what was recorded stays true
    found: dict[int, Skip] = {}
    for place, step in enumerate(graph.body):
        if isinstance(step, Extern):
            used = [b for b in read(step) if b not in constants]
            away = [b for b in (*used, *written(step)) if b.device != device]
            why = _in_extern(step, away)
            if why is not None:
                found[place] = Skip(why, step.origins[0] if step.origins else None)
    sized = _sized_by_data(graph) if graph.bound else {}
    return dict(sorted({**sized, **found}.items()))


def _sized_by_data(graph: KernelGraph) -> dict[int, Skip]:
    """Steps that work on sizes which data tells, by their place. A run of kernels is launched as
    one: where one of them does, none is recorded."""
    found: dict[int, Skip] = {}
    for run in _neighbours(graph):
        sizes = {n for k in run for n in used_in(graph.body[k])} & graph.bound
        names = ", ".join(sorted(map(str, sizes)))
        found |= {k: Skip(f"only data tells {names}, which steps work on") for k in run if sizes}
    return found


def _neighbours(graph: KernelGraph) -> Iterator[list[int]]:
    """The places of kernels that are launched together; a call is alone."""
    run: list[int] = []
    for place, step in enumerate(graph.body):
        if isinstance(step, Kernel):
            run.append(place)
            continue
        yield from filter(None, (run, [place]))
        run = []
    yield run


def _in_extern(step: Extern, away: list[Buffer]) -> str | None:
    namespace, name = step.target.split(".")[:2]
    if namespace == "higher_order":
        return f"{name} decides on the CPU what runs next"
    if namespace in OTHER_STREAMS:
        return f"{step.target} {OTHER_STREAMS[namespace]}"
    if name in WAITING:
        return f"{step.target} waits for the GPU"
    tags = getattr(op_of(step), "tags", ())
    dependent = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
    if step.binds or any(tag in tags for tag in dependent):
        return f"the size of what {step.target} gives depends on data"
    if torch.Tag.cudagraph_unsafe in tags:
        return f"{step.target} is marked as unsafe for CUDA graphs"
    return f"{step.target} works on {away[0].device}" if away else None


# -- parts -----------------------------------------------------------------------------------


def _parts(count: int, cuts: dict[int, Skip]) -> Iterator[Part]:
    """Steps between cuts are recorded, unless they are too few to be worth it; neighbours that are
    not recorded are one part."""
    first = 0  # of what is not recorded and not given out yet
    start = 0  # of what may be recorded
    for place in (*cuts, count):
        if place - start >= FEWEST or (place > start and not cuts):
            if start > first:
                yield Part(first, start, recorded=False)
            yield Part(start, place, recorded=True)
            first = place
        start = place + 1
    if first < count:
        yield Part(first, count, recorded=False)


def _runs(graph: KernelGraph) -> Iterator[tuple[int, int]]:
    """Kernels between two calls, if there are enough to be worth a recording."""
    first = 0
    for place, step in enumerate((*graph.body, None)):
        if isinstance(step, Kernel):
            continue
        if place - first >= FEWEST:
            yield first, place
        first = place + 1
