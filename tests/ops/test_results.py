"""What a sweep keeps: the last result of each case, and nothing of a line cut short."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ops import summary as summaries
from tests.ops.results import Result, append, latest
from tests.ops.summary import summary


def test_the_last_result_of_a_case_counts(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    append(Result("k1", "add", "float32", "failed", failures=["wrong"]), file)
    append(Result("k2", "add", "float32", "passed", passed=2, how="generated"), file)
    append(Result("k2", "mm", "float32", "passed", passed=2, how="ATen"), file)
    with file.open("a") as out:
        out.write('{"key": "k2", "op": "ad')
    found = latest(file)
    assert {case: r.status for case, r in found.items()} == {
        ("add", "float32"): "passed",
        ("mm", "float32"): "passed",
    }
    assert found["add", "float32"].generated
    assert not found["mm", "float32"].generated


def test_summary_counts_and_names_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "LISTED", frozenset({"add", "sub"}))
    monkeypatch.setattr(summaries, "excepted", lambda op, dtype: op == "empty" or None)
    rows = [
        Result("k", "add", "float32", "passed", passed=2, how="generated"),
        Result("k", "sub", "float32", "passed", passed=2, how="ATen", aten={"aten.sub.Tensor": 2}),
        Result("k", "mul", "float32", "failed", failures=["wrong by\n 3"]),
        Result("old", "empty", "float32", "failed", failures=["undefined"]),
    ]
    text, failed = summary(rows, 5, "k")
    assert failed
    assert "4 of 5 cases done, 1 of them with older sources" in text
    assert "generated in every dtype: 1 of 2 (50.0 %)" in text
    assert "ATEN aten.sub.Tensor: sub" in text
    assert "FAILED mul float32: wrong by 3" in text
    assert "FAILED empty" not in text
    assert text.splitlines()[3].split() == ["float32", "2", "1", "1", "0"]
