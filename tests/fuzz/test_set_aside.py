"""Programs about which a hunt says nothing: counted, and too many of them are no hunt."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from litz.fuzz import Tally, check, check_calls, data, generate, hunt
from litz.fuzz.compare import REFERENCE, RUNS, TORCH, meaning
from litz.fuzz.hunt import DEADLY, Result, _crash
from litz.fuzz.isolate import Died
from litz.fuzz.predicted_layouts import _PredictedLayouts, is_shape_mispredicted
from litz.fuzz.program import CallMode
from litz.fuzz.reference import Watched, run_wide
from litz.fuzz.runs import Compiled
from tests.fuzz.hunting import command

# Nothing can be traced, as in a process that was forked from one with a GPU.
UNTRACED = """
import sys
import litz.fuzz.hunt, litz.fuzz.runs, litz.fuzz.dynamo
def fails(*args, **named):
    raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
litz.fuzz.runs.aot_function = litz.fuzz.dynamo.torch.compile = lambda *a, **k: fails
hunt = sys.modules["litz.fuzz.hunt"]
hunt._warm, hunt.FEW = lambda: None, 0
"""
# Every second program ends its process while it is drawn.
DIVIDES = """
import os, signal, sys
import litz.fuzz.hunt
hunt = sys.modules["litz.fuzz.hunt"]
drawn = hunt.generate
def generate(seed):
    if seed % 2:
        os.kill(os.getpid(), signal.SIGFPE)
    return drawn(seed)
hunt.generate = generate
"""


def test_a_hunt_that_tried_nothing_fails(tmp_path: Path) -> None:
    """Litz fails, and torch alike: each program by itself is torch's."""
    asked = ("--seed", "1", "--programs", "4", "--store", str(tmp_path))
    result = command(*asked, planted=UNTRACED)
    assert result.returncode == 1, result.stderr
    assert "4 excluded (4 as torch's own capture)\n" in result.stdout
    assert "this hunt says nothing" in result.stdout
    assert not list(tmp_path.iterdir())


def test_a_program_that_kills_eager_is_passed_over(tmp_path: Path) -> None:
    asked = ("--seed", "1", "--programs", "3", "--store", str(tmp_path))
    result = command(*asked, planted=DIVIDES)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("3 programs, ")
    assert result.stdout.endswith("0 failed, 2 excluded (2 that kill eager)\n")


def test_few_programs_may_be_set_aside() -> None:
    tally = Tally()
    for k in range(100):
        tally.add(Result(20, excluded=DEADLY if k % 4 == 0 else ""), 1.0)
    assert not tally.is_void
    for _ in range(40):
        tally.add(Result(20, excluded=TORCH), 1.0)
    assert tally.is_void


def test_a_process_that_has_used_a_gpu_cannot_hunt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="has used a GPU"):
        hunt(0, 1.0, 1, lambda *_: None)


def test_a_program_that_torch_never_ends_to_capture_is_set_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = sys.modules["litz.fuzz.hunt"]
    monkeypatch.setattr(module, "LONGEST", 0.2)
    monkeypatch.setattr(module, "_captures", lambda _: time.sleep(30))
    program = generate(1)
    found = _crash(program, 1, Died(None))
    assert (found.find, found.excluded, found.steps) == (None, TORCH, len(program.steps))


def _fails_in_float64(x: torch.Tensor) -> list[torch.Tensor]:
    if x.dtype is torch.float64:
        raise RuntimeError("not in float64")
    return [x + 1]


def test_what_fails_in_float64_alone_is_set_aside() -> None:
    x = data(1, (3,), torch.float32)
    once = check(_fails_in_float64, [x])
    often = check_calls(_fails_in_float64, [[x]], call_mode=CallMode(dynamo=True))
    assert once is not None and often is not None
    assert (once.who, often.who) == (REFERENCE, REFERENCE)


