"""What is on disk, or cannot be: no home, no folder, a full disk, damaged files of every kind.

Reading gives a miss and a note, writing a note and one warning; a graph is compiled either way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import litz
from litz.autotune import database as module
from litz.autotune.cost import Machine
from litz.autotune.database import Database, _digest, name_of
from litz.autotune.results import Trial
from litz.autotune.serialization import choice_of, trials_of
from litz.ir.choices import GemmChoice, LoopChoice
from litz.ir.scheduled import Tiling
from litz.report import Report

ROOT = Path(__file__).parent.parent.parent
KEY, VALUE = {"program": "x"}, {"choice": {"block": 8}, "trials": []}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warned", set())


def tuned(folder: str, **options: Any) -> Report:
    """A layer that is tuned, and right, whatever the folder is."""
    layer, x = torch.nn.Linear(64, 96), torch.randn(16, 64)
    flags = {"max_autotune_gemm": True, "cache_dir": folder, "on_error": "raise"}
    flags |= {"max_autotune_report_choices_stats": False, "max_autotune_budget_seconds": 60.0}
    with torch.no_grad(), litz.config.patch({**flags, **options}):
        (report,) = litz.explain(layer, x).graphs
    return report


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that take no time: what they find is not the point here."""
    monkeypatch.setattr("litz.autotune.trial.InProcessRunner.tried", lambda *_: "not timed")
    monkeypatch.setattr("litz.autotune.cpu_tuning.measured", lambda threads: Machine(1e11, 1e10))


def notes(report: Report) -> list[str]:
    return [d.reason for d in report.tuning.decisions if d.consumer == "database"]


# -- folders ---------------------------------------------------------------------------------


def _is_a_file(path: Path) -> str:
    path.write_text("")
    return str(path)


def _is_below_a_file(path: Path) -> str:
    path.write_text("")
    return str(path / "deep" / "er")


def _cannot_be_written(path: Path) -> str:
    path.mkdir()
    path.chmod(0o500)
    return str(path)


