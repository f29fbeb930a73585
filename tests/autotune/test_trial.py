"""Trials: the interval, results that differ, and processes that crash or hang."""

from __future__ import annotations

import os
import resource

import pytest
import torch

from litz.autotune.results import Ratio
from litz.autotune.trial import InProcessRunner, Variant, inputs_of, interval
from litz.autotune.worker import TuningProcess, variant_json, variant_of
from litz.config import Config, snapshot
from litz.ir.choices import NO_CHOICES, Choices, GemmChoice, LoopChoice
from litz.ir.parse import parse_graph
from litz.target import host
from litz.targets import toolchain_of
from tests import draws

ADDED = """graph:
  input x: f32[4096]
  buffer y: f32[4096]
  kernel k0_add:
    outer o0 < 4096
    phase:
      y[o0] = {value}
  output y
"""


def _variant(value: str = "x[o0] + f32(1.0)") -> Variant:
    return Variant(parse_graph(ADDED.format(value=value)), NO_CHOICES)


def test_the_interval_holds_the_median() -> None:
    """Of draws from a known distribution, and narrows as they grow in number."""
    draw = draws.python_generator(0)
    missed = 0
    for _ in range(300):
        low, high = interval([draw.gauss(1.0, 0.1) for _ in range(25)])
        missed += not low <= 1.0 <= high
    assert missed <= 9
    few, many = ([draw.gauss(1.0, 0.1) for _ in range(n)] for n in (9, 100))
    assert interval(few)[1] - interval(few)[0] > interval(many)[1] - interval(many)[0]


def test_the_users_generator_is_left_alone() -> None:
    draws.seed(1)
    before = torch.get_rng_state()
    first, again = (inputs_of(_variant().program) for _ in range(2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(before, torch.get_rng_state())


def _here(config: Config, threads: int | None = None) -> InProcessRunner:
    target = host(threads)
    return InProcessRunner(target, toolchain_of(target), config)


@pytest.mark.alone
def test_what_computes_more_takes_longer() -> None:
    slow = "x[o0] + sin(sin(sin(sin(sin(sin(x[o0]))))))*f32(0.0) + f32(1.0)"
    plain = snapshot({"debug_poison_memory": False})  # filling memory takes as long
    ratio = _here(plain, 1).compared(_variant(), _variant(slow), 0.2)
    assert ratio.median > 1.2 and ratio.low <= ratio.median <= ratio.high


def test_other_numbers_are_refused() -> None:
    found = _here(snapshot({})).tried(_variant(), _variant("x[o0] + f32(1.5)"), 0.1)
    assert found == "other numbers than by rule"


def test_what_cannot_be_compiled_costs_a_trial_alone() -> None:
    broken = Choices(kernels={"k0_add": LoopChoice(lanes=3, chunk=7)})
    found = _here(snapshot({})).tried(_variant(), Variant(_variant().program, broken), 0.1)
    assert isinstance(found, Ratio | str)  # LLVM may write it after all; nothing is raised


def test_an_error_without_a_text_costs_a_trial_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("litz.autotune.trial.callable_of", failed)
    found = _here(snapshot({})).tried(_variant(), _variant(), 0.1)
    assert found == "failed: MemoryError: "


def test_a_process_that_cannot_be_started_costs_a_trial_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failed(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("litz.autotune.worker.subprocess.Popen", failed)
    found = TuningProcess(snapshot({})).tried(_variant(), _variant(), 0.1)
    assert isinstance(found, str) and "Resource temporarily unavailable" in found


def test_descriptors_beyond_a_thousand_are_no_matter() -> None:
    """`select` takes none of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened: list[int] = []
    apart = TuningProcess(snapshot({"max_autotune_subproc_result_timeout_seconds": 60.0}))
    try:
        while not opened or opened[-1] < 1100:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        found = apart.tried(_variant(), _variant("f32(1.0) + x[o0]"), 0.1)
        assert isinstance(found, Ratio)
    finally:
        apart.stop()
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_variant_travels_as_json() -> None:
    kernels = {"k0_add": LoopChoice(chunk=64)}
    variant = Variant(_variant().program, Choices({"": GemmChoice(mr=8)}, kernels))
    assert variant_of(variant_json(variant)) == variant


def test_crashes_and_hangs_cost_one_trial_each(capfd: pytest.CaptureFixture[str]) -> None:
    """Out of bounds by terabytes; a sum that takes a year; then all is well again."""
    crash = _variant("x[o0 + 1000000000000]")
    hang = parse_graph(
        ADDED.format(value="x[o0]").replace("phase:", "phase reduce j0 < 1000000000000:")
        .replace("y[o0] = x[o0]", "y[o0] = reduce.sum(sin(x[j0 % 4096]), j0)")
    )  # fmt: skip
    apart = TuningProcess(snapshot({"max_autotune_subproc_result_timeout_seconds": 30.0}))
    try:
        assert apart.tried(_variant(), crash, 0.1) == "ended its process"
        apart.timeout = 60.0
        good = apart.tried(_variant(), _variant("f32(1.0) + x[o0]"), 0.1)
        assert isinstance(good, Ratio)
        process = apart.process
        apart.timeout = 1.0
        assert apart.tried(_variant(), Variant(hang, NO_CHOICES), 0.1) == "took more than 1 s"
        assert process is not None and process.poll() is not None and apart.process is None
    finally:
        apart.stop()