def test_statistics_that_a_norm_keeps_are_rounded() -> None:
    """They are operands: what is judged is how the call leaves them."""
    x, mean, var = data(1, (5, 3), torch.float64), torch.zeros(3), torch.ones(3)

    def norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.batch_norm(x, mean, var, training=True)]

    given, seen = [x, mean.double(), var.double()], [torch.float64] * 4
    exact = run_wide(norm, given, seen, 0)
    noisy = run_wide(norm, given, seen, 1, seed=3)
    for kept, moved in zip(exact[2:], noisy[2:], strict=True):
        assert not torch.equal(kept, moved)
        torch.testing.assert_close(kept, moved)
    assert torch.equal(exact[1], noisy[1])  # what is read stays


def _pads_what_lies_ambiguously(x: torch.Tensor) -> list[torch.Tensor]:
    """Eager's sum is row-major, torch predicts the strides of x; the pad asks for them. The roll
    is foretold as eager's is here, though for another reason."""
    return [torch.nn.functional.pad((x + x).permute(0, 2, 3, 1), (-1, 1, 0, 1)).roll(1, -3)]


AMBIGUOUS = data(1, (2, 1, 1, 2), torch.float32).transpose(-1, -2)


def test_strides_are_torchs_if_eager_gives_them_once_torch_is_right() -> None:
    once = check(_pads_what_lies_ambiguously, [AMBIGUOUS])
    call_mode = CallMode(dynamo=True, automatic=True)
    often = check_calls(_pads_what_lies_ambiguously, [[AMBIGUOUS]], call_mode=call_mode)
    assert once is not None and often is not None
    assert (once.who, once.kind) == (often.who, often.kind) == (TORCH, "strides")


