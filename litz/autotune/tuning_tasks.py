"""Tuning tasks: a kernel, the choices for it, and the names that share the result.

In: the captured graph and the kernels it becomes by rule. Out: `TuningTask`s, one for equal
kernels. Example: the twelve equal layers of a model make one task with twelve names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from litz.autotune.cost import Machine
from litz.autotune.database import Database, Json
from litz.autotune.fingerprint import fingerprint
from litz.autotune.gemm_regions import GemmSize, Region, regions
from litz.autotune.results import AnyChoice
from litz.autotune.trial import Call, Timer, Variant
from litz.config import Config
from litz.ir.choices import ANY, BY_RULE, NO_CHOICES, Choices, GemmChoice
from litz.ir.graph import Graph
from litz.ir.index import ZERO
from litz.ir.program import (
    Buffer,
    Kernel,
    KernelGraph,
    Output,
    ViewArg,
    buffer_bytes,
    read,
    written,
)
from litz.ir.scheduled import ScheduledKernel
from litz.lower import lower
from litz.target import Target
from litz.toolchain import Toolchain


def _unknown(_: Machine) -> float:
    return 0.0


def _any(_: AnyChoice) -> bool:
    return True


@dataclass(frozen=True)
class TuningTask:
    """`program_key` is all that the result depends on, except the machine; `names` are the nodes or
    kernels it is for. `candidates` are the choices to try, given the machine's peaks; `neighbours`
    those next to a choice. `cost` is the seconds of all names together, `lower_bound` those of one
    at the machine's peak, if known. A choice that does not `fits` is rejected, even if the database
    has it."""

    what: str
    names: tuple[str, ...]
    program_key: str
    default: AnyChoice
    variant: Callable[[AnyChoice], Variant]
    candidates: Callable[[Machine], list[AnyChoice]]
    neighbours: Callable[[AnyChoice], Iterable[AnyChoice]]
    cost: Callable[[Machine], float]
    lower_bound: Callable[[Machine], float] = _unknown
    fits: Callable[[AnyChoice], bool] = _any


class TargetTuning(Protocol):
    """The part of tuning that each target provides, in its toolchain. `budget` is the default
    seconds for a graph; `field` the one of `Choices` that holds choices about loops;
    `no_subproc_reason` says why trials may not run in another process, None if they may."""

    budget: float
    field: str
    no_subproc_reason: str | None

    def always(self, config: Config) -> bool:
        """Whether loops are tuned without max_autotune."""

    def environment(self, target: Any) -> Json:
        """What results depend on: the machine, and the versions of its code generators."""

    def machine(self, target: Any, database: Database, key: Json) -> Machine:
        """The peaks; measured ones are kept in the database."""

    def library_replacement(self, config: Config) -> GemmChoice | None:
        """The choice that makes a GEMM ours where the rules leave it to a library."""

    def candidates(
        self, size: GemmSize, target: Any, config: Config, machine: Machine
    ) -> list[GemmChoice]:
        """The choices to time for a GEMM."""

    def gemm_neighbours(self, size: GemmSize, choice: GemmChoice, target: Any) -> list[GemmChoice]:
        """The choices next to one."""

    def estimate(self, size: GemmSize, target: Any, machine: Machine) -> float:
        """Seconds of a GEMM by rule."""

    def lower_bound(self, size: GemmSize, target: Any, machine: Machine) -> float:
        """A lower bound of a GEMM's seconds for any choice; zero if unknown."""

    def loop_space(self, scheduled: ScheduledKernel[Any], config: Config) -> LoopSpace | None:
        """The choices for a kernel that is not a GEMM; None if it is one."""

    def timer(self, call: Call) -> Timer:
        """A timer of other calls against this one."""


@dataclass(frozen=True)
class LoopSpace:
    """The choices for a loop kernel."""

    default: AnyChoice
    candidates: Callable[[], Iterable[AnyChoice]]
    neighbours: Callable[[AnyChoice], Iterable[AnyChoice]]
    fits: Callable[[AnyChoice], bool] = _any


