"""Toolchains: what a target does with kernels, from their schedule to a call.

In: the functions of one target. Out: `Toolchain`, a frozen value that the compiler goes through in
order. Between `emit` and `link` the values are the target's own: nobody else looks into them, but
for reports, which read `functions` of a source. `litz/targets.py` has one for each target.
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
    """How a kernel runs. `fresh` names the buffers that lie in memory of ours."""

    def __call__(
        self, kernel: Kernel, target: Any, config: Config, fresh: frozenset[str] = ...,
        choices: Choices = ...,
    ) -> ScheduledKernel[Any]: ...  # fmt: skip


class LinkedGraph(Protocol):
    """A graph that can be called: what the backend asks of it. `frozen` are parameters that it has
    as constants. If it `asks`, there are parameters that it may not compute with; for those the
    backend provides the graph `unfolded`."""

    call: Callable[[list[Any]], Any]
    frozen: Any
    unfolded: Any

    @property
    def asks(self) -> bool: ...

    def __call__(self, args: list[Any]) -> list[Any]: ...


def _no_wait(target: Target, config: Config, ops: int) -> None:
    """Nothing has to be started."""


@dataclass(frozen=True)
class Toolchain:
    """The steps, in order, and what may stand beside them.

    - `schedule(kernel, target, config, fresh, choices)` gives a `ScheduledKernel`;
    - `emit(plan, scheduled kernels, target)` gives the source of all kernels of a graph, and how
      each is called (`litz/ir/source.py`), from which `plan_call` makes the plan of a call;
    - `drive(source, call, target)` adds what launches the kernels;
    - `build(source, target, config, trace)` gives machine code, which any process may load;
    - `load(source, code)` brings it into this process;
    - `link(call, loaded, constants, config, frozen)` gives the graph: its `call` takes the list of
      inputs and returns the list of outputs.

    `get_ready(target, config, ops)` starts what will compile a graph of so many ops;
    `build_ahead(sources, target, config, end)` compiles what trials may ask for, until so late on
    the monotonic clock; `tuning` is how `autotune` times kernels on the target, if it does.
    """

    schedule: Schedule
    emit: Callable[[Plan, list[ScheduledKernel[Any]], Any], Any]
    drive: Callable[[Any, CallPlan, Any], Any]
    build: Callable[[Any, Any, Config, Trace], Any]
    load: Callable[[Any, Any], Any]
    link: Callable[..., LinkedGraph]
    get_ready: Callable[[Any, Config, int], None] = _no_wait
    build_ahead: Callable[[list[Any], Any, Config, float], None] | None = None
    tuning: Any = None  # `litz/autotune/questions.py` says what it has
