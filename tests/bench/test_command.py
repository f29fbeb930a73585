"""The command as a user runs it: errors of one line, one real run, files that are read again."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from litz import cli
from litz.bench import candidates, command
from litz.bench.calls import measure_calls
from litz.bench.case import Case, Program, Say, Settings, Suite
from litz.bench.command import Outputs, bench, read, show
from litz.bench.results import Results, Row
from litz.bench.run import Begin, run
from litz.bench.suites import SUITES
from litz.errors import UnknownBenchmark
from tests.bench.planted import BERT, RESULTS

ROOT = Path(__file__).parents[2]


def test_a_real_run(tmp_path: Path) -> None:
    page, samples = tmp_path / "out.html", tmp_path / "out.json"
    words = ["bench", "--suite", "calls", "--against", "eager", "--quick"]
    done = subprocess.run(
        [sys.executable, "-m", "litz", *words, "--html", str(page), "--json", str(samples)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "[1/3] calls: x + 1" in done.stderr
    assert re.search(r"^ +x \+ 1 +\d+\.\d\d \(\d", done.stdout, re.MULTILINE)
    assert "geometric mean" in done.stdout and "worst vs eager" in done.stdout
    assert "<svg" in page.read_text()
    found = json.loads(samples.read_text())
    for row in found["rows"]:
        assert set(row["samples"]) == {"litz", "floor", "nothing", "eager"}
        assert not row["missing"]
        assert min(min(s) for s in row["samples"].values()) > 0
        # No backend is faster than one that does not compute.
        assert row["facts"]["us above floor"] > 0
        assert "us above nothing" in row["facts"]


def test_a_wrong_name_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["litz", "bench", "--suite", "cpus"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    suites = ", ".join(SUITES)
    assert ended.value.code == f"litz: there is no suite 'cpus'. Choose from: {suites}."


@pytest.mark.parametrize(
    ("suites", "names", "against", "text"),
    [
        (["calls"], ["bert"], [], "no case 'bert'. Choose from: x + 1, sum of 20 inputs, 20"),
        (["cpu"], ["berts"], [], "no case 'berts'. Choose from: bert, gpt2, llama,"),
        (
            ["cpu"],
            [],
            ["gcc"],
            "no candidate 'gcc'. Choose from: inductor, eager, nothing",
        ),
        (["cpu"], [], ["litz"], "no candidate 'litz'."),
    ],
)
def test_a_wrong_name_lists_the_right_ones(
    suites: list[str], names: list[str], against: list[str], text: str
) -> None:
    with pytest.raises(UnknownBenchmark) as caught:
        run(suites, names, Settings(against=tuple(against), quick=True))
    assert text in str(caught.value)


def test_saved_samples_are_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, page = tmp_path / "saved.json", tmp_path / "page.html"
    assert show(RESULTS, Outputs(json=saved)) == 0
    first = capsys.readouterr().out
    assert show(read([saved]), Outputs(html=page)) == 0
    assert capsys.readouterr().out == first
    assert "gpt2 batch 1" in page.read_text()
    assert show(read([saved]), Outputs(markdown=True)) == 0
    assert "| geometric mean | 1.00 |" in capsys.readouterr().out


def test_without_a_compiler_inductor_is_left_out_and_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(candidates, "COMPILERS", ("no-such-compiler",))
    monkeypatch.setitem(SUITES, "cpu", Suite("Planted.", lambda quick: []))
    assert bench(["cpu"], [], Settings(quick=True), Outputs()) == 0
    assert "inductor is left out: it needs a C++ compiler." in capsys.readouterr().out


def test_a_case_that_cannot_be_built_does_not_cost_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> Program:
        raise ImportError("no transformers")

    def counted(case: Case, settings: Settings, say: Say) -> list[Row]:
        return [replace(BERT, suite=case.suite, case=case.name)]

    cases = [
        Case("cpu", "a", "", fails, measure_calls),
        Case("cpu", "b", "", fails, counted),
    ]
    monkeypatch.setitem(SUITES, "cpu", Suite("Planted.", lambda quick: cases))
    saved: list[Results] = []
    found = run(["cpu"], [], Settings(against=()), saved.append)
    assert [len(results.rows) for results in saved] == [1, 2] and saved[-1] == found
    assert [(row.case, bool(row.samples)) for row in found.rows] == [("a", False), ("b", True)]
    assert found.rows[0].missing == {"litz": "ImportError: no transformers"}
    assert [row.case for row in found.wrong] == ["a"]
    assert [row.case for row in run(["cpu"], ["b"], Settings(against=())).rows] == ["b"]


def test_a_wrong_result_of_ours_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    row = replace(BERT, samples={"eager": (1.0,)}, missing={"litz": "result 0 is wrong"})
    assert show(replace(RESULTS, rows=(row,)), Outputs()) == 1
    assert "litz has no result for cpu bert batch 1" in capsys.readouterr().err


def test_the_bar_names_the_case_and_what_it_does() -> None:
    with Progress(console=Console(file=io.StringIO())) as bar:
        begin = Begin(2, bar)
        begin(Case("cpu", "a", "batch 1", Program, measure_calls))
        begin(Case("cpu", "b", "", Program, measure_calls))("timing")
        [task] = bar.tasks
        assert (task.description, task.completed, task.total) == ("cpu: b: timing", 1, 2)


def test_a_quick_run_is_shorter_unless_told_otherwise() -> None:
    slow = command.settings(["eager"], None, None, 600, None, quick=False)
    assert slow == Settings(against=("eager",))
    quick = command.settings(["eager"], None, 2, 600, 3, quick=True)
    assert quick.seconds < slow.seconds and (quick.rounds, quick.threads) == (2, 3)


def test_a_file_that_cannot_be_written_is_found_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["litz", "bench", "--json", "no-such-folder/a.json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "there is no folder no-such-folder" in capsys.readouterr().err
