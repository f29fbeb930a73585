"""Results as one HTML file that needs nothing else: charts as inline SVG, tables, the machine.

In: `Results`. Out: the text of the page. A bar goes from 1 to the ratio on a logarithmic axis, to
the right if Litz is better, and shows its interval. Example:

    Path("out.html").write_text(page(results))
"""

from __future__ import annotations

import math
from html import escape

from litz.bench.ratio import Interval
from litz.bench.results import Results, Row
from litz.bench.tables import HOW, Sheet, left_out_lines, machine_line, sheets

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2")
LABEL, PLOT, MARGIN, BAR, GAP, TOP = 210, 560, 70, 12, 8, 34  # pixels

STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
tfoot td { font-weight: 600; }
svg { max-width: 100%; height: auto; }
svg text { fill: currentColor; font: 12px system-ui, sans-serif; }
.note { opacity: .75; margin: 0; }
"""


def page(results: Results) -> str:
    """The whole page."""
    notes = "".join(f"<p>{escape(line)}</p>" for line in left_out_lines(results))
    sections = "".join(_section(sheet) for sheet in sheets(results))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>Litz benchmarks</title><style>{STYLE}</style></head><body>"
        f"<h1>Litz benchmarks</h1><p>{escape(machine_line(results))}</p><p>{escape(HOW)}</p>"
        f"{notes}{sections}</body></html>\n"
    )


def _section(sheet: Sheet) -> str:
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in sheet.notes)
    return f"<section><h2>{escape(sheet.title)}</h2>{chart(sheet)}{_table(sheet)}{notes}</section>"


def _table(sheet: Sheet) -> str:
    head = _line(sheet.header, "th")
    body = "".join(_line(line, "td") for line in sheet.body)
    foot = "".join(_line(line, "td") for line in sheet.footer)
    return f"<table><thead>{head}</thead><tbody>{body}</tbody><tfoot>{foot}</tfoot></table>"


def _line(cells: tuple[str, ...], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


# -- the chart ---------------------------------------------------------------------------------


class Axis:
    """Maps ratios to pixels, over powers of two that contain them all, at least 1/2 to 2."""

    def __init__(self, ratios: list[Interval]) -> None:
        self.low = min([-1, *(math.floor(math.log2(r.low)) for r in ratios)])
        self.high = max([1, *(math.ceil(math.log2(r.high)) for r in ratios)])

    def at(self, ratio: float) -> float:
        return LABEL + PLOT * (math.log2(ratio) - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        step = max(1, (self.high - self.low) // 8)
        return [2.0**k for k in range(self.low, self.high + 1) if k % step == 0]


def chart(sheet: Sheet) -> str:
    """Bars of ratios, a group for each row; empty if there is no ratio to show."""
    ratios = [r for row in sheet.rows for name in sheet.others if (r := row.speedup(name))]
    if not ratios:
        return ""
    axis = Axis(ratios)
    step = BAR * len(sheet.others) + GAP
    bottom = TOP + step * len(sheet.rows)
    parts = [_tick(axis, ratio, bottom) for ratio in axis.ticks]
    parts += [_key(k, name) for k, name in enumerate(sheet.others)]
    for k, row in enumerate(sheet.rows):
        parts.append(_group(axis, row, sheet.others, TOP + step * k))
    size = f'viewBox="0 0 {LABEL + PLOT + MARGIN} {bottom + 24}"'
    label = f'role="img" aria-label="{escape(sheet.title)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {label}>{"".join(parts)}</svg>'


def _tick(axis: Axis, ratio: float, bottom: float) -> str:
    x, width = axis.at(ratio), 1.5 if ratio == 1 else 0.5
    text = f"{ratio:g}x" if ratio >= 1 else f"1/{1 / ratio:g}x"
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="currentColor" '
        f'stroke-width="{width}" opacity=".5"/>'
        f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{text}</text>'
    )


def _key(k: int, name: str) -> str:
    x = LABEL + 130 * k
    return (
        f'<rect x="{x}" y="6" width="12" height="12" fill="{COLOURS[k % len(COLOURS)]}"/>'
        f'<text x="{x + 18}" y="16">vs {escape(name)}</text>'
    )


def _group(axis: Axis, row: Row, others: tuple[str, ...], top: float) -> str:
    """The label of a row and its bars."""
    middle = top + BAR * len(others) / 2 + 4
    parts = [f'<text x="{LABEL - 10}" y="{middle}" text-anchor="end">{escape(row.label)}</text>']
    for k, name in enumerate(others):
        ratio = row.speedup(name)
        if ratio is not None:
            parts.append(_bar(axis, ratio, top + BAR * k, COLOURS[k % len(COLOURS)]))
    return "".join(parts)


def _bar(axis: Axis, ratio: Interval, top: float, colour: str) -> str:
    one, end = axis.at(1.0), axis.at(ratio.median)
    low, high, middle = axis.at(ratio.low), axis.at(ratio.high), top + BAR / 2
    return (
        f'<rect x="{min(one, end):.1f}" y="{top + 1}" width="{abs(end - one):.1f}" '
        f'height="{BAR - 2}" fill="{colour}"/>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" '
        'stroke="currentColor" stroke-width="1.5"/>'
        f'<text x="{max(one, high) + 5:.1f}" y="{middle + 4}">{ratio.median:.2f}</text>'
    )
