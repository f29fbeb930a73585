"""The op table agrees with this version of Litz, and holds what Litz promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from litz.lower.registry import RULES
from litz.optable import DTYPES, HOWS, MEASURED, OpTable, Row, load
from litz.optable.page import page
from litz.optable.reasons import NO_RULE, reason
from tests.ops.exceptions import EXCEPTIONS
from tests.ops.listed import LISTED
from tests.ops.opinfo import every_op, name_of, supported_dtypes
from tests.ops.refused import version
from tests.ops.results import Result
from tests.ops.table import core, exceptions, ops, ruled, write_table

ROOT = Path(__file__).parent.parent.parent
SHARE = 0.85


def without_rule(table: OpTable) -> dict[str, set[str]]:
    """Ops that the table says are generated, with what has no rule in this version."""
    known = ruled()
    found = {row.op: set(row.made_of) - known for row in table.rows}
    return {op: missing for op, missing in found.items() if missing}


def test_whatever_is_generated_has_rules() -> None:
    assert without_rule(load()) == {}
    unmade = {r.op for r in load().rows if r.how == "generated" and not r.made_of}
    assert not unmade, f"generated from nothing: {unmade}"


def test_a_rule_that_vanished_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    for overload in [o for o in RULES if str(o).startswith("aten.erf.")]:
        monkeypatch.delitem(RULES, overload)
    assert without_rule(load())["erf"] == {"erf"}
    assert core()["erf"] == "ATen" != load().core["erf"]


@pytest.mark.skipif(load().torch != version(), reason="the table is of another torch")
def test_core_ops_are_as_this_version_has_them() -> None:
    assert load().core == core()


def test_every_op_of_the_database_has_a_row_in_every_dtype() -> None:
    shown = {(row.op, dtype) for row in load().rows for dtype in row.dtypes}
    names = {(name_of(op), str(d).removeprefix("torch.")) for op in every_op()
             for d in supported_dtypes(op)}  # fmt: skip
    assert names - shown <= set(EXCEPTIONS)
    if load().torch == version():  # another has fewer ops, and kernels for fewer types
        assert shown <= names


def test_no_op_failed_that_has_no_exception() -> None:
    assert all(counts["failed"] == 0 for counts in load().counts.values())
    assert load().exceptions == exceptions()


def test_the_promised_share_is_generated() -> None:
    table = load()
    assert {row.op for row in table.rows if row.promised} == LISTED
    assert table.generated_ratio >= SHARE


def test_what_is_promised_and_not_generated_has_a_reason_by_design() -> None:
    """Of the promised ops, those that call ATen do so for what is ATen's by design."""
    left = {(r.op, op) for r in load().rows if r.promised for op in r.left if reason(op) == NO_RULE}
    assert left == set()


def test_rows_of_a_result_file(tmp_path: Path) -> None:
    found = [
        Result("k", "add", "float32", "passed", how="generated", made=["aten.add.Tensor"]),
        Result("k", "add", "bool", "passed", how="ATen", aten={"aten.mm.default": 2}),
        Result("k", "add", "float64", "passed", how="generated", made=["aten.abs.default"]),
        Result("k", "nope", "int8", "unsupported", how="eager", unsupported=2),
    ]
    file = tmp_path / "table.json"
    write_table(found, 2, file)
    table = load(file)
    assert table.rows == (
        Row("add", "generated", ("float64", "float32"), ("abs", "add.Tensor"), promised=True),
        Row("add", "ATen", ("bool",), left=("mm",), promised=True),
        Row("nope", "unsupported", ("int8",)),
    )
    assert table.promised == ({"add"}, set())
    assert table.rows[1].why == "matrix product: MKL and oneDNN"
    assert table.how("add", "float64") == "generated" and table.how("add", "int8") is None
    assert table.counts["float32"]["passed"] == 1 == table.counts["int8"]["unsupported"]
    assert "| `add` | generated | float64, float32 | abs add.Tensor |  |  |" in page(table)


def test_a_case_that_failed_has_no_row() -> None:
    assert ops([Result("k", "add", "int8", "failed", failures=["wrong"])])["add"] == {
        "dtypes": {},
        "promised": True,
    }


def test_dtypes_have_short_names() -> None:
    assert Row("add", "generated", DTYPES).types == "all"
    assert Row("add", "generated", (*DTYPES[:4], "bool")).types == "floats, bool"
    assert Row("add", "generated", ("int8", "float16")).types == "int8, float16"


def test_the_file_is_a_line_an_op() -> None:
    longest = max(len(line) for line in MEASURED.read_text().splitlines())
    assert longest < 1500
    assert {row.how for row in load().rows} <= set(HOWS)


@pytest.mark.parametrize("argument", ["--json", "--markdown", ""])
def test_command(argument: str) -> None:
    command = [sys.executable, "-m", "litz", "ops", "--op", "cumsum", *argument.split()]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    if argument == "--json":
        rows = json.loads(done.stdout)
        assert {row["op"] for row in rows} == {"cumsum", "logcumsumexp", "masked.cumsum"}
        assert rows[0]["how"] == "generated" and "float32" in rows[0]["dtypes"]
    elif argument == "--markdown":
        assert done.stdout == page(load()) + "\n"
    else:
        assert "cumsum" in done.stdout and "promised ops" in done.stdout
        assert "argsort" not in done.stdout
