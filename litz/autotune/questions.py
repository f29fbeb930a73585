"""Questions to the tuner: a kernel, the ways to compute it, and whom the answer concerns.

In: the captured graph and the kernels it becomes by rule. Out: `Question`s, equal kernels once.
Example: the twelve equal layers of a model ask one question with twelve names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from litz.autotune.cost import Machine
from litz.autotune.database import Database, Json
from litz.autotune.fingerprint import fingerprint
from litz.autotune.regions import Region, Size, regions
from litz.autotune.results import AnyChoice
from litz.autotune.trial import Call, Timer, Variant
from litz.config import Config
from litz.ir.choices import ANY, BY_RULE, NO_CHOICES, Choices, ProductChoice
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


class TargetTuning(Protocol):
    """What tuning leaves to each target, in its toolchain. `budget` is the seconds for a graph if
    the user does not say; `field` the one of `Choices` that holds answers about loops; `apart` says
    whether trials may run in another process, or why not."""

    budget: float
    field: str
    apart: str | None

    def always(self, config: Config) -> bool:
        """Whether loops are tuned without max_autotune."""

    def place(self, target: Any) -> Json:
        """What results depend on: the machine, and the versions of what makes its code."""

    def machine(self, target: Any, database: Database, key: Json) -> Machine:
        """The peaks; what is measured is kept in the database."""

    def library_as_ours(self, config: Config) -> ProductChoice | None:
        """The choice that makes products ours which the rules leave to a library."""

    def candidates(
        self, size: Size, target: Any, config: Config, machine: Machine
    ) -> list[ProductChoice]:
        """What to time of a product."""

    def beside(self, size: Size, choice: ProductChoice, target: Any) -> list[ProductChoice]:
        """What lies beside a choice."""

    def estimate(self, size: Size, target: Any, machine: Machine) -> float:
        """Seconds of a product as the rules have it."""

    def least(self, size: Size, target: Any, machine: Machine) -> float:
        """Seconds of a product that no choice stays below; zero if that is not known."""

    def about_loop(self, scheduled: ScheduledKernel[Any], config: Config) -> Loop | None:
        """How a kernel that is no product may run; None if it is one."""

    def timer(self, call: Call) -> Timer:
        """What times others against a call."""


@dataclass(frozen=True)
class Loop:
    """Ways to run a kernel."""

    default: AnyChoice
    listed: Callable[[], Iterable[AnyChoice]]
    near: Callable[[AnyChoice], Iterable[AnyChoice]]
    fits: Callable[[AnyChoice], bool] = _any


def product_questions(
    graph: Graph, kernels: KernelGraph, target: Target, tools: Toolchain, config: Config,
    ours: KernelGraph | None = None,
) -> list[Question]:  # fmt: skip
    """One for each product that differs from all others."""
    equal: dict[str, list[Region]] = {}
    for region in regions(graph, kernels, target, config, ours):
        equal.setdefault(region.mark, []).append(region)
    return [_about_product(found, target, tools.tuning, config) for found in equal.values()]


def _about_product(
    equal: list[Region], target: Target, tuning: TargetTuning, config: Config
) -> Question:
    region, size = equal[0], equal[0].size

    def variant(choice: AnyChoice) -> Variant:
        assert isinstance(choice, ProductChoice)
        choices = Choices(products={ANY: choice})
        return Variant(lower(region.graph, target, config, choices), choices)

    def cost(machine: Machine) -> float:
        return float(len(equal) * tuning.estimate(size, target, machine))

    return Question(
        str(size), tuple(r.node for r in equal), region.mark, BY_RULE, variant,
        lambda machine: list(tuning.candidates(size, target, config, machine)),
        lambda choice: tuning.beside(size, choice, target),  # type: ignore[arg-type]
        cost, partial(tuning.least, size, target),
        lambda choice: size.depth % (getattr(choice, "slices", None) or 1) == 0,
    )  # fmt: skip


def loop_questions(
    kernels: KernelGraph, target: Target, tools: Toolchain, config: Config, choices: Choices
) -> list[Question]:
    """One for each other kernel that differs from all others."""
    equal: dict[str, list[tuple[Kernel, Loop]]] = {}
    for step in kernels.body[kernels.prepared :]:
        if not isinstance(step, Kernel) or set(read(step)) & set(written(step)):
            continue  # what is updated in place is another program at each call
        scheduled = tools.schedule(step, target, config, choices=choices)
        loop = tools.tuning.about_loop(scheduled, config)
        if loop is not None:
            equal.setdefault(_mark(scheduled), []).append((step, loop))
    return [_about_loop(mark, found, tools.tuning.field) for mark, found in equal.items()]


def _mark(scheduled: ScheduledKernel[Any]) -> str:
    """A scheduled kernel's names are canonical."""
    return f"{fingerprint(scheduled.kernel)} {scheduled.choice}"


def _about_loop(mark: str, equal: list[tuple[Kernel, Loop]], field: str) -> Question:
    kernel, loop = equal[0]
    alone = _alone(kernel)

    def variant(choice: AnyChoice) -> Variant:
        given: dict[str, Any] = {field: {kernel.name: choice}}
        return Variant(alone, replace(NO_CHOICES, **given))

    return Question(
        f"kernel {kernel.name.partition('_')[2]}", tuple(k.name for k, _ in equal), mark,
        loop.default, variant, lambda machine: list(loop.listed()), loop.near,
        partial(_moving, kernel, len(equal)), fits=loop.fits,
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
