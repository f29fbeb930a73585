"""Recordings: which steps of a graph become CUDA graphs, decided from the steps alone.

In: a `KernelGraph`, the name of its device, the config. Out: a `Recording`. If every step can be
recorded, the whole graph is one recording. A step that cannot be recorded cuts the graph: the steps
before and after it, kernels and calls alike, are recorded as partitions of their own. The step
itself runs unrecorded, and a reason names its op and the user's line. A scalar tensor on the CPU
that only kernels read is no reason for a cut: it is copied to the GPU before a replay. Example: a
sort on the CPU between two parts of a model gives `aten.sort.default works on cpu
(aten.sort.default (model.py:3)); 2 parts of the graph are recorded`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from litz.config import Config
from litz.ir.aten import op_of
from litz.ir.call_plan import MIN_RECORDED_KERNELS, Range, Recording, Skip
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, ViewArg, read, written
from litz.ir.sizes import roots, used_in

# Ops that wait for the GPU, or move data between it and the CPU.
SYNCHRONIZING = frozenset(
    {"_local_scalar_dense", "nonzero", "item", "equal", "_unique2", "unique_dim"}
)
# Namespaces of ops that work on streams of their own.
OTHER_STREAMS = {
    "streams": "moves work to another stream",
    "_c10d_functional": "communicates on a stream of its own",
    "c10d_functional": "communicates on a stream of its own",
    "c10d": "communicates on a stream of its own",
}


def recording_of(graph: KernelGraph, device: str, config: Config) -> Recording:
    """The parts of a graph that are recorded, and the reasons against recording more."""
    asked = config.triton.cudagraphs or config.triton.require_cudagraphs
    everywhere = (
        *_in_config(config), *_in_kernels(graph, device), *_in_nothing(graph), *_in_inputs(graph),
    )  # fmt: skip
    cuts = _cuts(graph, device)
    skips = (*everywhere, *cuts.values())
    ranges = tuple(_ranges(len(graph.body), cuts)) if asked and not everywhere else ()
    runs = tuple(_runs(graph)) if config.triton.launch_graphs else ()
    if not any(r.recorded for r in ranges):
        ranges = ()
    inputs = {k: b for k, b in enumerate(graph.inputs) if isinstance(b, Buffer)}
    cpu_scalars = tuple(k for k, b in inputs.items() if b.device != device)
    shown = {o.value.buffer for o in graph.outputs if isinstance(o.value, ViewArg)}
    returns_input_alias = not shown.isdisjoint(inputs.values())
    return Recording(asked, skips, ranges, runs, cpu_scalars, returns_input_alias)


# -- reasons against recording ---------------------------------------------------------------


def _in_config(config: Config) -> Iterator[Skip]:
    if config.nan_asserts:
        yield Skip("nan_asserts looks at each result on the CPU before the next step")


def _in_nothing(graph: KernelGraph) -> Iterator[Skip]:
    if not graph.body:
        yield Skip("there is no work in it")


def _in_inputs(graph: KernelGraph) -> Iterator[Skip]:
    """Symbolic sizes of inputs: a recording is for one size of each."""
    sizes = roots(*(n for i in graph.inputs for n in (i.shape if isinstance(i, Buffer) else [i])))
    if sizes:
        names = ", ".join(sorted(str(n) for n in sizes))
        yield Skip(f"its inputs change in size ({names})")


def _in_kernels(graph: KernelGraph, device: str) -> Iterator[Skip]:
    """Kernels that write to another device: since the kernels between two calls run as one, they
    cannot be cut apart."""
    for step in graph.kernels:
        for buffer in (b for b in written(step) if b.device != device):
            why = f"a kernel writes {buffer} on {buffer.device}"
            yield Skip(why, step.origins[0] if step.origins else None)


def _cuts(graph: KernelGraph, device: str) -> dict[int, Skip]:
    """The steps that cannot be recorded, by their position."""
    constants = set(graph.constants)  # they never change, so a recording may read them
    found: dict[int, Skip] = {}
    for place, step in enumerate(graph.body):
        if isinstance(step, Extern):
            used = [b for b in read(step) if b not in constants]
            away = [b for b in (*used, *written(step)) if b.device != device]
            why = _in_extern(step, away)
            if why is not None:
                found[place] = Skip(why, step.origins[0] if step.origins else None)
    sized = _unbacked_steps(graph) if graph.unbacked else {}
    return dict(sorted({**sized, **found}.items()))


def _unbacked_steps(graph: KernelGraph) -> dict[int, Skip]:
    """Steps with unbacked sizes, by their position. Kernels between two calls are launched as one:
    if one of them has such a size, none is recorded."""
    found: dict[int, Skip] = {}
    for run in _launch_groups(graph):
        sizes = {n for k in run for n in used_in(graph.body[k])} & graph.unbacked
        names = ", ".join(sorted(map(str, sizes)))
        found |= {k: Skip(f"unbacked {names} in its steps") for k in run if sizes}
    return found


def _launch_groups(graph: KernelGraph) -> Iterator[list[int]]:
    """The positions of kernels that are launched together; each call is a group of its own."""
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
    if name in SYNCHRONIZING:
        return f"{step.target} waits for the GPU"
    tags = getattr(op_of(step), "tags", ())
    dependent = torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape
    if step.binds or any(tag in tags for tag in dependent):
        return f"the size of what {step.target} gives depends on data"
    if torch.Tag.cudagraph_unsafe in tags:
        return f"{step.target} is marked as unsafe for CUDA graphs"
    return f"{step.target} works on {away[0].device}" if away else None


# -- ranges ----------------------------------------------------------------------------------


def _ranges(count: int, cuts: dict[int, Skip]) -> Iterator[Range]:
    """Steps between cuts are recorded, unless they are too few to be worth it; neighbours that are
    not recorded are one range."""
    first = 0  # of the steps that are not recorded and not in a range yet
    start = 0  # of the steps that may be recorded
    for place in (*cuts, count):
        if place - start >= MIN_RECORDED_KERNELS or (place > start and not cuts):
            if start > first:
                yield Range(first, start, recorded=False)
            yield Range(start, place, recorded=True)
            first = place
        start = place + 1
    if first < count:
        yield Range(first, count, recorded=False)


def _runs(graph: KernelGraph) -> Iterator[tuple[int, int]]:
    """Kernels between two calls, if there are enough to be worth a recording."""
    first = 0
    for place, step in enumerate((*graph.body, None)):
        if isinstance(step, Kernel):
            continue
        if place - first >= MIN_RECORDED_KERNELS:
            yield first, place
        first = place + 1
