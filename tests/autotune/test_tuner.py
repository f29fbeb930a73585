"""The tuner, with times that the tests make up: what is asked, taken, kept and reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import litz
from litz.autotune.cost import Machine, roofline
from litz.autotune.cpu_tuning import CpuTuning
from litz.autotune.gemm_regions import GemmSize
from litz.autotune.results import Ratio
from litz.autotune.trial import InProcessRunner, Variant
from litz.backend import litz as backend
from litz.ir.choices import GemmChoice, LoopChoice
from litz.report import Explanation, Report
from litz.target import host
from tests import draws

ROOT = Path(__file__).parent.parent.parent
WIDE = 1 << 16
Times = Callable[[GemmChoice | LoopChoice], float | str]


class Model(nn.Module):
    """Two equal layers and one that differs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 96)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, last = self.layers
        return last(second(first(x).relu()).relu()).softmax(-1)


def _choice(variant: Variant) -> GemmChoice | LoopChoice:
    found = [*variant.choices.gemms.values(), *variant.choices.kernels.values()]
    return found[0]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Times], list[Any]]:
    """Trials answer at once, as the given function says; what was asked is listed."""

    def install(times: Times) -> list[Any]:
        asked: list[Any] = []

        def tried(
            self: InProcessRunner, rule: Variant, other: Variant, seconds: float
        ) -> Ratio | str:
            asked.append(_choice(other))
            found = times(asked[-1])
            return found if isinstance(found, str) else Ratio(found, found, found, 1e-3)

        monkeypatch.setattr(InProcessRunner, "tried", tried)
        return asked

    return install


def _explained(folder: Path, model: nn.Module | None = None, **options: Any) -> Explanation:
    draws.seed(0)
    model = (model or Model()).eval()
    x = torch.randn(16, 64)
    flags = {"max_autotune_gemm": True, "cache_dir": str(folder), "on_error": "raise"}
    flags |= {"max_autotune_budget_seconds": 60.0}  # what is not all tried in time is not kept
    torch._dynamo.reset()
    with torch.no_grad(), litz.config.patch({**flags, **options}):
        notes = litz.explain(model, x)
        found = torch.compile(model, backend="litz")(x)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
    return notes


def _report(notes: Explanation) -> Report:
    (report,) = notes.graphs
    return report


def test_nothing_is_timed_unless_asked(tmp_path: Path, made_up: Any) -> None:
    asked = made_up(lambda choice: 0.5)
    notes = _explained(tmp_path, max_autotune_gemm=False)
    assert not asked and not _report(notes).tuning.findings


def test_equal_layers_ask_once_and_the_quickest_is_taken(tmp_path: Path, made_up: Any) -> None:
    best = GemmChoice(mr=4, nr_vectors=2)
    asked = made_up(lambda choice: 0.8 if choice == best else 0.9 if choice.mr else 1.2)
    report = _report(_explained(tmp_path))
    places = sorted(len(f.names) for f in report.tuning.findings)
    assert places == [1, 2]
    assert len(asked) == report.tuning.timed
    assert asked.count(best) == 4  # for each of two questions, and again to be sure
    taken = [s.choice.gemm for s in report.scheduled if s.choice.gemm is not None]
    assert {(b.mr, b.nr) for b in taken} == {(4, 2 * s) for s in (taken[0].nr // 2,)}
    assert f"-> 0.80 (0.80 to 0.80)      {best!r}" in str(report)


def test_what_is_not_surely_quicker_is_not_taken(tmp_path: Path, made_up: Any) -> None:
    made_up(lambda choice: 0.98)
    report = _report(_explained(tmp_path))
    assert all(f.choice == f.default for f in report.tuning.findings)
    assert not report.tuning.choices.gemms


def test_a_winner_must_win_twice(tmp_path: Path, made_up: Any) -> None:
    seen: set[Any] = set()

    def lucky_once(choice: GemmChoice) -> float:
        again = choice in seen
        seen.add(choice)
        return 1.1 if again else 0.7

    made_up(lucky_once)
    report = _report(_explained(tmp_path, Model().layers[0]))
    assert all(f.choice == GemmChoice() for f in report.tuning.findings)


def test_aten_can_win_and_can_be_excluded(tmp_path: Path, made_up: Any) -> None:
    made_up(lambda choice: 0.5 if choice.backend == "ATEN" else 1.5)
    report = _report(_explained(tmp_path))
    assert report.aten_ops["aten.addmm.default"] == 3
    report = _report(_explained(tmp_path, max_autotune_gemm_backends="LITZ"))
    assert not report.aten_ops


def test_an_epilogue_can_stay_apart(tmp_path: Path, made_up: Any) -> None:
    made_up(lambda choice: 0.5 if not choice.fused else 1.5)
    flags = {"prologue_fusion": False}  # or it would join the product that reads it
    fused = _report(_explained(tmp_path, max_autotune_gemm=False, **flags))
    apart = _report(_explained(tmp_path, **flags))
    assert len(apart.kernels) > len(fused.kernels)
    same = _report(_explained(tmp_path, benchmark_epilogue_fusion=False, **flags))
    assert len(same.kernels) == len(fused.kernels)


def test_whole_rows_can_join_a_product(tmp_path: Path, made_up: Any) -> None:
    """The rule leaves so few rows apart; the choice is kept, and taken again from the database."""
    made_up(lambda choice: 0.5 if choice.rows else 1.5)
    apart = _report(_explained(tmp_path, max_autotune_gemm=False))
    for kept in (False, True):
        report = _report(_explained(tmp_path))
        assert len(report.kernels) == len(apart.kernels) - 1
        chosen = [f for f in report.tuning.findings if f.choice == GemmChoice(rows=True)]
        assert [f.kept for f in chosen] == [kept]


def test_what_makes_an_operand_can_stay_apart(tmp_path: Path, made_up: Any) -> None:
    asked = made_up(lambda choice: 0.5 if choice.prologue is False else 1.5)
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 96))
    flags = {"cpp.threads": 2}
    joined = _report(_explained(tmp_path, model, max_autotune_gemm=False, **flags))
    apart = _report(_explained(tmp_path, model, **flags))
    assert len(apart.kernels) == len(joined.kernels) + 1
    assert GemmChoice(prologue=True) not in asked  # it is the rule's


