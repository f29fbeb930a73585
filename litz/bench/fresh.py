"""Measurements that need a fresh process: compile times and memory.

In: a case. Out: rows. Every sample is a fresh process (`litz.bench.worker`) that builds the case by
name. Its caches are in a folder that is empty at first; the second process of a pair finds the
first one's files there. Candidates alternate, as in timing. Example:

    rows = measure_compile(case, Settings(against=("inductor",), rounds=3), print)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from litz.bench.calls import candidates_of
from litz.bench.candidates import CANDIDATES
from litz.bench.case import Case, Say, Settings
from litz.bench.results import NOT_ASKED, OURS, Row

# The variables that name compilers' caches; the last is the default of programs without their own.
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME")

Found = dict[str, float | None]


class Failed(Exception):
    """A fresh process returned no result; the text says why."""


COLD, SECOND = "cold", "second"


def measure_compile(
    case: Case, settings: Settings, say: Say, runs: tuple[str, ...] = (COLD, SECOND)
) -> list[Row]:
    """Seconds to compile, cold and in a second process: of the graph, and of the whole call."""
    names = [n for n in candidates_of(case, settings) if CANDIDATES[n].backend is not None]
    series = Series(names)
    for name in series.rounds(settings.rounds):
        with empty_caches() as environment:
            for which in runs:
                say(f"{name}, {which}")
                found = series.run("compile", case, name, settings, environment)
                series.add(name, {f"{what}, {which}": s for what, s in found.items()})
                if not found:
                    break
    metrics = [f"{what}, {which}" for which in runs for what in ("graph", "first call")]
    return [series.row(case, metric) for metric in metrics]


def measure_memory(case: Case, settings: Settings, say: Say) -> list[Row]:
    """Bytes that a call adds at its peak, Litz's arena, and its packed weights."""
    series = Series(candidates_of(case, settings))
    for name in series.rounds(settings.rounds):
        say(name)
        with empty_caches() as environment:
            series.add(name, series.run("memory", case, name, settings, environment))
    planned = {"arena": "planned MB", "unplanned": "without reuse MB", "held": "packed MB"}
    facts = {
        planned[key]: 1e-6 * value
        for key, values in series.samples[OURS].items()
        for value in values[-1:]
        if key in planned and value is not None
    }
    return [series.row(case, "memory").with_facts(facts)]


class Series:
    """Samples of several candidates, taken alternately; one that fails is not run again."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.samples: dict[str, dict[str, list[float | None]]] = {name: {} for name in names}
        self.missing: dict[str, str] = {}

    def rounds(self, count: int) -> Iterator[str]:
        """Candidates in turn; each round begins with another one."""
        for k in range(count):
            first = k % len(self.names)
            for name in self.names[first:] + self.names[:first]:
                if name not in self.missing:
                    yield name

    def run(
        self, task: str, case: Case, name: str, settings: Settings, environment: dict[str, str]
    ) -> Found:
        """One process; if it fails, nothing, and the reason is noted."""
        threads = case.threads or settings.threads
        words = [task, case.suite, case.name, case.variant, name, str(threads or 0)]
        if settings.quick:
            words.append("quick")
        try:
            return in_fresh_process(words, environment, settings.timeout)
        except Failed as failure:
            self.missing[name] = str(failure)
            return {}

    def add(self, name: str, found: Found) -> None:
        for key, value in found.items():
            self.samples[name].setdefault(key, []).append(value)

    def row(self, case: Case, metric: str) -> Row:
        """The samples of one metric; candidates that failed or were not timed are missing."""
        samples: dict[str, tuple[float, ...]] = {}
        missing = dict(self.missing)
        for name in self.names:
            values = self.samples[name].get(metric, [])
            known = tuple(value for value in values if value is not None)
            if name not in missing and known and len(known) == len(values):
                samples[name] = known
            else:
                missing.setdefault(name, NOT_ASKED)
        return Row(case.suite, case.name, case.variant, metric, samples, missing)


@contextmanager
def empty_caches() -> Iterator[dict[str, str]]:
    """An environment whose caches are in a folder that is deleted after the block."""
    with tempfile.TemporaryDirectory(prefix="litz-bench-", ignore_cleanup_errors=True) as folder:
        yield {**os.environ, **{name: str(Path(folder) / name.lower()) for name in CACHES}}


def in_fresh_process(words: list[str], environment: dict[str, str], timeout: float) -> Found:
    """The last line that the worker printed. It and its children are gone afterwards."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "litz.bench.worker", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # its own process group, so that its compilers end with it
    )
    try:
        out, err = worker.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"took more than {timeout:g} s") from None
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
    if worker.returncode:
        lines = err.strip().splitlines()
        raise Failed(lines[-1] if lines else f"ended with status {worker.returncode}")
    found: Found = json.loads(out.splitlines()[-1])
    return found
