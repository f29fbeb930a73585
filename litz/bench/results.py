"""Results: rows of samples, and the machine they were taken on, to and from JSON.

In: samples. Out: `Row`, `Results`. Samples are seconds or bytes, one a round. The k-th samples of
all candidates were taken one after the other, so their ratio is meaningful. Example:

    Results.from_json(results.to_json()) == results
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import llvmlite
import torch

from litz import __version__
from litz.bench.ratio import Interval, interval
from litz.errors import DifferentMachines
from litz.target import host

OURS = "litz"
# Why a candidate may have no sample though nothing failed.
NOT_ASKED = "it was not asked to compile: a cache answered first, or it never compiles"


@dataclass(frozen=True)
class Metric:
    """A quantity: its title, its unit, and the factor from samples to that unit."""

    title: str
    unit: str
    scale: float


METRICS = {
    "call": Metric("time of a call", "ms", 1e3),
    "short call": Metric("time of a short call", "us", 1e6),
    "graph, cold": Metric("from AOTAutograd's graph to a callable, cold", "s", 1.0),
    "first call, cold": Metric("whole first call, cold", "s", 1.0),
    "graph, second": Metric("from AOTAutograd's graph to a callable, second process", "s", 1.0),
    "first call, second": Metric("whole first call, second process", "s", 1.0),
    "GPU time": Metric("time of the GPU in a call, by kind of kernel", "us", 1e6),
    "memory": Metric("memory that a call adds at its peak", "MB", 1e-6),
}


@dataclass(frozen=True)
class Row:
    """One case and metric. A candidate has samples, or is missing for a reason."""

    suite: str
    case: str
    variant: str
    metric: str
    samples: Mapping[str, tuple[float, ...]]
    missing: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.case} {self.variant}".strip()

    def of(self, candidate: str) -> Interval | None:
        """The median of a candidate, in the unit of the metric, with its interval."""
        found = self.samples.get(candidate)
        scale = METRICS[self.metric].scale
        return interval([scale * s for s in found]) if found else None

    def speedup(self, other: str) -> Interval | None:
        """How many times less Litz needs than another: the median over rounds of their ratio."""
        ours, theirs = self.samples.get(OURS), self.samples.get(other)
        if not ours or not theirs:
            return None
        return interval([b / a for a, b in zip(ours, theirs, strict=True)])

    def with_facts(self, facts: Mapping[str, float]) -> Row:
        return replace(self, facts={**self.facts, **facts})


@dataclass(frozen=True)
class Results:
    """The results of one run."""

    machine: Mapping[str, str]
    against: tuple[str, ...]
    rows: tuple[Row, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)  # candidate: why it cannot run here

    def tables(self) -> Iterator[tuple[str, str, list[Row]]]:
        """Suite, metric and rows, in the order in which they first appear."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.suite, row.metric), []).append(row)
        for (suite, metric), rows in groups.items():
            yield suite, metric, rows

    @property
    def wrong(self) -> list[Row]:
        """Rows without a result of Litz: it was wrong, or failed."""
        return [row for row in self.rows if row.missing.get(OURS, NOT_ASKED) != NOT_ASKED]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Results:
        read = json.loads(text)
        rows = tuple(_row(fields) for fields in read["rows"])
        return Results(read["machine"], tuple(read["against"]), rows, read["left_out"])


def merged(parts: Sequence[Results]) -> Results:
    """Several runs on one machine as one; different machines cannot be merged."""
    first = parts[0]
    for other in parts[1:]:
        if other.machine != first.machine:
            raise DifferentMachines(first.machine, other.machine)
    against = tuple(dict.fromkeys(name for part in parts for name in part.against))
    left_out = {name: why for part in parts for name, why in part.left_out.items()}
    return Results(first.machine, against, tuple(r for p in parts for r in p.rows), left_out)


def _row(fields: dict[str, Any]) -> Row:
    samples = {name: tuple(found) for name, found in fields.pop("samples").items()}
    return Row(**fields, samples=samples)


def machine(threads: int | None) -> dict[str, str]:
    """The facts that a reader needs to judge a figure."""
    target = host(threads)
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        **gpu,
        "processor": _processor() or target.name,
        "architecture": target.name,
        "vectors": f"{8 * target.vector_bytes} bits",
        "threads": str(target.threads),
        "caches": f"L1 {target.l1_bytes >> 10} KiB, L2 {target.l2_bytes >> 10} KiB a core",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "llvmlite": llvmlite.__version__,
        "litz": __version__,
    }


def _processor() -> str:
    """The processor's model name, if the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")