def test_other_strides_are_litzs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though torch predicts this program's wrongly."""
    runs = Compiled.__call__

    def otherwise(self: Compiled, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        (found,) = runs(self, inputs)
        return [found.transpose(0, -2).contiguous().transpose(0, -2)]

    monkeypatch.setattr(Compiled, "__call__", otherwise)
    found = check(_pads_what_lies_ambiguously, [AMBIGUOUS])
    assert found is not None and (found.who, found.kind) == ("litz", "strides")


def test_equal_numbers_less_their_mean_may_be_nothing_or_not() -> None:
    def is_something(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.instance_norm(x).bool()]

    x = torch.full((1, 1, 3), 0.7)
    noisy = [run_wide(is_something, [x], [x.dtype] * 4, 1, seed)[0] for seed in range(8)]
    assert any(run.any() for run in noisy) and not all(run.all() for run in noisy)


def test_what_follows_from_a_wrong_shape_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.11 foretells a norm over a dimension of one with that dimension left."""
    x = data(1, (3,), torch.float32)

    def plain(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.exp().sum(0), x[1:] + 1]

    assert not is_shape_mispredicted(plain, [x])
    foretell = _PredictedLayouts._predict

    def another(self: _PredictedLayouts, func: Any, args: Any, kwargs: Any) -> Any:
        found = foretell(self, func, args, kwargs)
        return found[None] if func is torch.ops.aten.exp.default else found

    monkeypatch.setattr(_PredictedLayouts, "_predict", another)
    assert is_shape_mispredicted(plain, [x])


def test_a_group_norm_rounds_its_mean() -> None:
    """Scaled, and with the bias: far from zero that is larger than any result."""

    def norm(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.group_norm(x, 1, w)]

    x = 100 + data(1, (2, 1, 8), torch.float32)
    given, seen = [x, torch.ones(1)], [torch.float32] * 3
    exact, noisy = (run_wide(norm, given, seen, noise, seed=3)[0] for noise in (0, 1))
    assert 1e-6 < float((exact - noisy).abs().max()) < 1e-4


def test_a_program_that_no_noise_runs_through_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are not judged, which has to be seen."""
    monkeypatch.setattr(sys.modules["litz.fuzz.compare"], "_runs", lambda *_: [])
    x = data(1, (3,), torch.float32)
    once = check(lambda x: [x + 1], [x])
    often = check_calls(lambda x: [x + 1], [[x]], call_mode=CallMode(dynamo=True))
    assert once is not None and once.who == REFERENCE and once == often


def test_noise_moves_calls_with_operands_of_every_type() -> None:
    """One that is no float broke every run: nothing was judged, and nobody saw it."""

    def mixed(x: torch.Tensor, mask: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:
        kept = torch.where(mask, x, 0) @ x.mT
        return [kept, torch.index_add(x, 0, at, x, alpha=2), x.masked_fill(mask, 1).sum(0)]

    given = [data(1, (3, 4), torch.bfloat16), torch.ones(3, 4).bool(), torch.tensor([0, 2, 1])]
    assert len(meaning(mixed, given).noisy) == RUNS


def test_a_sum_of_halves_that_is_off_by_a_tenth_is_a_find(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many numbers it adds up: they are added in float32."""
    runs = Compiled.__call__

    def tenth_more(self: Compiled, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [found * 1.1 for found in runs(self, inputs)]

    x = data(1, (4096,), torch.bfloat16).abs()
    for function in (torch.sum, torch.mean, lambda x: x @ x):
        assert check(lambda x, f=function: [f(x)], [x]) is None
        with monkeypatch.context() as planted:
            planted.setattr(Compiled, "__call__", tenth_more)
            found = check(lambda x, f=function: [f(x)], [x], judged=("litz",))
        assert found is not None and (found.who, found.kind) == ("litz", "value")


def test_statistics_that_a_norm_keeps_are_sums() -> None:
    def norm(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> list[torch.Tensor]:
        torch.nn.functional.batch_norm(x, mean, var, training=True)
        return []

    given = [data(k, shape, torch.float64) for k, shape in enumerate([(64, 1, 64), (1,), (1,)])]
    exact, noisy = (run_wide(norm, given, [torch.float64] * 4, noise) for noise in (0, 1))
    eps = torch.finfo(torch.float64).eps
    for was, moved in zip(exact[1:], noisy[1:], strict=True):
        assert eps < float(abs(was / moved - 1)) < 64 * eps


def test_a_gradient_shares_the_rounding_of_a_mean() -> None:
    """Of numbers far from zero, which a variance takes away from all of them."""

    def variance(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.enable_grad():
            moved = x.detach().requires_grad_()
            moved.var().backward()
        return [moved.grad.sum()]  # type: ignore[union-attr]

    x = 1000 + data(1, (4096,), torch.float32)
    seen: list[torch.dtype] = []
    with Watched(seen):
        variance(x)
    exact, noisy = (run_wide(variance, [x], seen, noise)[0] for noise in (0, 1))
    assert float(exact.abs()) < 1e-12 and 1e-6 < float(noisy.abs()) < 1e-3


def test_attention_of_equal_rows_rounds_the_mean_that_its_backward_takes_away() -> None:
    """Seed 32000462: each gradient of a score is nothing but the rounding of that mean."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.enable_grad():
            moved = x.detach().requires_grad_()
            rows = moved.expand(33, 5)
            found = F.scaled_dot_product_attention(rows, rows, rows.detach(), is_causal=True)
            (found * weights.to(x.dtype)).sum().backward()
        return [moved.grad]  # type: ignore[list-item]

    x, weights = 10 * data(1, (1, 5), torch.float32), data(2, (33, 5), torch.float32)
    seen: list[torch.dtype] = []
    with Watched(seen):
        (eager,) = program(x)
    runs = [run_wide(program, [x], seen, noise=1, seed=seed)[0] for seed in range(8)]
    largest = float(torch.stack(runs).abs().max())
    assert 0.1 * largest < float(eager.abs().max()) < 10 * largest < 1e-2


def test_a_deviation_whose_square_float32_has_not_may_be_nothing() -> None:
    """Seed 32001206."""

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.std(-1)]

    x = 1e-28 * data(1, (8, 7), torch.float32)
    assert check(program, [x]) is None
    assert check(program, [1e20 * x]) is None
    judged = meaning(program, [1e20 * x])
    assert all(float(run[0].abs().min()) > 0 for run in judged.noisy)


def test_a_program_that_torchs_layouts_refuse_is_torchs() -> None:
    """Seed 32001446: torch predicts a batch norm that no view of one dimension fits."""

    def program(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        y = F.batch_norm(x, w, w.abs() + 0.5, w, w)
        y.view(-1)[::2] = 1
        return [y]

    x, w = data(75, (33, 257), torch.bfloat16).t(), data(27, (33,), torch.bfloat16)
    found = check_calls(program, [[x, w]], {})
    assert found is None or found.who == TORCH
