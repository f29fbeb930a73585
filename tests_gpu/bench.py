"""A suite of `litz bench` on a machine that lacks the command's own dependencies.

In: `python -m tests_gpu.bench SUITE [CASE ...]`, a suite's name and, if not all, its cases. Out:
Markdown: after each case its own rows, so that a run that is cut short loses nothing, and at the
end all of them in tables. It stops by itself after `BUDGET` seconds and says what it did not reach.
Needed beside torch: rich and what it imports. Example: `python -m tests_gpu.bench gpu bert token`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from litz.bench.case import Settings
from litz.bench.command import settings
from litz.bench.results import Results, Row
from litz.bench.run import run
from litz.bench.suites import SUITES
from litz.bench.tables import markdown, sheets
from litz.errors import LitzError

BUDGET = 290.0  # seconds: a case that begins before is finished
SECONDS = 1.0  # of timing a case


class Enough(Exception):
    """The time is up."""


class Printing:
    """Prints the rows that are new, each time it is called; raises `Enough` at the end."""

    def __init__(self, budget: float) -> None:
        self.end = time.monotonic() + budget
        self.shown = self.cases = 0
        self.last: Results | None = None

    def __call__(self, results: Results) -> None:
        self.last = results
        print(lines(results, results.rows[self.shown :]), flush=True)
        self.shown, self.cases = len(results.rows), self.cases + 1
        if time.monotonic() > self.end:
            raise Enough


def lines(results: Results, rows: Sequence[Row]) -> str:
    """Some rows, each with its numbers, without the tables around them."""
    found: list[str] = []
    for sheet in sheets(replace(results, rows=tuple(rows))):
        found.append(f"{sheet.title}: {' | '.join(sheet.header)}")
        found += [f"| {' | '.join(line)} |" for line in sheet.body]
        found += [f"- {note}" for note in sheet.notes]
    return "\n".join(found)


def main(
    suite: str, names: Sequence[str], given: Settings | None = None, budget: float = BUDGET
) -> int:
    """Measure and print; 1 if Litz was wrong or failed anywhere, or time was too short."""
    chosen = given or settings(("inductor", "eager"), SECONDS, None, 600.0, None, False)
    printing, whole = Printing(budget), True
    try:
        run([suite], names, chosen, printing)
    except Enough:
        whole = False
    assert printing.last is not None
    print(f"\n{markdown(printing.last)}")
    if not whole:
        cases = [c for c in SUITES[suite].cases(chosen.quick) if not names or c.name in names]
        left = ", ".join(case.label for case in cases[printing.cases :])
        print(f"\nnot reached after {budget:.0f} s: {left or 'nothing'}")
    return 1 if printing.last.wrong or not whole else 0


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in SUITES:
        sys.exit(f"give a suite: {', '.join(SUITES)}; then, if not all, its cases")
    try:
        sys.exit(main(sys.argv[1], sys.argv[2:]))
    except LitzError as error:
        sys.exit(str(error))
