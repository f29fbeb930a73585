"""Results as tables: ratios first, then times; the last lines have their means and worst rows.

In: `Results`. Out: `Sheet`s of text, printed with rich, as Markdown, or in the HTML page.
Example: `print(markdown(results))`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from litz.bench.ratio import CONFIDENCE, Interval, geometric_mean
from litz.bench.results import METRICS, OURS, Results, Row

MISSING = "-"
HOW = (
    "A ratio says how many times less Litz needs: above 1, Litz is better. It is the median over "
    f"rounds of neighbouring samples; in brackets, the {CONFIDENCE:.0%} interval of that median."
)
RANGE = "There were fewer than six rounds: brackets hold the whole range of the ratios."


@dataclass(frozen=True)
class Sheet:
    """One table as text. `rows` are those of its body; `others` are its columns of ratios."""

    title: str
    header: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    footer: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    rows: tuple[Row, ...]
    others: tuple[str, ...]


def sheets(results: Results) -> list[Sheet]:
    """A sheet for each suite and metric."""
    return [_sheet(results, *table) for table in results.tables()]


def _sheet(results: Results, suite: str, metric: str, rows: list[Row]) -> Sheet:
    unit = METRICS[metric].unit
    others = _others(results, rows)
    facts = list(dict.fromkeys(name for row in rows for name in row.facts))
    names = (OURS, *others)
    header = ("", *(f"vs {name}" for name in others), *(f"{name} {unit}" for name in names), *facts)
    body = tuple(
        (
            row.label,
            *(_ratio(row.speedup(name)) for name in others),
            *(_number(found.median if (found := row.of(name)) else None) for name in names),
            *(_number(row.facts.get(fact)) for fact in facts),
        )
        for row in rows
    )
    footer = tuple(_padded(line, len(header)) for line in _footer(rows, others))
    title = f"{suite}: {METRICS[metric].title}"
    return Sheet(title, header, body, footer, tuple(_notes(rows)), tuple(rows), others)


def _others(results: Results, rows: list[Row]) -> tuple[str, ...]:
    """The candidates that Litz is compared with: those asked for, then those the cases added."""
    present = dict.fromkeys(name for row in rows for name in (*row.samples, *row.missing))
    asked = [name for name in results.against if name in present]
    return tuple(dict.fromkeys((*asked, *(name for name in present if name != OURS))))


def _footer(rows: list[Row], others: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The mean of each column of ratios; then, for each, its worst row by name."""
    if len(rows) < 2:
        return []
    means, worst = ["geometric mean"], []
    for k, name in enumerate(others):
        found = [(ratio.median, row) for row in rows if (ratio := row.speedup(name))]
        means.append(_times(geometric_mean(r for r, _ in found)) if found else MISSING)
        if found:
            _, row = min(found, key=lambda pair: pair[0])
            label = f"worst vs {name}: {row.label}"
            worst.append((label, *("" for _ in range(k)), _ratio(row.speedup(name))))
    return [tuple(means), *worst]


def _notes(rows: Iterable[Row]) -> Iterable[str]:
    """Why a number is missing, and a note if brackets mean less than a confidence interval."""
    rows = list(rows)
    for row in rows:
        for name, why in row.missing.items():
            yield f"{row.label}, {name}: {why}"
    ratios = [row.speedup(name) for row in rows for name in row.samples if name != OURS]
    if any(r is not None and r.confidence < CONFIDENCE for r in ratios):
        yield RANGE


def _padded(line: tuple[str, ...], width: int) -> tuple[str, ...]:
    return line + ("",) * (width - len(line))


def _ratio(found: Interval | None) -> str:
    """The median and, if there was more than one round, its interval."""
    if found is None:
        return MISSING
    median, low, high = (_times(r) for r in (found.median, found.low, found.high))
    return f"{median} ({low}-{high})" if found.confidence else median


def _times(ratio: float) -> str:
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}"


def _number(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return MISSING
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{digits}f}"


# -- forms -------------------------------------------------------------------------------------


def rich_table(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left", box=SIMPLE_HEAD)
    for k, name in enumerate(sheet.header):
        table.add_column(name, justify="left" if k == 0 else "right")
    for line in sheet.body:
        table.add_row(*line)
    table.add_section()
    for line in sheet.footer:
        table.add_row(*line, style="bold")
    return table


def machine_line(results: Results) -> str:
    """The machine in one sentence."""
    m = results.machine
    gpu = f"{m['gpu']}; " if "gpu" in m else ""
    return (
        f"{gpu}{m['threads']} threads of {m['processor']} ({m['architecture']}, {m['vectors']}, "
        f"{m['caches']}), {m['system']}, torch {m['torch']}, llvmlite {m['llvmlite']}, "
        f"litz {m['litz']}; {m['run']}."
    )


def left_out_lines(results: Results) -> list[str]:
    return [f"{name} is left out: {why}." for name, why in results.left_out.items()]


def markdown(results: Results) -> str:
    """All tables, as in docs/benchmarks.md."""
    parts = [machine_line(results), HOW, *left_out_lines(results)]
    for sheet in sheets(results):
        lines = [sheet.header, ("---",) * len(sheet.header), *sheet.body, *sheet.footer]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        notes = "\n".join(f"- {note}" for note in sheet.notes)
        parts += [f"### {sheet.title}", table, *([notes] if notes else [])]
    return "\n\n".join(parts)
