"""Fresh processes: turns, failures and time limits planted; one real worker of each kind."""

from __future__ import annotations

import itertools
import os

import pytest

from litz.bench import fresh
from litz.bench.case import Case, Program, Settings
from litz.bench.fresh import CACHES, Failed, in_fresh_process, measure_compile, measure_memory
from litz.bench.results import NOT_ASKED
from litz.bench.suites.scaling import per_step

CASE = Case("planted", "c", "v", lambda: Program(abs), measure_compile, threads=2)
SETTINGS = Settings(against=("inductor", "eager"), rounds=2, quick=True)
Asked = list[tuple[list[str], dict[str, str]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What is asked of workers; the k-th answers k, and Inductor's second has not compiled."""
    seen: Asked = []
    count = itertools.count(1)

    def answer(words: list[str], environment: dict[str, str], timeout: float) -> fresh.Found:
        seen.append((words, environment))
        k = float(next(count))
        if words[0] == "memory":
            return {"memory": k * 1e6, "arena": 2e6, "unplanned": 3e6, "held": 4e6}
        second = len(seen) > 1 and seen[-2][1] == environment
        return {"graph": None if words[4] == "inductor" and second else k / 10, "first call": k}

    monkeypatch.setattr(fresh, "in_fresh_process", answer)
    return seen


def test_compilers_take_turns_with_empty_caches(asked: Asked) -> None:
    rows = {row.metric: row for row in measure_compile(CASE, SETTINGS, lambda _: None)}
    # Eager compiles nothing and is not asked; the second round begins with the other.
    assert [words[4] for words, _ in asked] == ["litz"] * 2 + ["inductor"] * 4 + ["litz"] * 2
    assert asked[0][0] == ["compile", "planted", "c", "v", "litz", "2", "quick"]
    folders = [[environment[name] for name in CACHES] for _, environment in asked]
    assert folders[0] == folders[1] != folders[2] == folders[3] != folders[4]
    assert not any(os.path.exists(folder) for folder in folders[0])
    assert rows["first call, cold"].samples == {"litz": (1.0, 7.0), "inductor": (3.0, 5.0)}
    assert rows["first call, second"].samples == {"litz": (2.0, 8.0), "inductor": (4.0, 6.0)}
    assert rows["graph, cold"].samples["inductor"] == (0.3, 0.5)
    assert rows["graph, second"].missing == {"inductor": NOT_ASKED}


def test_scaling_is_cold_and_by_op(asked: Asked) -> None:
    rows = per_step(CASE, SETTINGS, lambda _: None, steps=100)
    assert [row.metric for row in rows] == ["graph, cold", "first call, cold"]
    assert rows[1].samples == {"litz": (1.0, 4.0), "inductor": (2.0, 3.0)}
    assert rows[1].facts == pytest.approx({"ms an op": 25})


def test_memory_comes_with_the_plan(asked: Asked) -> None:
    [row] = measure_memory(CASE, SETTINGS, lambda _: None)
    assert [words[4] for words, _ in asked] == [
        "litz", "inductor", "eager", "inductor", "eager", "litz",
    ]  # fmt: skip
    assert row.samples == {"litz": (1e6, 6e6), "inductor": (2e6, 4e6), "eager": (3e6, 5e6)}
    assert row.facts == pytest.approx({"planned MB": 2, "without reuse MB": 3, "packed MB": 4})


def test_who_fails_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def answer(words: list[str], *_: object) -> fresh.Found:
        seen.append(words[4])
        if words[4] == "inductor":
            raise Failed("took more than 600 s")
        return {"graph": 1.0, "first call": 2.0}

    monkeypatch.setattr(fresh, "in_fresh_process", answer)
    for row in measure_compile(CASE, SETTINGS, lambda _: None):
        assert set(row.samples) == {"litz"}
        assert row.missing == {"inductor": "took more than 600 s"}
    assert seen.count("inductor") == 1 and seen.count("litz") == 4


def test_a_process_that_takes_too_long_is_ended() -> None:
    with pytest.raises(Failed, match=r"took more than 0\.05 s"):
        in_fresh_process(["compile"], dict(os.environ), 0.05)


@pytest.mark.parametrize("task", ["compile", "memory"])
def test_a_real_worker(task: str) -> None:
    words = [task, "calls", "20 kernels apart", "", "litz", "1", "quick"]
    found = in_fresh_process(words, dict(os.environ), 120)
    if task == "compile":
        assert found["graph"] is not None and found["first call"] is not None
        assert 0 < found["graph"] < found["first call"]
    else:
        # Products of 8 x 8 floats: the arena holds a few of 256 bytes, reused.
        assert found["arena"] is not None and found["unplanned"] is not None
        assert 256 <= found["arena"] < found["unplanned"] == 39 * 256
        assert found["memory"] is not None and 0 <= found["memory"] < 50e6
