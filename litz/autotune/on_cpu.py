"""How a CPU is tuned: blocks of products, loops that differ by a field, calls that take turns.

In: what `TargetTuning` is asked. Out: its answers for a CPU. Example: `OnCpu().budget` is 1.5.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import llvmlite
import torch

from litz.autotune import space
from litz.autotune.cost import Machine, estimate, measured, roofline
from litz.autotune.database import Database, Json
from litz.autotune.descent import fits, neighbours
from litz.autotune.questions import Loop
from litz.autotune.regions import Size
from litz.autotune.stored import positive
from litz.autotune.trial import Call, Timer, timed
from litz.config import Config
from litz.ir.choices import BY_RULE, LoopChoice, ProductChoice
from litz.ir.scheduled import Choice, ScheduledKernel
from litz.target import CpuTarget


class OnCpu:
    """A `TargetTuning`."""

    budget = 1.5
    field = "kernels"
    apart: str | None = None

    def always(self, config: Config) -> bool:
        return False

    def place(self, target: CpuTarget) -> Json:
        return {
            "llvmlite": llvmlite.__version__, "cpu": target.name, "threads": target.threads,
            "vector_bytes": target.vector_bytes, "l2_bytes": target.l2_bytes,
            "torch_threads": torch.get_num_threads(),
        }  # fmt: skip

    def machine(self, target: CpuTarget, database: Database, key: Json) -> Machine:
        """Measured once on a machine."""
        key = {**key, "machine": True}
        value = database.get(key)
        with suppress(KeyError, ValueError):  # of what is kept, if it makes sense
            if value is not None:
                return Machine(positive(value["flops"]), positive(value["bandwidth"]))
        machine = measured(target.threads)
        database.put(key, vars(machine))
        return machine

    def library_as_ours(self, config: Config) -> ProductChoice | None:
        return None  # the rules have them so

    def candidates(
        self, size: Size, target: CpuTarget, config: Config, machine: Machine
    ) -> list[ProductChoice]:
        return space.candidates(size, target, config, machine)

    def beside(self, size: Size, choice: ProductChoice, target: CpuTarget) -> list[ProductChoice]:
        return list(space.beside(size, choice, target))

    def estimate(self, size: Size, target: CpuTarget, machine: Machine) -> float:
        return estimate(size, BY_RULE, target, machine)

    def least(self, size: Size, target: CpuTarget, machine: Machine) -> float:
        return roofline(size, target, machine)

    def about_loop(self, scheduled: ScheduledKernel[Choice], config: Config) -> Loop | None:
        if scheduled.choice.product is not None or scheduled.choice.attention is not None:
            return None
        near: Any = partial(neighbours, scheduled)
        default = LoopChoice()
        return Loop(default, lambda: near(default), near, partial(fits, scheduled))

    def timer(self, call: Call) -> Timer:
        return partial(timed, call)
