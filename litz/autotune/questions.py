"""Questions to the tuner: a kernel, the ways to compute it, and whom the answer concerns.

In: the captured graph and the kernels it becomes by rule. Out: `Question`s, equal kernels once.
Example: the twelve equal layers of a model ask one question with twelve names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from litz.autotune import gpu
from litz.autotune import space as on_cpu
from litz.autotune.cost import Machine, roofline
from litz.autotune.descent import fits, neighbours
from litz.autotune.fingerprint import fingerprint
from litz.autotune.regions import Region, regions
from litz.autotune.results import AnyChoice
from litz.autotune.trial import Variant
from litz.config import Config
from litz.ir.choices import ANY, BY_RULE, NO_CHOICES, Choices, LoopChoice, ProductChoice
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
from litz.ir.scheduled import ScheduledKernel, Tiling
from litz.lower import lower
from litz.schedule import schedule
from litz.schedule.tile import candidates as tilings
from litz.schedule.tile import neighbours as near_tilings
from litz.target import Target


def _unknown(_: Machine) -> float:
    return 0.0


def _any(_: AnyChoice) -> bool:
    return True


@dataclass(frozen=True)
class Question:
    """`mark` stands for all that the answer depends on, but for the machine; `names` are the nodes
    or kernels it is for. `listed` says what to try, given the machine's peaks, and `near` what lies
    beside a choice; `cost` is the seconds that all the places take, and `least` what one of them
    takes if the machine does its best, as far as that is known. What does not `fits` is no way to
    compute it, whatever the database says."""

    what: str
    names: tuple[str, ...]
    mark: str
    default: AnyChoice
    variant: Callable[[AnyChoice], Variant]
    listed: Callable[[Machine], list[AnyChoice]]
    near: Callable[[AnyChoice], Iterable[AnyChoice]]
    cost: Callable[[Machine], float]
    least: Callable[[Machine], float] = _unknown
    fits: Callable[[AnyChoice], bool] = _any


def product_questions(
    graph: Graph, kernels: KernelGraph, target: Target, config: Config,
    ours: KernelGraph | None = None,
) -> list[Question]:  # fmt: skip
    """One for each product that differs from all others."""
    equal: dict[str, list[Region]] = {}
    for region in regions(graph, kernels, target, config, ours):
        equal.setdefault(region.mark, []).append(region)
    return [_about_product(found, target, config) for found in equal.values()]


def _about_product(equal: list[Region], target: Target, config: Config) -> Question:
    region, size = equal[0], equal[0].size
    space: Any = on_cpu if target.kind == "cpu" else gpu

    def variant(choice: AnyChoice) -> Variant:
        assert isinstance(choice, ProductChoice)
        choices = Choices(products={ANY: choice})
        return Variant(lower(region.graph, target, config, choices), choices)

    def cost(machine: Machine) -> float:
        return float(len(equal) * space.estimate(size, BY_RULE, target, machine))

    return Question(
        str(size), tuple(r.node for r in equal), region.mark, BY_RULE, variant,
        lambda machine: list(space.candidates(size, target, config, machine)),
        lambda choice: space.beside(size, choice, target),  # type: ignore[arg-type]
        cost, partial(roofline, size, target) if target.kind == "cpu" else _unknown,
        lambda choice: size.depth % (getattr(choice, "slices", None) or 1) == 0,
    )  # fmt: skip


def loop_questions(
    kernels: KernelGraph, target: Target, config: Config, choices: Choices
) -> list[Question]:
    """One for each other kernel that differs from all others."""
    equal: dict[str, list[tuple[Kernel, ScheduledKernel[Any]]]] = {}
    for step in kernels.body[kernels.prepared :]:
        if not isinstance(step, Kernel) or set(read(step)) & set(written(step)):
            continue  # what is updated in place is another program at each call
        scheduled = schedule(step, target, config, choices=choices)
        if _is_loop(scheduled):
            equal.setdefault(_mark(scheduled), []).append((step, scheduled))
    if target.kind == "cpu":
        return [_about_loop(mark, found) for mark, found in equal.items()]
    wide = config.max_autotune_pointwise
    return [_about_tiles(mark, found, wide) for mark, found in equal.items()]


def _is_loop(scheduled: ScheduledKernel[Any]) -> bool:
    choice = scheduled.choice
    if isinstance(choice, Tiling):
        return not choice.depth
    return choice.product is None and choice.attention is None


def _mark(scheduled: ScheduledKernel) -> str:
    """A scheduled kernel's names are canonical."""
    return f"{fingerprint(scheduled.kernel)} {scheduled.choice}"


def _about_loop(mark: str, equal: list[tuple[Kernel, ScheduledKernel]]) -> Question:
    kernel, scheduled = equal[0]
    alone = _alone(kernel)

    def variant(choice: AnyChoice) -> Variant:
        assert isinstance(choice, LoopChoice)
        return Variant(alone, replace(NO_CHOICES, kernels={kernel.name: choice}))

    cost = partial(_moving, kernel, len(equal))
    near = partial(neighbours, scheduled)
    return Question(
        f"kernel {kernel.name.partition('_')[2]}", tuple(k.name for k, _ in equal), mark,
        LoopChoice(), variant, lambda machine: list(near(LoopChoice())),
        near, cost, fits=partial(fits, scheduled),  # type: ignore[arg-type]
    )  # fmt: skip


def _about_tiles(
    mark: str, equal: list[tuple[Kernel, ScheduledKernel[Tiling]]], wide: bool
) -> Question:
    """The same of a GPU's kernel, whose choice is its whole tiling."""
    kernel, scheduled = equal[0]
    alone = _alone(kernel)

    def variant(choice: AnyChoice) -> Variant:
        assert isinstance(choice, Tiling)
        return Variant(alone, replace(NO_CHOICES, tilings={kernel.name: choice}))

    return Question(
        f"kernel {kernel.name.partition('_')[2]}", tuple(k.name for k, _ in equal), mark,
        scheduled.choice, variant, lambda machine: list(tilings(scheduled, wide)[1:]),
        partial(near_tilings, scheduled),  # type: ignore[arg-type]
        partial(_moving, kernel, len(equal)),
    )  # fmt: skip


def _moving(kernel: Kernel, places: int, machine: Machine) -> float:
    """Seconds of as many kernels that wait for memory alone."""
    moved = sum(buffer_bytes(b) for b in (*read(kernel), *written(kernel)))
    return places * moved / machine.bandwidth


def _alone(kernel: Kernel) -> KernelGraph:
    """A graph of nothing but this kernel."""
    outputs = tuple(Output(_whole(b)) for b in written(kernel))
    return KernelGraph(tuple(read(kernel)), (), (replace(kernel, origins=()),), outputs)


def _whole(buffer: Buffer) -> ViewArg:
    return ViewArg(buffer, buffer.shape, buffer.strides, ZERO)
