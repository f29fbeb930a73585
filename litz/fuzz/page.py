"""The coverage of a hunt as tables.

In: `Coverage`. Out: tables for a terminal, each with a row of what was not reached. Example:
`for table in tables(tally.coverage): console.print(table)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from litz.fuzz.coverage import (
    ATEN,
    FLAGS,
    FUSION,
    GRAPHS,
    KERNEL,
    LOOPS,
    PROGRAMS,
    TEXT,
    Coverage,
)

LISTED = {  # a title for each table
    PROGRAMS: "programs",
    GRAPHS: "graphs",
    FUSION: "fusions",
    LOOPS: "loop forms",
    FLAGS: "flags",
}


def tables(coverage: Coverage) -> Iterator[Table]:
    """Ops, then loops, fusions and the rest, then texts of the vocabulary."""
    yield _ops(coverage)
    for table, title in LISTED.items():
        shown = Table(title, "times", box=None, header_style="bold")
        for row, count in coverage.rows(table).items():
            shown.add_row(row, str(count))
        _add_missing(shown, coverage.missing(table))
        yield shown
    yield _texts(coverage)


def _ops(coverage: Coverage) -> Table:
    shown = Table("op", "in kernels", "left to ATen", box=None, header_style="bold")
    ours, theirs = coverage.rows(KERNEL), coverage.rows(ATEN)
    for op in dict.fromkeys((*ours, *theirs)):
        shown.add_row(op, str(ours.get(op, 0)), str(theirs.get(op, 0)))
    _add_missing(shown, [op for op in coverage.missing(KERNEL) if op not in theirs])
    return shown


def _texts(coverage: Coverage) -> Table:
    drawn, missing = coverage.rows(TEXT), coverage.missing(TEXT)
    shown = Table("vocabulary", "times", box=None, header_style="bold")
    shown.add_row(f"{len(drawn)} of {len(drawn) + len(missing)} texts", str(sum(drawn.values())))
    _add_missing(shown, missing)
    return shown


def _add_missing(shown: Table, rows: list[str]) -> None:
    if rows:
        shown.add_row(f"NOT REACHED ({len(rows)}): {', '.join(rows)}", "")
