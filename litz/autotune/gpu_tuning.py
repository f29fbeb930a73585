"""Tuning on a GPU: tiles of GEMMs and of loops, and interleaved replays of CUDA graphs.

In: the questions of `TargetTuning`. Out: a GPU's answers. Example: `GpuTuning().budget` is 10.0.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

from litz.autotune import gpu_gemm_space
from litz.autotune.cost import Machine
from litz.autotune.database import Database, Json
from litz.autotune.gemm_regions import GemmSize
from litz.autotune.gpu_timing import CapturedCall, InterleavedReplays
from litz.autotune.results import Ratio
from litz.autotune.serialization import version_of
from litz.autotune.trial import FEWEST, MOST, Call, Timer, interval, is_decided
from litz.autotune.tuning_tasks import LoopSpace
from litz.config import Config
from litz.ir.choices import BY_RULE, GemmChoice
from litz.ir.scheduled import ScheduledKernel, Tiling
from litz.schedule.tile import candidates, neighbours
from litz.target import GpuTarget


class GpuTuning:
    """The `TargetTuning` of a GPU."""

    budget = 10.0  # kernels take long to compile
    field = "tilings"
    no_subproc_reason: str | None = "a GPU is timed by the process that has its memory"

    def always(self, config: Config) -> bool:
        return config.triton.autotune_at_compile_time

    def environment(self, target: GpuTarget) -> Json:
        found = torch.cuda.is_available()
        name = torch.cuda.get_device_name(target.device) if found else target.name
        return {
            "triton": version_of("triton"), "gpu": name, "target": target.name,
            "multiprocessors": target.threads, "tf32": torch.backends.cuda.matmul.allow_tf32,
            "cuda": str(torch.version.cuda),
        }  # fmt: skip

    def machine(self, target: GpuTarget, database: Database, key: Json) -> Machine:
        """By its generation: only the ratios of peaks matter."""
        return gpu_gemm_space.machine_of(target)

    def library_replacement(self, config: Config) -> GemmChoice | None:
        inside = True if config.benchmark_epilogue_fusion else None
        return GemmChoice(form="TILES", prologue=inside)

    def candidates(
        self, size: GemmSize, target: GpuTarget, config: Config, machine: Machine
    ) -> list[GemmChoice]:
        return gpu_gemm_space.candidates(size, target, config, machine)

    def gemm_neighbours(
        self, size: GemmSize, choice: GemmChoice, target: GpuTarget
    ) -> list[GemmChoice]:
        return gpu_gemm_space.gemm_neighbours(size, choice, target)

    def estimate(self, size: GemmSize, target: GpuTarget, machine: Machine) -> float:
        return gpu_gemm_space.estimate(size, BY_RULE, target, machine)

    def lower_bound(self, size: GemmSize, target: GpuTarget, machine: Machine) -> float:
        return 0.0

    def loop_space(self, scheduled: ScheduledKernel[Tiling], config: Config) -> LoopSpace | None:
        """A choice is a whole tiling."""
        if scheduled.choice.depth:
            return None
        wide = config.max_autotune_pointwise
        near: Any = partial(neighbours, scheduled)
        return LoopSpace(scheduled.choice, lambda: candidates(scheduled, wide)[1:], near)

    def timer(self, call: Call) -> Timer:
        """Replays alternate; the rule's CUDA graph is captured once for all its trials."""
        recorded = CapturedCall(call)
        return lambda other, seconds: _timed(recorded, CapturedCall(other), seconds)


def _timed(rule: CapturedCall, other: CapturedCall, seconds: float) -> Ratio:
    turns = InterleavedReplays(rule, other)
    turns.samples(2)
    pairs: list[tuple[float, float]] = []
    end = time.perf_counter() + seconds
    while not pairs or (len(pairs) < MOST and time.perf_counter() < end):
        pairs += turns.samples(FEWEST)
        if is_decided(interval([b / a for a, b in pairs])):
            break
    ratios = [b / a for a, b in pairs]
    taken = statistics.median(a for a, _ in pairs)
    return Ratio(statistics.median(ratios), *interval(ratios), taken)