FOLDERS: dict[str, Callable[[Path], str]] = {
    "a file": _is_a_file,
    "below a file": _is_below_a_file,
    "of nobody": lambda path: "~no_such_user_of_ours/x",
    "no name": lambda path: "a\0b",
    "not in UTF-8": lambda path: str(path) + "\udc80\ud800",
    "too long": lambda path: str(path / ("x" * 5000)),
    "a device": lambda path: "/dev/null",
    "read-only": _cannot_be_written,
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_cannot_be_used(kind: str, tmp_path: Path, quick: None) -> None:
    folder = FOLDERS[kind](tmp_path / "here")
    if kind == "read-only" and os.access(folder, os.W_OK):
        pytest.skip("nothing is read-only to this user")
    with pytest.warns(UserWarning, match="keeps no results of tuning"):
        assert notes(tuned(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        assert notes(tuned(folder))


NO_HOME = """
import os, pwd, warnings
for name in ("HOME", "XDG_CACHE_HOME", "USERPROFILE"):
    os.environ.pop(name, None)
def nobody(_):
    raise KeyError("no such user")
pwd.getpwuid = pwd.getpwnam = nobody
import torch, litz
options = {"max_autotune": True, "max_autotune_budget_seconds": 0.3, "on_error": "raise"}
layer, x = torch.nn.Linear(64, 96), torch.randn(16, 64)
with torch.no_grad(), warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    found = torch.compile(layer, backend="litz", options=options)(x)
    torch.testing.assert_close(found, layer(x))
print([str(w.message)[:44] for w in said if "Litz" in str(w.message)])
"""


def test_nobody_has_a_home() -> None:
    # torch 2.11 itself asks for a user's name when it is imported, though for no home.
    named = {"LOGNAME": "somebody"} if torch.__version__ < "2.13" else {}
    done = subprocess.run(
        [sys.executable, "-c", NO_HOME], cwd=ROOT, env={**os.environ, **named},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "['Litz keeps no results of tuning: a folder fo']"


@pytest.mark.parametrize("where", ["tempfile.mkstemp", "os.replace", "os.fdopen", "json.dumps"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), MemoryError(), ValueError()]
)
def test_a_write_that_fails(
    where: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    database = Database(tmp_path / "autotune")
    with monkeypatch.context() as patched, pytest.warns(UserWarning, match="keeps no results"):
        patched.setattr(f"litz.autotune.database.{where}", fails)
        database.put(KEY, VALUE)
    assert len(database.notes) == 1 and not list((tmp_path / "autotune").iterdir())
    database.put(KEY, VALUE)
    assert database.get(KEY) == VALUE


def test_an_interrupt_while_writing_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    database = Database(tmp_path / "autotune")
    monkeypatch.setattr("litz.autotune.database.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        database.put(KEY, VALUE)
    assert not list((tmp_path / "autotune").iterdir())


# -- files -----------------------------------------------------------------------------------


def _entry(value: Any, key: Any = KEY) -> bytes:
    text = json.dumps({"key": key, "value": value, "checksum": _digest(key, value)})
    return text.encode()


def _twice() -> bytes:
    return b'{"key": 1, "key": 2, ' + _entry(VALUE)[1:-1] + b', "value": {"choice": 3}}'


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "brackets": b"[" * 200_000,
    "braces": b'{"a":' * 200_000,
    "closed brackets": b"[" * 100_000 + b"]" * 100_000,
    "deep value": b'{"key": {"program": "x"}, "checksum": "", "value": '
    + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    "not UTF-8": b"\xff\xfe\x00" * 100,
    "zeros": bytes(10_000),
    "a number": b"1",
    "a long number": b"9" * 100_000,
    "infinity": b"1e999",
    "NaN": b"NaN",
    "null": b"null",
    "a list": b"[1, 2, 3]",
    "a string": b'"checksum"',
    "no value": b'{"key": {"program": "x"}, "checksum": ""}',
    "another key": _entry(VALUE, {"program": "y"}),
    "a key of numbers": _entry(VALUE, [1, 2]),
    "no dict": _entry([VALUE]),
    "keys twice": _twice(),
    "too large": b" " * (5 << 20) + _entry(VALUE),
    "cut off": _entry(VALUE)[:-7],
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_a_miss(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "autotune"
    database = Database(folder)
    (folder / name_of(KEY)).write_bytes(DAMAGED[kind])
    assert database.get(KEY) is None
    assert len(database.notes) == 1 and "is damaged" in database.notes[0]
    assert len(database.notes[0]) < 300
    database.put(KEY, VALUE)
    assert database.get(KEY) == VALUE


def test_what_is_no_file_is_a_miss(tmp_path: Path) -> None:
    """Opening a pipe waits for who writes into it, unless one takes care."""
    folder = tmp_path / "autotune"
    database = Database(folder)
    path = folder / name_of(KEY)
    makers: list[Callable[[], Any]] = [
        path.mkdir,
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(path),
    ]
    for make in makers:
        make()
        assert database.get(KEY) is None and "is damaged" in database.notes[-1]
        path.rmdir() if path.is_dir() else path.unlink()
    assert len(database.notes) == len(makers)


@pytest.mark.parametrize("error", [OSError(5, "I/O error"), MemoryError(), RecursionError()])
def test_a_read_that_fails(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    database = Database(tmp_path / "autotune")
    database.put(KEY, VALUE)
    monkeypatch.setattr("litz.autotune.database.json.loads", fails)
    assert database.get(KEY) is None and "is damaged" in database.notes[0]


# -- what files say ----------------------------------------------------------------------------

# In place of anything that is kept.
NONSENSE: list[Any] = [
    None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "", "x" * 1000, [], [1], {},
    {"a": 1}, [[[[]]]],
]  # fmt: skip
TILING = Tiling((32, 64), row=8)


@pytest.mark.parametrize(
    "rule", [GemmChoice(), LoopChoice(), TILING], ids=lambda r: type(r).__name__
)
@pytest.mark.parametrize("wrong", NONSENSE, ids=lambda value: repr(value)[:20])
def test_no_choice_is_made_of_nonsense(rule: Any, wrong: Any) -> None:
    """A choice of another value than the field's range is refused, or it is one of it."""
    fields = [*vars(rule), "unknown"]
    for field in fields:
        try:
            made = choice_of(rule, {field: wrong})
        except Exception:
            continue
        value = getattr(made, field)
        assert value == getattr(rule, field) or field in ("k_block", "fused", "rows", "prologue")
    for facts in (wrong, [wrong]):
        if facts != {}:
            with pytest.raises(Exception):  # noqa: B017  any: the tuner takes all for a miss
                choice_of(rule, facts)


@pytest.mark.parametrize("wrong", NONSENSE, ids=lambda value: repr(value)[:20])
def test_no_trial_is_made_of_nonsense(wrong: Any) -> None:
    row = {"choice": {}, "note": "", "ratio": {"median": 1, "low": 1, "high": 1, "seconds": 1}}
    for field in ("median", "low", "high", "seconds"):
        ratio = {**row["ratio"], field: wrong}  # type: ignore[dict-item]
        if wrong not in (1.5, 10**30):
            with pytest.raises(ValueError, match="no positive number"):
                trials_of(GemmChoice(), [{**row, "ratio": ratio}])
    (trial,) = trials_of(GemmChoice(), [{**row, "note": wrong}])
    assert isinstance(trial, Trial) and isinstance(trial.note, str) and len(trial.note) <= 200
    for rows in (wrong, [wrong]):
        if rows not in ("", [], {}):
            with pytest.raises(Exception):  # noqa: B017
                trials_of(GemmChoice(), rows)


@pytest.mark.parametrize("wrong", NONSENSE, ids=lambda value: repr(value)[:20])
def test_tuning_takes_nonsense_for_a_miss(wrong: Any, tmp_path: Path, quick: None) -> None:
    """Each file of a tuned layer, in turn with nonsense at each place, under a right checksum."""
    tuned(str(tmp_path))
    files = sorted((tmp_path / "autotune").iterdir())
    kept = [json.loads(file.read_text()) for file in files]
    assert len(files) == 2  # the machine's peaks, and the product
    for file, entry in zip(files, kept, strict=True):
        places: list[Any] = [wrong, *({**entry["value"], name: wrong} for name in entry["value"])]
        for value in places:
            changed = {**entry, "value": value, "checksum": _digest(entry["key"], value)}
            file.write_text(json.dumps(changed))
            report = tuned(str(tmp_path))
            assert all(f.choice == f.default for f in report.tuning.findings)
        file.write_text(json.dumps(entry))


# -- python -O ---------------------------------------------------------------------------------

OPTIMISED = """
import torch, litz
layer = torch.nn.Linear(8, 8)
def function(x):
    return layer(x).softmax(-1).sort(-1)[0]
x = torch.randn(4, 8, requires_grad=True)
fast = torch.compile(function, backend="litz", options={"on_error": "raise"})
fast(x).sum().backward()
torch.testing.assert_close(fast(x), function(x))
longer = torch.compile(function, backend="litz", dynamic=True, options={"on_error": "raise"})
torch.testing.assert_close(longer(x[:3]), function(x[:3]))
assert not __debug__
print(len(str(litz.explain(function, x))) > 100)
from litz.cli import app
app(["--help"])
"""


def test_python_may_drop_assertions_and_docstrings() -> None:
    """-OO drops all that -O does."""
    done = subprocess.run(
        [sys.executable, "-OO", "-c", OPTIMISED],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "True" in done.stdout and "options" in done.stdout