def gemm_tasks(
    graph: Graph, kernels: KernelGraph, target: Target, tools: Toolchain, config: Config,
    ours: KernelGraph | None = None,
) -> list[TuningTask]:  # fmt: skip
    """One task for each GEMM that differs from all others."""
    equal: dict[str, list[Region]] = {}
    for region in regions(graph, kernels, target, config, ours):
        equal.setdefault(region.program_key, []).append(region)
    return [_gemm_task(found, target, tools.tuning, config) for found in equal.values()]


def _gemm_task(
    equal: list[Region], target: Target, tuning: TargetTuning, config: Config
) -> TuningTask:
    region, size = equal[0], equal[0].size

    def variant(choice: AnyChoice) -> Variant:
        assert isinstance(choice, GemmChoice)
        choices = Choices(gemms={ANY: choice})
        return Variant(lower(region.graph, target, config, choices), choices)

    def cost(machine: Machine) -> float:
        return float(len(equal) * tuning.estimate(size, target, machine))

    return TuningTask(
        str(size), tuple(r.node for r in equal), region.program_key, BY_RULE, variant,
        lambda machine: list(tuning.candidates(size, target, config, machine)),
        lambda choice: tuning.gemm_neighbours(size, choice, target),  # type: ignore[arg-type]
        cost, partial(tuning.lower_bound, size, target),
        lambda choice: size.depth % (getattr(choice, "split_k", None) or 1) == 0,
    )  # fmt: skip


def loop_tasks(
    kernels: KernelGraph, target: Target, tools: Toolchain, config: Config, choices: Choices
) -> list[TuningTask]:
    """One task for each other kernel that differs from all others."""
    equal: dict[str, list[tuple[Kernel, LoopSpace]]] = {}
    for step in kernels.body[kernels.prepack_steps :]:
        if not isinstance(step, Kernel) or set(read(step)) & set(written(step)):
            continue  # a kernel that updates in place has other inputs at each call
        scheduled = tools.schedule(step, target, config, choices=choices)
        loop = tools.tuning.loop_space(scheduled, config)
        if loop is not None:
            equal.setdefault(_program_key(scheduled), []).append((step, loop))
    return [
        _loop_task(program_key, found, tools.tuning.field) for program_key, found in equal.items()
    ]


def _program_key(scheduled: ScheduledKernel[Any]) -> str:
    """A fingerprint: a scheduled kernel's names are canonical."""
    return f"{fingerprint(scheduled.kernel)} {scheduled.choice}"


def _loop_task(program_key: str, equal: list[tuple[Kernel, LoopSpace]], field: str) -> TuningTask:
    kernel, loop = equal[0]
    alone = _alone(kernel)

    def variant(choice: AnyChoice) -> Variant:
        given: dict[str, Any] = {field: {kernel.name: choice}}
        return Variant(alone, replace(NO_CHOICES, **given))

    return TuningTask(
        f"kernel {kernel.name.partition('_')[2]}", tuple(k.name for k, _ in equal), program_key,
        loop.default, variant, lambda machine: list(loop.candidates()), loop.neighbours,
        partial(_moving, kernel, len(equal)), fits=loop.fits,
    )  # fmt: skip


def _moving(kernel: Kernel, places: int, machine: Machine) -> float:
    """Seconds of that many kernels, if only memory limits them."""
    moved = sum(buffer_bytes(b) for b in (*read(kernel), *written(kernel)))
    return places * moved / machine.bandwidth


def _alone(kernel: Kernel) -> KernelGraph:
    """A graph of this kernel alone."""
    outputs = tuple(Output(_whole(b)) for b in written(kernel))
    return KernelGraph(tuple(read(kernel)), (), (replace(kernel, origins=()),), outputs)


def _whole(buffer: Buffer) -> ViewArg:
    return ViewArg(buffer, buffer.shape, buffer.strides, ZERO)
