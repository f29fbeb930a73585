"""The command `python -m litz bench`: options become a run, its results become files.

In: the options. Out: tables on stdout, files if asked for; 1 if Litz was wrong or failed anywhere.
Example: `bench(["calls"], [], Settings(against=("eager",), quick=True), Outputs())`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from litz.bench.case import Settings
from litz.bench.page import page
from litz.bench.results import Results, merged
from litz.bench.run import run
from litz.bench.suites import SUITES
from litz.bench.tables import HOW, left_out_lines, machine_line, markdown, rich_table, sheets

PIPE_WIDTH = 180  # columns of a table that goes to a file or a pipe


@dataclass(frozen=True)
class Outputs:
    """Where the results go, besides the terminal."""

    html: Path | None = None
    json: Path | None = None
    markdown: bool = False

    def save(self, results: Results) -> None:
        if self.json is not None:
            self.json.write_text(results.to_json())


def settings(
    against: Sequence[str], seconds: float | None, rounds: int | None, timeout: float,
    threads: int | None, quick: bool,
) -> Settings:  # fmt: skip
    """The user's settings; defaults are shorter for a quick run."""
    return Settings(
        against=tuple(against),
        seconds=(0.2 if quick else 3.0) if seconds is None else seconds,
        rounds=rounds or (1 if quick else 3),
        timeout=timeout,
        threads=threads,
        quick=quick,
    )


def bench(suites: Sequence[str], names: Sequence[str], settings: Settings, outputs: Outputs) -> int:
    """Measure and show. Samples are saved after each case: a long run may be interrupted."""
    able = tuple(name for name, suite in SUITES.items() if not suite.why_not())
    chosen = able if tuple(suites) == ("all",) else suites
    return show(run(chosen, names, settings, outputs.save), outputs)


def show(results: Results, outputs: Outputs) -> int:
    """Write the outputs; returns the exit status of the command."""
    outputs.save(results)
    if outputs.html is not None:
        outputs.html.write_text(page(results))
    if outputs.markdown:
        print(markdown(results))
    else:
        _print(results)
    for where in dict.fromkeys(f"{row.suite} {row.label}" for row in results.wrong):
        print(f"litz has no result for {where}", file=sys.stderr)
    return 1 if results.wrong else 0


def read(paths: Sequence[Path]) -> Results:
    """Results that `--json` wrote, of one run or of several on the same machine, as one."""
    return merged([Results.from_json(path.read_text()) for path in paths])


def _print(results: Results) -> None:
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    out = Console(width=width, highlight=False, markup=False)
    out.print(machine_line(results))
    out.print(HOW)
    for line in left_out_lines(results):
        out.print(line)
    for sheet in sheets(results):
        out.print()
        out.print(rich_table(sheet))
        for note in sheet.notes:
            out.print(note)
