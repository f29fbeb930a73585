"""Tests of the seeding itself: by name, by seed, in subprocesses, whatever ran before."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import draws

ROOT = Path(__file__).parent.parent

CASES = """
import random
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tests import draws

SHARED = torch.rand(1, generator=draws.generator(5)).item()
LOADED = torch.rand(1).item()

@pytest.fixture(scope="module")
def shared():
    return torch.rand(1).item()

def show(name, *numbers):
    with open("numbers.txt", "a") as file:
        print(name, *numbers, file=file)

def test_plain():
    show("plain", torch.rand(1).item(), np.random.rand(), random.random())

def test_other():
    show("other", torch.rand(1).item(), np.random.rand(), random.random())

def test_with_fixture(shared):
    show("fixture", shared, torch.rand(1).item())

def test_with_fixture_too(shared):
    show("fixture_too", shared)

def test_at_import():
    show("import", SHARED, LOADED)

def test_of_a_number():
    draws.seed(3)
    show("number", torch.rand(1).item())

@given(st.integers(0, 10**9))
def test_given(number):
    show("given", number)
"""
AHEAD = """
import torch

LOADED = torch.rand(1)  # before the cases are loaded, unless they are the only ones
"""
QUIET = """
def test_draws_nothing():
    with open("numbers.txt", "a") as file:
        print("nothing", file=file)
"""


def drawn(folder: Path, *arguments: str, seed: int = 0) -> dict[str, list[str]]:
    """What each case of `CASES` drew, by its name."""
    folder.mkdir(exist_ok=True)
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_cases.py").write_text(CASES)
    (folder / "test_ahead.py").write_text(AHEAD)
    (folder / "test_quiet.py").write_text(QUIET)
    (folder / "numbers.txt").unlink(missing_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n")
    given = {"PYTHONPATH": str(ROOT), "LITZ_TEST_SEED": str(seed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments], cwd=folder, env=os.environ | given,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = {}
    for line in (folder / "numbers.txt").read_text().splitlines():
        name, *numbers = line.split()
        found.setdefault(name, []).extend(numbers)
    return found


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("first")
    return folder, drawn(folder)


First = tuple[Path, dict[str, list[str]]]


def test_the_same_numbers_in_every_run_and_order(first: First, tmp_path: Path) -> None:
    names = ("with_fixture_too", "with_fixture", "at_import", "plain")
    backwards = [f"test_cases.py::test_{name}" for name in names]
    again = drawn(tmp_path, *backwards)
    assert again == {name: first[1][name] for name in again}
    assert len(again) == 4


def test_every_test_has_numbers_of_its_own(first: First) -> None:
    assert first[1]["plain"] != first[1]["other"]
    assert first[1]["fixture"][0] == first[1]["fixture_too"][0]
    assert first[1]["fixture"][1] not in (*first[1]["plain"], first[1]["fixture"][0])


def test_another_seed_changes_all_of_them(first: First, tmp_path: Path) -> None:
    other = drawn(tmp_path, seed=1)
    assert other.keys() == first[1].keys()
    assert not [name for name in other if set(other[name][:5]) & set(first[1][name][:5]) - {"0"}]


def test_tests_that_draw_are_listed_and_run_alone(first: First) -> None:
    folder, numbers = first
    listed = json.loads((folder / ".pytest_cache" / "v" / "litz" / "drawing").read_text())
    assert {name.partition("::")[0] for name in listed} == {"test_cases.py"}
    assert len(listed) == 7
    assert drawn(folder, "--drawing").keys() == numbers.keys() - {"nothing"}


def test_workers_side_by_side_draw_and_list_the_same(first: First, tmp_path: Path) -> None:
    beside = ("-n", "2", "--dist", "worksteal")
    assert drawn(tmp_path, *beside) == first[1]
    lists = [f / ".pytest_cache" / "v" / "litz" / "drawing" for f in (first[0], tmp_path)]
    assert lists[0].read_text() == lists[1].read_text()
    assert drawn(tmp_path, "--drawing", *beside).keys() == first[1].keys() - {"nothing"}


def test_a_subprocess_draws_as_its_test() -> None:
    code = "import torch; from tests import draws; draws.begin(); print(torch.rand(1).item())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == str(torch.rand(1).item())


@pytest.mark.parametrize(
    "draw",
    [lambda: torch.rand(1), lambda: np.random.rand(), random.random, draws.generator, draws.seed],
    ids=["torch", "numpy", "random", "generator", "seed"],
)
def test_drawing_is_noticed(draw: Any) -> None:
    before = draws.state()
    assert draws.state() == before
    draw()
    assert draws.state() != before
