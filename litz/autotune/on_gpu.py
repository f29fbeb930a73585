"""How a GPU is tuned: tiles of products and of loops, recordings that take turns.

In: what `TargetTuning` is asked. Out: its answers for a GPU. Example: `OnGpu().budget` is 10.0.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

from litz.autotune import gpu
from litz.autotune.cost import Machine
from litz.autotune.database import Database, Json
from litz.autotune.events import Recorded, Turns
from litz.autotune.questions import Loop
from litz.autotune.regions import Size
from litz.autotune.results import Ratio
from litz.autotune.stored import version_of
from litz.autotune.trial import FEWEST, MOST, Call, Timer, interval, is_plain
from litz.config import Config
from litz.ir.choices import BY_RULE, ProductChoice
from litz.ir.scheduled import ScheduledKernel, Tiling
from litz.schedule.tile import candidates, neighbours
from litz.target import GpuTarget


class OnGpu:
    """A `TargetTuning`."""

    budget = 10.0  # its kernels take long to compile
    field = "tilings"
    apart: str | None = "a GPU is timed by the process that has its memory"

    def always(self, config: Config) -> bool:
        return config.triton.autotune_at_compile_time

    def place(self, target: GpuTarget) -> Json:
        found = torch.cuda.is_available()
        name = torch.cuda.get_device_name(target.device) if found else target.name
        return {
            "triton": version_of("triton"), "gpu": name, "target": target.name,
            "multiprocessors": target.threads, "tf32": torch.backends.cuda.matmul.allow_tf32,
            "cuda": str(torch.version.cuda),
        }  # fmt: skip

    def machine(self, target: GpuTarget, database: Database, key: Json) -> Machine:
        """By its generation: only the ratios of peaks count."""
        return gpu.machine_of(target)

    def library_as_ours(self, config: Config) -> ProductChoice | None:
        inside = True if config.benchmark_epilogue_fusion else None
        return ProductChoice(form="TILES", prologue=inside)

    def candidates(
        self, size: Size, target: GpuTarget, config: Config, machine: Machine
    ) -> list[ProductChoice]:
        return gpu.candidates(size, target, config, machine)

    def beside(self, size: Size, choice: ProductChoice, target: GpuTarget) -> list[ProductChoice]:
        return gpu.beside(size, choice, target)

    def estimate(self, size: Size, target: GpuTarget, machine: Machine) -> float:
        return gpu.estimate(size, BY_RULE, target, machine)

    def least(self, size: Size, target: GpuTarget, machine: Machine) -> float:
        return 0.0

    def about_loop(self, scheduled: ScheduledKernel[Tiling], config: Config) -> Loop | None:
        """A choice is the whole tiling."""
        if scheduled.choice.depth:
            return None
        wide = config.max_autotune_pointwise
        near: Any = partial(neighbours, scheduled)
        return Loop(scheduled.choice, lambda: candidates(scheduled, wide)[1:], near)

    def timer(self, call: Call) -> Timer:
        """Recordings take turns; the rule's is made once for all its trials."""
        recorded = Recorded(call)
        return lambda other, seconds: _timed(recorded, Recorded(other), seconds)


def _timed(rule: Recorded, other: Recorded, seconds: float) -> Ratio:
    turns = Turns(rule, other)
    turns.samples(2)
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while not pairs or (len(pairs) < MOST and time.perf_counter() < end):
        pairs += turns.samples(FEWEST)
        if is_plain(interval([b / a for a, b in pairs])):
            break
    ratios = [b / a for a, b in pairs]
    taken = statistics.median(a for a, _ in pairs)
    return Ratio(statistics.median(ratios), *interval(ratios), taken)
