"""The demo, as `make demo` runs it but small, and the timing that it and the benchmarks use."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from litz import demo
from litz.bench.timing import FEWEST_ROUNDS, interleave
from tests import draws

ROOT = Path(__file__).parent.parent


def test_quick_demo_prints_the_table_and_what_to_try_next() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "litz.demo", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    cells = {line.split()[1]: line.split("│")[2:-1] for line in lines if line.startswith("│")}
    assert list(cells) == ["eager", "Litz"]
    ms, first_call, kernels, aten_ops, difference = (cell.strip() for cell in cells["Litz"])
    assert float(ms) > 0 and float(first_call) > 0
    # All is generated, products and attention among it.
    assert int(kernels) > 0 and int(aten_ops) == 0 < int(cells["eager"][3])
    assert float(difference) < demo.TOLERANCE
    assert "LITZ_DEBUG=3 make demo" in done.stdout and "litz options" in done.stdout
    assert "compiling with Litz" in done.stderr


def test_a_wrong_result_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TOLERANCE", -1.0)
    assert demo.main(["--quick"]) == 1


def test_without_inductor_the_table_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no headers\nand more")

    monkeypatch.setattr(demo, "inductor_row", fails)
    with torch.no_grad():
        assert demo.run(demo.QUICK, 0.01, left_out="")
    assert "TorchInductor is left out: no headers\n" in capsys.readouterr().out


def test_the_model_is_causal() -> None:
    draws.seed(0)
    model = demo.LanguageModel(demo.QUICK).eval()
    tokens = torch.randint(0, demo.QUICK.vocabulary, (1, demo.QUICK.tokens))
    changed = tokens.clone()
    changed[0, -1] = (tokens[0, -1] + 1) % demo.QUICK.vocabulary
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


# Timing


def test_candidates_take_turns_and_each_begins_a_round() -> None:
    calls: list[str] = []

    def candidate(name: str) -> object:
        calls.append(name)
        return time.sleep(0.001)

    found = interleave({"a": lambda: candidate("a"), "b": lambda: candidate("b")}, 0, warm_up=2)
    assert calls[:4] == ["a", "a", "b", "b"]
    assert calls[4:] == (["a", "b", "b", "a"] * FEWEST_ROUNDS)[: 2 * FEWEST_ROUNDS]
    assert [len(timing.samples) for timing in found.values()] == [FEWEST_ROUNDS] * 2


@pytest.mark.alone
def test_the_median_is_of_seconds_a_call() -> None:
    found = interleave({"slow": lambda: time.sleep(0.004), "fast": lambda: None}, 0.2)
    assert 4 <= found["slow"].median_ms < 40
    assert 0 < found["fast"].median_ms < 0.1  # repeated within a sample, then divided


@pytest.mark.alone
def test_rounds_follow_the_budget() -> None:
    start = time.perf_counter()
    found = interleave({"nap": lambda: time.sleep(0.01)}, 0.3)
    assert 0.3 <= time.perf_counter() - start < 3
    assert FEWEST_ROUNDS < len(found["nap"].samples) <= 30
