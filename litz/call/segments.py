"""Segments: the kernels between two ATen calls, which one native function runs.

In: a `Plan`, and the steps before which segments are cut. Out: `Segment`s in order, and the
`Prepack` that comes before all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from litz.ir.call_plan import Prepack, Segment
from litz.ir.program import Extern, Kernel, Plan


def segments(plan: Plan, cut: Collection[int]) -> tuple[Segment, ...]:
    """The kernels between calls or cuts, without those that prepack."""
    runs: list[list[int]] = [[]]
    kernel = _prepacking(plan)
    for position, step in enumerate(plan.graph.body):
        if position < plan.graph.prepack_steps:
            continue
        if position in cut or isinstance(step, Extern):
            runs.append([])
        if isinstance(step, Kernel):
            runs[-1].append(kernel)
            kernel += 1
    batches = _batches(plan)
    named = enumerate(run for run in runs if run)
    return tuple(Segment(f"litz_segment_{k}", tuple(_within(run, batches))) for k, run in named)


def prepack_of(plan: Plan) -> Prepack | None:
    """The prepack of a plan, if weights are prepacked."""
    graph = plan.graph
    if not graph.prepack_steps:
        return None
    calls = tuple(s for s in graph.body[: graph.prepack_steps] if isinstance(s, Extern))
    sources = tuple(plan.sources)
    own = tuple(_within(list(range(_prepacking(plan))), _batches(plan)))
    final = set(sources) <= set(graph.constants)  # their sources never change
    constants = graph.constants if final else ()
    return Prepack(Segment("litz_prepack", own), calls, graph.prepacked, sources, constants, final)


def _prepacking(plan: Plan) -> int:
    """How many kernels prepack weights."""
    return sum(isinstance(step, Kernel) for step in plan.graph.body[: plan.graph.prepack_steps])


def _batches(plan: Plan) -> dict[int, tuple[int, ...]]:
    """The batch that begins with each kernel."""
    return {batch[0]: batch for batch in plan.batches}


def _within(run: list[int], batches: dict[int, tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """The batches of a run of kernels; in a plan without batches, each kernel is one."""
    if not batches:
        yield from ((k,) for k in run)
        return
    yield from (batches[k] for k in run if k in batches)
