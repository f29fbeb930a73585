"""Tuning on a CPU: register tiles of GEMMs, schedules of loops, and interleaved timing.

In: the questions of `TargetTuning`. Out: a CPU's answers. Example: `CpuTuning().budget` is 1.5.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import llvmlite
import torch

from litz.autotune import cpu_gemm_space
from litz.autotune.cost import Machine, estimate, measured, roofline
from litz.autotune.database import Database, Json
from litz.autotune.descent import fits, neighbours
from litz.autotune.gemm_regions import GemmSize
from litz.autotune.serialization import positive
from litz.autotune.trial import Call, Timer, timed
from litz.autotune.tuning_tasks import LoopSpace
from litz.config import Config
from litz.ir.choices import BY_RULE, GemmChoice, LoopChoice
from litz.ir.scheduled import Choice, ScheduledKernel
from litz.target import CpuTarget


class CpuTuning:
    """The `TargetTuning` of a CPU."""

    budget = 1.5
    field = "kernels"
    no_subproc_reason: str | None = None

    def always(self, config: Config) -> bool:
        return False

    def environment(self, target: CpuTarget) -> Json:
        return {
            "llvmlite": llvmlite.__version__, "cpu": target.name, "threads": target.threads,
            "vector_bytes": target.vector_bytes, "l2_bytes": target.l2_bytes,
            "torch_threads": torch.get_num_threads(),
        }  # fmt: skip

    def machine(self, target: CpuTarget, database: Database, key: Json) -> Machine:
        """The peaks, measured once for a machine."""
        key = {**key, "machine": True}
        value = database.get(key)
        with suppress(KeyError, ValueError):  # the database may hold anything
            if value is not None:
                return Machine(positive(value["flops"]), positive(value["bandwidth"]))
        machine = measured(target.threads)
        database.put(key, vars(machine))
        return machine

    def library_replacement(self, config: Config) -> GemmChoice | None:
        return None  # by rule, GEMMs are our own kernels already

    def candidates(
        self, size: GemmSize, target: CpuTarget, config: Config, machine: Machine
    ) -> list[GemmChoice]:
        return cpu_gemm_space.candidates(size, target, config, machine)

    def gemm_neighbours(
        self, size: GemmSize, choice: GemmChoice, target: CpuTarget
    ) -> list[GemmChoice]:
        return list(cpu_gemm_space.gemm_neighbours(size, choice, target))

    def estimate(self, size: GemmSize, target: CpuTarget, machine: Machine) -> float:
        return estimate(size, BY_RULE, target, machine)

    def lower_bound(self, size: GemmSize, target: CpuTarget, machine: Machine) -> float:
        return roofline(size, target, machine)

    def loop_space(self, scheduled: ScheduledKernel[Choice], config: Config) -> LoopSpace | None:
        if scheduled.choice.gemm is not None or scheduled.choice.attention is not None:
            return None
        near: Any = partial(neighbours, scheduled)
        default = LoopChoice()
        return LoopSpace(default, lambda: near(default), near, partial(fits, scheduled))

    def timer(self, call: Call) -> Timer:
        return partial(timed, call)
