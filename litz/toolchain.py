"""Toolchains: a target's own stages, from the schedule of a kernel to a callable graph.

In: the functions of one target. Out: `Toolchain`, a frozen value whose functions the compiler calls
in order. The values between `emit` and `link` have the target's own types, which no other code
reads, except reports: they read `functions` of a source. `litz/targets.py` has one for each target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from litz.config import Config
from litz.ir.call_plan import CallPlan
from litz.ir.choices import Choices
from litz.ir.program import Kernel, Plan
from litz.ir.scheduled import ScheduledKernel
from litz.target import Target
from litz.trace import Trace


class Schedule(Protocol):
    """The stage that chooses how a kernel runs. `fresh` names the buffers that a call allocates
    itself, aligned."""

    def __call__(
        self, kernel: Kernel, target: Any, config: Config, fresh: frozenset[str] = ...,
        choices: Choices = ...,
    ) -> ScheduledKernel[Any]: ...  # fmt: skip


class LinkedGraph(Protocol):
    """A callable graph, as the backend sees it. `frozen` are the parameters that became constants.
    One that `guards_folding` folds parameters into each other, which is wrong for some of their
    values; for those the backend sets `unfolded`, the same graph without folds."""

    call: Callable[[list[Any]], Any]
    frozen: Any
    unfolded: Any

    @property
    def guards_folding(self) -> bool: ...

    def __call__(self, args: list[Any]) -> list[Any]: ...


def _no_wait(target: Target, config: Config, ops: int) -> None:
    """The default of `get_ready`: nothing has to be started."""


@dataclass(frozen=True)
class Toolchain:
    """A target's stages, in order, and its optional functions.

    - `schedule(kernel, target, config, fresh, choices)` gives a `ScheduledKernel`;
    - `emit(plan, scheduled kernels, target)` gives the source of all kernels of a graph and the
      launches of each (`litz/ir/source.py`), from which `plan_call` makes the `CallPlan`;
    - `drive(source, call, target)` adds the driver, which launches the kernels;
    - `build(source, target, config, trace)` gives machine code, which any process may load;
    - `load(source, code)` brings it into this process;
    - `link(call, loaded, constants, config, frozen)` gives the graph: its `call` takes the list of
      inputs and returns the list of outputs.

    `get_ready(target, config, ops)` starts the workers that will compile a graph of so many ops.
    `precompile(sources, target, config, end)` compiles sources ahead of tuning trials, until `end`
    on the monotonic clock. `tuning` is how `autotune` times kernels on the target, if it does.
    """

    schedule: Schedule
    emit: Callable[[Plan, list[ScheduledKernel[Any]], Any], Any]
    drive: Callable[[Any, CallPlan, Any], Any]
    build: Callable[[Any, Any, Config, Trace], Any]
    load: Callable[[Any, Any], Any]
    link: Callable[..., LinkedGraph]
    get_ready: Callable[[Any, Config, int], None] = _no_wait
    precompile: Callable[[list[Any], Any, Config, float], None] | None = None
    tuning: Any = None  # its interface is in `litz/autotune/tuning_tasks.py`
