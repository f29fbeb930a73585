"""What is shown of planted results: tables, Markdown, the page, JSON."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from rich.console import Console

from litz.bench.page import LABEL, PLOT, chart, page
from litz.bench.results import NOT_ASKED, Results, merged
from litz.bench.tables import RANGE, markdown, rich_table, sheets
from litz.errors import DifferentMachines
from tests.bench.planted import BERT, COMPILE, MACHINE, RESULTS, VIT

CPU, COMPILES = sheets(RESULTS)


def test_ratios_come_first() -> None:
    assert CPU.title == "cpu: time of a call"
    assert CPU.header == ("", "vs inductor", "vs eager", "litz ms", "inductor ms", "eager ms")
    assert CPU.body[0] == (
        "bert batch 1", "2.00 (2.00-2.00)", "4.00 (4.00-4.00)", "10.0", "20.0", "40.0",
    )  # fmt: skip
    assert CPU.body[1][1] == "0.50 (0.50-0.50)"
    assert CPU.body[2][1] == CPU.body[2][4] == "-"


def test_the_mean_and_the_worst_are_at_the_bottom() -> None:
    assert CPU.footer[0][:3] == ("geometric mean", "1.00", "4.00")
    assert CPU.footer[1][:2] == ("worst vs inductor: gpt2 batch 1", "0.50 (0.50-0.50)")
    assert CPU.footer[2][0].startswith("worst vs eager") and CPU.footer[2][1] == ""
    assert all(len(line) == len(CPU.header) for line in CPU.footer)
    assert COMPILES.footer == ()  # of one row


def test_what_is_missing_says_why() -> None:
    assert CPU.notes == ("vit batch 1, inductor: RuntimeError: no <headers>",)


def test_few_rounds_are_a_range_and_facts_are_columns() -> None:
    assert COMPILES.header == ("", "vs inductor", "litz s", "inductor s", "ms an op")
    assert COMPILES.body == (("bert", "15.0 (10.0-20.0)", "1.50", "20.0", "0.125"),)
    assert COMPILES.notes == (RANGE,)
    one = replace(COMPILE, samples={"litz": (1.0,), "inductor": (153.0,)})
    [sheet] = sheets(replace(RESULTS, rows=(one,)))
    assert sheet.body[0][1] == "153"


def test_the_printed_table_has_every_cell() -> None:
    out = io.StringIO()
    Console(file=out, width=180).print(rich_table(CPU))
    for cell in (cell for line in (CPU.header, *CPU.body, *CPU.footer) for cell in line):
        assert cell in out.getvalue()


def test_markdown_names_the_machine_and_rules_its_tables() -> None:
    text = markdown(replace(RESULTS, left_out={"eager": "it is planted"}))
    assert text.startswith("2 threads of Planted <CPU> (znver9, 512 bits, ")
    assert "eager is left out: it is planted.\n" in text
    tables = re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE)
    assert len(tables) == 2
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert "- vit batch 1, inductor: RuntimeError" in text


def test_the_page_is_whole_and_escaped() -> None:
    text = page(RESULTS)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "Planted &lt;CPU&gt;" in text and "no &lt;headers&gt;" in text and "<CPU>" not in text
    body = re.search(r"<body>.*</body>", text, re.DOTALL)
    assert body is not None
    tree = ElementTree.fromstring(body.group())
    assert len(tree.findall(".//table")) == len(tree.findall(".//{*}svg")) == 2


def test_bars_go_from_one_to_the_ratio() -> None:
    svg = ElementTree.fromstring(chart(CPU))
    bars = [
        {k: float(bar.attrib[k]) for k in ("x", "y", "width")}
        for bar in svg.findall("{*}rect")
        if bar.attrib["height"] == "10"
    ]
    # The axis goes from 1/2 to 4. Two bars for bert, two for gpt2, eager's alone for vit.
    octave, one = PLOT / 3, LABEL + PLOT / 3
    expected = [(one, octave), (one, 2 * octave), (one - octave, octave)]
    expected += [(one, 2 * octave)] * 2
    for bar, (x, width) in zip(bars, expected, strict=True):
        assert bar["x"] == pytest.approx(x, abs=0.1)
        assert bar["width"] == pytest.approx(width, abs=0.1)
    assert sorted(bars, key=lambda bar: bar["y"]) == bars


def test_a_sheet_without_ratios_has_no_chart() -> None:
    alone = replace(BERT, samples={"litz": (1.0, 1.0)})
    [sheet] = sheets(replace(RESULTS, rows=(alone,)))
    assert chart(sheet) == "" and "<svg" not in page(replace(RESULTS, rows=(alone,)))


def test_json_holds_everything() -> None:
    assert Results.from_json(RESULTS.to_json()) == RESULTS


def test_runs_of_one_machine_are_one_and_of_two_are_none() -> None:
    parts = [replace(RESULTS, rows=(BERT,)), replace(RESULTS, rows=(COMPILE,), against=("x",))]
    assert merged(parts).rows == (BERT, COMPILE)
    assert merged(parts).against == ("inductor", "eager", "x")
    other = replace(RESULTS, machine={**MACHINE, "threads": "1"})
    with pytest.raises(DifferentMachines, match=r"threads \(2; 1\)"):
        merged([RESULTS, other])


def test_only_a_failure_of_ours_is_wrong() -> None:
    ours = replace(VIT, missing={"litz": "result 0 is 1 from float64"})
    cached = replace(VIT, missing={"litz": NOT_ASKED})
    assert replace(RESULTS, rows=(BERT, VIT, cached, ours)).wrong == [ours]