def test_a_failed_trial_is_noted(tmp_path: Path, made_up: Any) -> None:
    made_up(lambda choice: "ended its process")
    report = _report(_explained(tmp_path))
    assert all(f.choice == f.default for f in report.tuning.findings)
    assert "ended its process" in str(report)


def test_all_ways_are_tried_if_asked(tmp_path: Path, made_up: Any) -> None:
    few = made_up(lambda choice: 1.5)
    _explained(tmp_path)
    all_ = made_up(lambda choice: 1.5)
    _explained(tmp_path, max_autotune_gemm_search_space="EXHAUSTIVE")
    assert len(all_) > 2 * len(few)


def test_the_descent_walks_on_from_the_best(tmp_path: Path, made_up: Any) -> None:
    """Times fall as blocks narrow: the short list has none of one row, the descent finds it."""

    def times(choice: GemmChoice) -> float:
        return 1.5 if choice.mr is None else 0.5 + 0.02 * choice.mr

    made_up(times)
    layer = Model().layers[0]
    plain = _report(_explained(tmp_path, layer))
    walked = _report(_explained(tmp_path, layer, coordinate_descent_tuning=True))
    blocks = [r.tuning.findings[0].choice.facts()["mr"] for r in (plain, walked)]
    assert blocks[1] == 1 < blocks[0]


def test_other_kernels_are_tuned(tmp_path: Path, made_up: Any) -> None:
    asked = made_up(lambda choice: 0.5 if getattr(choice, "unroll", 0) == 2 else 1.5)
    flags = {"max_autotune_gemm": False, "max_autotune_pointwise": True}
    report = _report(_explained(tmp_path, **flags))
    assert asked and all(isinstance(choice, LoopChoice) for choice in asked)
    assert [s.choice.unroll for s in report.scheduled if s.choice.unroll > 1] == [2]
    flags = {"max_autotune_gemm": False, "max_autotune": True}
    both = _report(_explained(tmp_path / "both", **flags))
    kinds = {type(f.choice) for f in both.tuning.findings}
    assert kinds == {GemmChoice, LoopChoice}


def test_no_timing_decides_in_deterministic_mode(tmp_path: Path, made_up: Any) -> None:
    asked = made_up(lambda choice: 0.5)
    report = _report(_explained(tmp_path, deterministic=True))
    assert not asked and not report.tuning.choices.gemms
    assert any(d.action == "unmet" and "deterministic" in d.reason for d in report.decisions)
    assert "not done  1 x no timing may decide" in str(report)


@torch.no_grad()
@pytest.mark.parametrize("flag", ["max_autotune_gemm", "max_autotune_pointwise"])
def test_symbolic_sizes_are_not_tuned(flag: str, made_up: Any) -> None:
    asked, notes = made_up(lambda choice: 0.5), Explanation()
    torch._dynamo.reset()
    model = Model().eval()
    run = torch.compile(
        model,
        backend=partial(backend, explanation=notes, options={flag: True, "on_error": "raise"}),
        dynamic=True,
    )
    for rows in (16, 21):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    assert not asked and not notes.by_size
    decisions = _report(notes).decisions
    assert any(d.action == "unmet" and "sizes are symbolic" in d.reason for d in decisions)


