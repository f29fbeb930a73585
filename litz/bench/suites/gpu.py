"""Suite `gpu`: six models in bfloat16 on a GPU: calls by mode, a training step, kernels by kind.

In: a GPU; without one the suite says so. Out: for each model the time of a call (default mode, with
CUDA graphs, tuned), of a training step, of the first call (after Dynamo has traced the model once)
and of the backend's part of it, and the GPU's time by kind of kernel, all beside eager and
TorchInductor in the same run. Calls wait for the GPU. TorchInductor's best mode here is
`reduce-overhead`: its `max-autotune` takes a minute and a half a model and was slower on two of
two. The floor is the longer of bytes and multiplications at measured peaks. Example:
`python -m litz bench --suite gpu --models bert`.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch._dynamo.utils import compilation_time_metrics

from litz.backend import litz
from litz.bench.agreement import Agreement
from litz.bench.calls import error_line
from litz.bench.candidates import OPTIONS, backend_seconds, nothing
from litz.bench.case import Case, Program, Say, Settings, Suite
from litz.bench.gpu import OTHER, Split, floor, peaks, split_of, synchronize
from litz.bench.results import OURS, Row
from litz.bench.timing import interleave
from litz.bench.training import Training
from litz.bench.zoo import SMALL, Scale, workload
from litz.config import list_mode_options
from litz.report import Explanation

DEVICE = "cuda"
NO_GPU = "torch finds no CUDA device here"
# The sizes of the table of measured figures.
SCALES = {
    "bert": Scale(768, 12, 12, 32, 128, 224),
    "gpt2": Scale(768, 12, 12, 8, 512, 224),
    "llama": Scale(2048, 16, 8, 4, 512, 224),
    "vit": Scale(768, 12, 12, 32, 197, 224),
    "resnet50": Scale(768, 12, 12, 32, 128, 224),
    "token": Scale(2048, 16, 8, 1, 1, 224),
}
# Layers of a model that is trained: a step compiles three times as much.
TRAINED_LAYERS = 4
BUILT_AS = {"token": "llama"}
TIMED = 2.0  # seconds of timing a case at most: calls are short, and all candidates alternate
KINDS = ("gemm", "attention", "convolution", "generated", OTHER)


@dataclass(frozen=True)
class Way:
    """A mode of Litz's and the mode of TorchInductor's that it is compared with."""

    variant: str
    ours: str
    theirs: str


INFERENCE = (
    Way("default", "default", "default"),
    Way("graphs", "reduce-overhead", "reduce-overhead"),
    Way("tuned", "max-autotune", "reduce-overhead"),
)
TRAINING = (Way("training step", "default", "default"),)


def why_not() -> str:
    """Why this suite cannot run here, or ""."""
    return "" if torch.cuda.is_available() else NO_GPU


def program(name: str, quick: bool, training: bool, device: str = DEVICE) -> Program:
    """A model, its parameters created on the device."""
    scale = replace(SMALL, tokens=1) if quick and name in BUILT_AS else SMALL
    if not quick:
        scale = replace(SCALES[name], layers=TRAINED_LAYERS) if training else SCALES[name]
    built = "resnet" if quick and name == "resnet50" else BUILT_AS.get(name, name)
    with torch.device(device):
        work = workload(built, scale, torch.bfloat16)
        return Program(Training(work.model) if training else work.model, (), work.inputs)


def compiled(
    function: Any, who: str, mode: str, notes: Explanation | None = None
) -> Callable[..., Any]:
    """A model compiled by a candidate in one of its modes."""
    if who == "eager":
        return function  # type: ignore[no-any-return]
    if who == OURS:
        options = {**OPTIONS, **list_mode_options(mode)}
        backend = partial(litz, options=options, explanation=notes)
        made: Callable[..., Any] = torch.compile(function, backend=backend)
        return made
    return torch.compile(function, mode=mode)  # type: ignore[no-any-return]


@cache
def _warm(device: str, against: tuple[str, ...]) -> str:
    """Load what candidates need to compile, and give them empty caches; returns the folder."""
    folder = tempfile.mkdtemp(prefix="litz-bench-gpu-")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ[name] = f"{folder}/{name.lower()}"
    for who in (OURS, *against):
        compiled(torch.nn.Linear(8, 8, device=device), who, "default")(torch.ones(8, 8).to(device))
    torch._dynamo.reset()
    return folder


class Measuring:
    """One model: every candidate compiled, checked, timed alternately, and profiled."""

    def __init__(self, case: Case, settings: Settings, say: Say, ways: tuple[Way, ...]) -> None:
        self.case, self.say, self.ways = case, say, ways
        self.against = settings.against
        self.seconds = min(settings.seconds, TIMED)
        self.calls: dict[tuple[str, str], Callable[[], Any]] = {}
        self.first: dict[tuple[str, str], float] = {}
        self.graph: dict[tuple[str, str], float] = {}  # its part from a graph to a callable
        self.missing: dict[tuple[str, str], str] = {}

    def key(self, who: str, way: Way) -> tuple[str, str]:
        """The key of a compile, which several rows may show."""
        return (who, {OURS: way.ours, "eager": ""}.get(who, way.theirs))

    def rows(self, device: str) -> list[Row]:
        torch._dynamo.reset()
        gc.collect()
        _warm(device, self.against)
        made = self.case.build()
        self._compile(made, device)
        self.say("timing")
        timed = {f"{who} {mode}": run for (who, mode), run in self.calls.items()}
        timings = interleave(timed, self.seconds) if timed else {}
        samples = {key: timings[" ".join(key)].samples for key in self.calls}
        training = isinstance(made.function, Training)
        self.say("the floor")
        least = 1e3 * floor(made, device, training, peaks(device))
        found = [self._row(way.variant, "call", way, samples) for way in self.ways]
        found = [row.with_facts({"floor ms": least}) for row in found]
        for metric, taken in {"graph, cold": self.graph, "first call, cold": self.first}.items():
            once = {key: (seconds,) for key, seconds in taken.items()}
            found.append(self._row(self.ways[0].variant, metric, self.ways[0], once))
        if device != "cpu":
            found += self._by_kind()
        return found

    def _compile(self, made: Program, device: str) -> None:
        self.say("running eager in bfloat16 and float64")
        agreement = Agreement(made)
        made(torch.compile(made.function, backend=nothing))
        keys = dict.fromkeys(self.key(who, w) for w in self.ways for who in (OURS, *self.against))
        for who, mode in keys:
            self.say(f"compiling with {who} {mode}")
            notes = Explanation()
            function = compiled(made.function, who, mode, notes)
            compilation_time_metrics.clear()
            start = time.perf_counter()
            try:
                result = made(function)
                synchronize(device)
                took = time.perf_counter() - start
                fault = agreement.fault(result)
            except Exception as error:  # whatever it is, the others can still be timed
                fault, took = error_line(error), 0.0
            if fault:
                self.missing[who, mode] = fault
                continue
            if who != "eager":
                self.first[who, mode] = took
                self.graph[who, mode] = sum(backend_seconds(notes) or (0.0,))
            self.calls[who, mode] = partial(_waited, made, function, device)
        del agreement
        gc.collect()

    def _row(
        self, variant: str, metric: str, way: Way, samples: Mapping[Any, tuple[float, ...]]
    ) -> Row:
        keys = {who: self.key(who, way) for who in (OURS, *self.against)}
        found = {who: samples[key] for who, key in keys.items() if key in samples}
        lost = {who: self.missing[key] for who, key in keys.items() if key in self.missing}
        return Row(self.case.suite, self.case.name, variant, metric, found, lost)

    def _by_kind(self) -> list[Row]:
        """The GPU's time of the first two ways, in total and by kind."""
        rows = []
        for way in self.ways[:2]:
            self.say(f"kernels, {way.variant}")
            keys = {who: self.key(who, way) for who in (OURS, *self.against)}
            splits = {w: split_of(self.calls[key]) for w, key in keys.items() if key in self.calls}
            for kind in ("all", *KINDS):
                row = self._kind_row(way, kind, splits)
                rows += [row] if row.samples else []
        return rows

    def _kind_row(self, way: Way, kind: str, splits: Mapping[str, Split]) -> Row:
        times = {who: s.total if kind == "all" else s.time.get(kind) for who, s in splits.items()}
        counts = {
            f"{who} kernels": sum(s.count.values()) if kind == "all" else s.count.get(kind, 0.0)
            for who, s in splits.items()
        }
        samples = {who: (1e-6 * took,) for who, took in times.items() if took}
        variant = f"{way.variant}: {kind}"
        facts = counts if samples else {}
        return Row(self.case.suite, self.case.name, variant, "GPU time", samples, {}, facts)


def _waited(made: Program, function: Callable[..., Any], device: str) -> None:
    made(function)
    synchronize(device)


def measure(
    ways: tuple[Way, ...], device: str, case: Case, settings: Settings, say: Say
) -> list[Row]:
    """All rows of a model; its memory is freed afterwards."""
    try:
        return Measuring(case, settings, say, ways).rows(device)
    finally:
        torch._dynamo.reset()
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()


def cases(quick: bool) -> list[Case]:
    inference = [
        Case("gpu", name, "inference", partial(program, name, quick, False),
             partial(measure, INFERENCE, DEVICE))
        for name in SCALES
    ]  # fmt: skip
    return inference + [
        Case("gpu", name, "training", partial(program, name, quick, True),
             partial(measure, TRAINING, DEVICE))
        for name in SCALES if name not in BUILT_AS
    ]  # fmt: skip


SUITE = Suite("Six models in bfloat16 on a GPU, by mode; training steps; kernels.", cases,
              why_not=why_not)  # fmt: skip
