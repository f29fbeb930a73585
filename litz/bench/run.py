"""A run: the cases of some suites, one after the other, with progress on stderr.

In: suites, names of cases, `Settings`. Out: `Results`. A wrong name is an error that lists the
right ones. Example: `run(["calls"], [], Settings(against=("eager",), quick=True))`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from litz.bench.calls import error_line
from litz.bench.candidates import CANDIDATES
from litz.bench.case import Case, Say, Settings
from litz.bench.results import OURS, Results, Row, machine
from litz.bench.suites import SUITES
from litz.errors import SuiteCannotRun, UnknownBenchmark

Save = Callable[[Results], None]


def run(
    suites: Sequence[str], names: Sequence[str], settings: Settings, save: Save = lambda _: None
) -> Results:
    """Measure every case of the suites, or those of the given names; save after each."""
    check("suite", suites, SUITES)
    for suite in suites:
        if why := SUITES[suite].why_not():
            raise SuiteCannotRun(suite, why)
    check("candidate", settings.against, [name for name in CANDIDATES if name != OURS])
    cases = [case for suite in suites for case in SUITES[suite].cases(settings.quick)]
    check("case", names, dict.fromkeys(case.name for case in cases))
    chosen = [case for case in cases if not names or case.name in names]
    left_out = {name: why for name in settings.against if (why := CANDIDATES[name].why_not())}
    against = tuple(name for name in settings.against if name not in left_out)
    settings = replace(settings, against=against)
    facts = {**machine(settings.threads), "run": described(settings)}
    results = Results(facts, against, (), left_out)
    found: dict[str, list[Row]] = {case.suite: [] for case in chosen}
    with progress(len(chosen)) as begin:
        for case in chosen:
            found[case.suite] += measured(case, settings, begin(case))
            finished = [row for suite, rows in found.items() for row in SUITES[suite].finish(rows)]
            results = replace(results, rows=tuple(finished))
            save(results)
    return results


def measured(case: Case, settings: Settings, say: Say) -> list[Row]:
    """The rows of a case. A case that cannot be measured does not cost the others."""
    try:
        return case.measure(case, settings, say)
    except Exception as error:
        return [Row(case.suite, case.name, case.variant, "call", {}, {OURS: error_line(error)})]


def described(settings: Settings) -> str:
    """How much was measured, in a few words."""
    size = "quick, small sizes: " if settings.quick else ""
    return f"{size}{settings.seconds:g} s a case, {settings.rounds} x fresh processes"


def check(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise an error that lists the known names if one is not among them."""
    listed = list(known)
    for name in names:
        if name not in listed:
            raise UnknownBenchmark(kind, name, listed)


@contextmanager
def progress(total: int) -> Iterator[Begin]:
    """A bar on a terminal; a line for each case elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Begin(total)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        yield Begin(total, bar)


class Begin:
    """Called with a case when it begins; returns the function that shows the case's progress."""

    def __init__(self, total: int, bar: Progress | None = None) -> None:
        self.total, self.bar, self.begun = total, bar, 0
        self.task = bar.add_task("", total=total) if bar is not None else None

    def __call__(self, case: Case) -> Say:
        self.begun += 1
        title = f"{case.suite}: {case.label}"
        if self.bar is None or self.task is None:
            print(f"[{self.begun}/{self.total}] {title}", file=sys.stderr, flush=True)
            return lambda _: None
        bar, task = self.bar, self.task
        bar.update(task, completed=self.begun - 1)
        return lambda text: bar.update(task, description=f"{title}: {text}")