def test_nothing_is_tried_where_the_rule_is_at_the_peak(
    tmp_path: Path, made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuTuning, "lower_bound", lambda *_: 0.95e-3)
    asked = made_up(lambda choice: 0.5 if choice.backend == "LITZ" else 2.0)
    report = _report(_explained(tmp_path))
    assert len(asked) == len(report.tuning.findings) == 2
    _explained(tmp_path, max_autotune_gemm_search_space="EXHAUSTIVE")
    assert len(asked) > 20


def test_the_peaks_of_narrow_types_and_caches_are_not_known() -> None:
    machine, target = Machine(1e11, 1e10), replace(host(), l3_bytes=2 << 20)
    gemm = GemmSize(1, 4, 512, 512, "float32", 4, False, True)
    large = replace(gemm, depth=2048)
    assert roofline(replace(gemm, bytes=2), target, machine) == 0.0
    assert roofline(gemm, target, machine) == gemm.flops / 1e11
    assert roofline(large, target, machine) > 4 * large.flops / 1e11


def test_what_is_too_small_to_matter_is_not_asked(tmp_path: Path, made_up: Any) -> None:
    model = nn.Sequential(nn.Linear(64, WIDE), nn.ReLU(), nn.Linear(WIDE, 64), nn.Linear(64, 8))
    asked = made_up(lambda _: 2.0)
    report = _report(_explained(tmp_path, model))
    assert asked and {f.what for f in report.tuning.findings} == {
        f"gemm, 16 x 64 x {WIDE}, float32, with epilogue", f"gemm, 16 x {WIDE} x 64, float32"
    }  # fmt: skip
    assert any("less than 1%" in d.reason for d in report.tuning.decisions)


def test_a_budget_that_is_spent_leaves_the_rules(tmp_path: Path, made_up: Any) -> None:
    asked = made_up(lambda choice: 0.5)
    report = _report(_explained(tmp_path, max_autotune_budget_seconds=0))
    assert not asked and any("budget" in d.reason for d in report.decisions)
    again = _report(_explained(tmp_path))
    assert asked and again.tuning.choices.gemms  # nothing was kept of what was not tried


def test_the_table_is_printed_if_asked(
    tmp_path: Path, made_up: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up(lambda choice: 1.5)
    _explained(tmp_path / "one")
    assert "litz autotune: gemm, 16 x 64 x 64, float32" in capsys.readouterr().err
    _explained(tmp_path / "two", max_autotune_report_choices_stats=False)
    assert "litz autotune" not in capsys.readouterr().err


def test_entries_that_make_no_sense_are_asked_for_anew(tmp_path: Path, made_up: Any) -> None:
    asked = made_up(lambda choice: 0.5)
    first = _report(_explained(tmp_path, Model().layers[0]))
    for path in (tmp_path / "autotune").iterdir():
        path.write_text(path.read_text().replace('"mr"', '"rm"'))
    asked.clear()
    second = _report(_explained(tmp_path, Model().layers[0]))
    assert asked and second.tuning.choices == first.tuning.choices
    assert any("damaged" in d.reason for d in second.decisions)


def test_nothing_is_kept_without_the_cache(tmp_path: Path, made_up: Any) -> None:
    made_up(lambda choice: 1.5)
    _explained(tmp_path, autotune_local_cache=False)
    assert not list(tmp_path.iterdir())


SECOND = """
import torch, litz
from tests import draws
from litz.autotune.trial import InProcessRunner
from litz.autotune.cpu_tuning import CpuTuning
def tried(*args):
    raise AssertionError("timed again")
InProcessRunner.tried = tried
torch.set_num_threads({threads})
draws.seed(0)
layer, x = torch.nn.Linear(64, 96).eval(), torch.randn(16, 64)
options = {{"max_autotune_gemm": True, "cache_dir": {folder!r}, "on_error": "raise"}}
with torch.no_grad(), litz.config.patch(options):
    (report,) = litz.explain(layer, x).graphs
print(report.tuning.timed, [f.kept for f in report.tuning.findings], report.tuning.choices.gemms)
"""


def test_a_second_process_times_nothing(tmp_path: Path) -> None:
    """With real trials; whatever they found, the second process finds it in the database."""
    draws.seed(0)
    report = _report(_explained(tmp_path, nn.Linear(64, 96)))
    assert report.tuning.timed > 0
    script = SECOND.format(folder=str(tmp_path), threads=torch.get_num_threads())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True,
                           text=True, timeout=300)  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == f"0 [True] {dict(report.tuning.choices.gemms)}"


def test_both_modes_tune() -> None:
    for mode in ("max-autotune", "max-autotune-no-cudagraphs"):
        assert litz.list_mode_options(mode)["max_autotune"] is True
