"""The fuzzer itself: its programs, its comparison, its shrinker, its hunt."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from litz.codegen.llvm.ops import OP_EMITTERS
from litz.codegen.llvm.values import INLINE_MATH
from litz.fuzz import assert_same, check, check_calls, data, generate, shrink
from litz.fuzz.compare import Failure
from litz.fuzz.dynamo import ThroughDynamo, with_gradients
from litz.fuzz.hunt import Shard, judge, still_fails
from litz.fuzz.isolate import Died, isolated
from litz.fuzz.predicted_layouts import Restride, _PredictedLayouts, as_predicted
from litz.fuzz.program import POSITIVE, CallMode, Input, Program, Step, namespace
from litz.fuzz.reference import Watched, run_wide
from litz.fuzz.runs import captured
from litz.report import Explanation
from tests.fuzz.hunting import USES_SINE, WRONG_SINE, command

BOUNDS = {"debug_index_asserts": True}

# -- programs --------------------------------------------------------------------------------


def test_a_seed_is_a_program_and_another_seed_another() -> None:
    assert generate(7) == generate(7)
    assert generate(7).text() != generate(8).text()


@pytest.mark.parametrize("seed", range(3))
def test_programs_are_long_and_run_in_eager(seed: int) -> None:
    program = generate(seed)
    assert 20 <= len(program.steps) <= 60
    results = program.function()(*program.fresh_inputs())
    assert len(results) == len(program.outputs)
    assert all(isinstance(r, torch.Tensor) for r in results)


def test_many_programs_draw_on_all_that_is_promised() -> None:
    text = "\n".join(generate(seed).script() for seed in range(60))
    for sign in ("transpose", "_(", "gather", "torch.cat", "F.pad", ".sum(", ".to(", "expand(",
                 "[..., 1::2]", "int8", "bfloat16", "softmax", "scatter", "as_strided", "unfold",
                 "memory_format=torch.channels_last", "flip", "movedim", ".mT.reshape",
                 "torch.stack", ".split(", ".chunk(", "F.linear", "F.layer_norm", "F.group_norm",
                 "F.batch_norm", "training=True", "F.conv1d", "F.conv2d", "F.embedding",
                 "parameters=("):  # fmt: skip
        assert sign in text, sign


def test_layers_have_parameters_of_one_shape_that_no_step_changes() -> None:
    programs = [p for p in map(generate, range(60)) if p.parameters]
    assert len(programs) > 5
    for program in programs:
        held = [program.inputs[k] for k in program.parameters]
        assert all(len(set(item.shapes)) == 1 for item in held)
        given = program.fresh_inputs()
        before = [given[k].clone() for k in program.parameters]
        program.function()(*given)
        assert all(map(torch.equal, before, (given[k] for k in program.parameters)))


def test_programs_for_a_gpu_make_their_tensors_there() -> None:
    steps = (
        Step("v0", "{0} + torch.arange({0}.numel()).view_as({0})", ("x0",)),
        Step("v1", "{0}[torch.tensor([0, (1)])] * torch.eye(3)", ("v0",)),
    )
    program = Program((Input("x0", (3, 3), "float32"),), steps, ("v1",), device="cuda")
    text = program.text()
    assert "torch.arange(x0.numel(), device=x0.device).view_as(x0)" in text
    assert "v0[torch.tensor([0, (1)], device=x0.device)] * torch.eye(3, device=x0.device)" in text
    assert "device" not in replace(program, device="cpu").text()


@pytest.mark.parametrize("scatter", ["scatter", "scatter_"])
def test_programs_for_a_gpu_scatter_no_two_points_to_one_place(scatter: str) -> None:
    def text(source: str, device: str) -> str:
        step = Step("v0", f"{{0}}.{scatter}(0, (x2.long() % 4), {source})", ("x0", "x1"))
        inputs = tuple(Input(name, (4, 2), "float32") for name in ("x0", "x1", "x2"))
        return Program(inputs, (step,), ("v0",), device=device).text()

    assert f"x0.{scatter}(0, (x2.long() % 4), x1)" in text("{1}", "cpu")
    assert "(x2.long() % 4).argsort(dim=0, stable=True), x1)" in text("{1}", "cuda")
    assert "argsort" not in text("3", "cuda")  # the last of equal numbers is any of them


def test_results_that_torch_foretells_as_one_element_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They cannot be written: every element would be stored at the same place."""
    x = torch.arange(6.0)
    foretold = torch.empty_strided((2, 3), (0, 1))
    monkeypatch.setattr(_PredictedLayouts, "_predict", lambda *_: foretold)
    found = as_predicted(lambda x: [x.view(2, 3) * 2], [x], Restride.ALL)
    assert torch.equal(found[0], x.view(2, 3) * 2)


def test_pieces_of_one_tensor_are_several_values() -> None:
    drawn = [Counter((s.drawn, s.operands) for s in generate(k).steps) for k in range(20)]
    assert max(n for found in drawn for (text, _), n in found.items() if "{q}" in text) > 1


def test_a_parameter_of_positive_numbers_is_one() -> None:
    item = Input("x0", (40,), "float32", layout=POSITIVE)
    assert (eval(item.text, namespace()) >= 0.5).all()


def test_inputs_lie_in_memory_as_their_layout_says() -> None:
    made = {
        layout: eval(Input("x", (4, 6), "float32", layout=layout).text, namespace())
        for layout in ("contiguous", "transposed", "strided", "offset", "expanded")
    }
    assert all(t.shape == (4, 6) for t in made.values())
    assert {k: t.stride() for k, t in made.items()} == {
        "contiguous": (6, 1), "transposed": (1, 4), "strided": (13, 2), "offset": (6, 1),
        "expanded": (0, 1),
    }  # fmt: skip
    assert made["offset"].storage_offset() == 6


# -- the comparison --------------------------------------------------------------------------


def test_noise_is_an_ulp_of_the_type_that_eager_computes_in() -> None:
    x = torch.rand(1000) + 1
    seen = [torch.float32] * 2  # the operand's type and the result's
    exact, kept = run_wide(lambda t: [t * 3], [x], seen, 0)
    noisy, _ = run_wide(lambda t: [t * 3], [x], seen, 1)
    moved = ((noisy - exact) / exact).abs().max()
    assert 0.5 * 2**-23 < moved <= 2**-23
    assert torch.equal(kept, x.double())


def test_sums_round_on_the_way_to_a_small_result() -> None:
    """Half of these numbers add up to 16,000, all of them to nothing."""
    x = torch.linspace(-1, 1, 70_001).sin()
    seen = [torch.float32] * 2
    (exact, _), *noisy = (run_wide(lambda t: [t.sum()], [x], seen, k > 0, k) for k in range(6))
    spread = max(float((moved - exact).abs()) for moved, _ in noisy)
    assert 1e-4 < spread < 1e-2


def test_which_of_two_zeros_is_the_larger_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = [torch.tensor([[0.0, -0.0, 0.0, -0.0]])]
    impostor = _Impostor(lambda t: [~torch.signbit(t.max(1)[0])])
    monkeypatch.setattr("litz.fuzz.compare.Compiled", lambda *_: impostor)
    assert check(lambda t: [torch.signbit(t.max(1)[0])], zeros) is None


def test_float64_runs_share_memory_as_eager_does() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        x.add_(1)
        return [y * 1]

    base = torch.zeros(4)
    (result, _, after) = run_wide(program, [base, base[1:]], [torch.float32] * 4, 0)
    assert torch.equal(result, torch.ones(3, dtype=torch.float64))
    assert torch.equal(after, result)


def test_a_cast_is_a_copy_in_float64_where_it_is_one_in_eager() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        y = x.to(torch.float16)
        y.add_(1)
        return [y]

    seen: list[torch.dtype] = []
    x = torch.zeros(3)
    with Watched(seen):
        program(x)
    result, kept = run_wide(program, [x], seen, 0)
    assert torch.equal(result, torch.ones(3, dtype=torch.float64))
    assert torch.equal(kept, torch.zeros(3, dtype=torch.float64))


def test_numbers_made_of_none_may_be_rounded() -> None:
    seen = [torch.float32]
    exact, noisy = (run_wide(lambda: [torch.linspace(0, 1, 99)], [], seen, n)[0] for n in (0, 1))
    assert 0 < (exact - noisy).abs().max() <= 2**-23


def right(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.sin()
    x.mul_(2)
    return [y, x[1:]]


def test_a_right_program_passes() -> None:
    assert check(right, [data(1, (5, 17), torch.float32)]) is None


@pytest.fixture
def wrong_sine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generated code computes |x| for sin(x); the interpreter does not."""
    monkeypatch.setitem(OP_EMITTERS, "sin", OP_EMITTERS["abs"])
    monkeypatch.setattr("litz.codegen.llvm.values.INLINE_MATH", INLINE_MATH - {"sin"})


@pytest.mark.usefixtures("wrong_sine")
def test_wrong_code_is_found() -> None:
    failure = check(right, [data(1, (5, 17), torch.float32)])
    assert failure is not None
    assert (failure.who, failure.kind, failure.label) == ("litz", "value", 0)
    with pytest.raises(AssertionError, match="wrong by"):
        assert_same(right, [data(1, (5, 17), torch.float32)])


@pytest.mark.parametrize(
    ("eager", "compiled", "kind"),
    [
        (lambda x: [x + 1], lambda x: [x.double() + 1], "type"),
        (lambda x: [x + 1], lambda x: [x[None] + 1], "shape"),
        (lambda x: [x + 1], lambda x: [(x.mT + 1).contiguous().mT], "strides"),
        (lambda x: [x[1:]], lambda x: [x[1:].clone()], "aliasing"),
        (lambda x: [x > 9], lambda x: [x < 9], "value"),
        (lambda x: [x / 0], lambda x: [x / -0.0], "value"),
        (lambda x: [x * 3], lambda x: [x * 3.00001], "value"),
        (lambda x: [x + 1], lambda x: [x + 1, x], "results"),
    ],
)
def test_each_way_of_being_wrong_has_a_name(
    eager: Any, compiled: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("litz.fuzz.compare.Compiled", lambda *_: _Impostor(compiled))
    failure = check(eager, [data(1, (4, 4), torch.float32)])
    assert failure is not None
    assert failure.kind == kind


class _Impostor:
    """Stands in for a compiled function."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return list(self.function(*inputs))


def test_an_integer_on_the_edge_of_rounding_is_not_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether 3 * (x / 3) is below x is for rounding to say."""
    x = data(1, (200,), torch.float32)
    monkeypatch.setattr("litz.fuzz.compare.Compiled", lambda *_: _Impostor(lambda t: [t == t]))
    assert check(lambda t: [(t / 3) * 3 >= t], [x]) is None
    assert check(lambda t: [t >= t + 1], [x]) is not None


def test_an_op_that_litz_refuses_is_noted_and_no_find() -> None:
    """Such a graph runs as eager: how an overlapping input lies is not known to kernels."""
    notes = Explanation()
    overlapping = [data(1, (1, 2), torch.float32).expand(2, 2)]
    given = (lambda x: [x[..., ::2].as_strided((2, 1), (1, 2))], overlapping)
    failure = check(*given, notes=notes)
    assert failure is not None
    assert failure.is_excluded
    (fallback,) = notes.fallbacks
    assert "as_strided" in fallback.reason


# -- the shrinker ----------------------------------------------------------------------------


@pytest.mark.usefixtures("wrong_sine")
def test_a_failure_shrinks_to_the_step_that_is_wrong() -> None:
    program = Program(
        (Input("x0", (8, 17), "bfloat16", 5, "strided"), Input("x1", (17,), "float32")),
        (
            Step("v0", "{0} + {1}", ("x0", "x1")),
            Step("v1", "{0}.sin()", ("v0",)),
            Step("", "{0}.add_(1)", ("v1",)),
            Step("v2", "{0}.sum(1)", ("v1",)),
            Step("v3", "{0}.cumsum(0)", ("x1",)),
        ),
        ("v2", "v3"),
        {"cpp.simdlen": 128},
    )
    failure = judge(program)
    assert failure is not None
    small = shrink(program, lambda p: still_fails(p, failure), 60)
    assert small.text() == "def program(x0):\n    v0 = x0.sin()\n    return [v0]\n"
    assert small.inputs == (Input("x0", (), "float32"),)
    assert small.options == {}
    with pytest.raises(AssertionError, match="wrong by"):
        exec(small.script(), {})


def test_steps_that_nothing_needs_go() -> None:
    steps = (Step("v0", "{0} + 1", ("x0",)), Step("v1", "{0} + 1", ("x1",)))
    inputs = (Input("x0", (2,), "float32"), Input("x1", (2,), "float32"))
    kept = Program(inputs, steps, ("v1",)).without_dead_steps()
    assert (kept.inputs, kept.steps) == (inputs[1:], steps[1:])


# -- the hunt --------------------------------------------------------------------------------


KILLS = """
import litz.fuzz.compare, os, signal, sys
class Compiled:
    def __init__(self, *given, **named):
        pass
    def __call__(self, inputs):
        os.kill(os.getpid(), signal.SIGSEGV)
litz.fuzz.compare.Compiled = litz.fuzz.compare.ThroughDynamo = Compiled
hunt = sys.modules["litz.fuzz.hunt"]
hunt._warm, hunt.SHRINKING = lambda: None, 2.0
"""


def test_the_command_says_how_much_it_has_tried(tmp_path: Path) -> None:
    """By processes side by side, which share the seeds."""
    store = tmp_path / "finds"
    result = command("--seed", "1", "--programs", "3", "--jobs", "2", "--store", str(store))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("3 programs, ")
    excluded = r"(, 1 excluded \(1 as torch's own capture\))?"  # with torch 2.11
    assert re.search(rf" s, 0 failed{excluded}\n$", result.stdout), result.stdout
    assert not store.exists()


def test_the_command_stores_a_script_that_fails_and_exits_with_one(tmp_path: Path) -> None:
    asked = ["--seed", str(USES_SINE), "--programs", "1", "--bounds", "--store", str(tmp_path)]
    result = command(*asked, planted=WRONG_SINE)
    assert result.returncode == 1, result.stderr
    assert result.stdout.startswith("litz: value: ")
    assert result.stdout.endswith(" s, 1 failed\n")
    (path,) = tmp_path.iterdir()
    assert path.name == f"find_{USES_SINE}.py"
    assert str(path) in result.stdout
    script = path.read_text()
    assert len(script.splitlines()) < 25
    code = f"{WRONG_SINE}\n{script}"
    again = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "wrong by" in again.stderr
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_program_that_kills_its_process_is_a_find(tmp_path: Path) -> None:
    result = command("--seed", "1", "--programs", "2", "--store", str(tmp_path), planted=KILLS)
    assert result.returncode == 1, result.stderr
    assert "litz: crash: the process ended with status -11" in result.stdout
    assert result.stdout.endswith(" s, 2 failed\n")
    assert {path.name for path in tmp_path.iterdir()} == {"find_1.py", "find_2.py"}
    assert all("    return [" in path.read_text() for path in tmp_path.iterdir())


def test_a_function_that_kills_its_process_is_survived() -> None:
    assert isolated(lambda: 3, 30) == 3
    assert isolated(lambda: os.kill(os.getpid(), signal.SIGKILL), 30) == Died(-9)
    assert isolated(lambda: time.sleep(9), 0.1) == Died(None)


def test_every_program_is_compiled_with_the_flags_asked_for() -> None:
    program = Shard(3, 1, None, BOUNDS, []).program(3)
    assert program == replace(generate(3), options={**generate(3).options, **BOUNDS})


def test_every_program_runs_in_poisoned_memory() -> None:
    assert all(generate(seed).options["debug_poison_memory"] for seed in range(3))


def test_a_failure_reads_as_one_line() -> None:
    failure = Failure("litz", "value", "v0: wrong by 3")
    assert str(replace(failure, label=2)) == "litz: value: v0: wrong by 3"


# -- several calls, gradients, threads ---------------------------------------------------------


def test_sizes_change_from_call_to_call_the_longest_first_and_last() -> None:
    programs = [p for p in map(generate, range(60)) if p.calls > 2]
    assert len(programs) > 5
    for program in programs:
        for item in program.inputs:
            assert item.shapes[0] == item.shapes[-1] == tuple(map(max, *item.shapes, item.shape))
    shapes = {s for p in programs for i in p.inputs for s in i.shapes}
    assert {0, 1, 31, 257} <= {n for shape in shapes for n in shape}


def test_half_of_the_programs_go_through_dynamo_some_for_gradients_or_from_threads() -> None:
    call_modes = [generate(seed).call_mode for seed in range(60)]
    assert any(m.gradients for m in call_modes)
    assert any(m.threads > 1 for m in call_modes)
    assert any(m.automatic for m in call_modes)


TWICE = Input("x0", (8, 17), "float32", later=((3, 17), (8, 17)))
WRONG_AT_THREE = Program(
    (TWICE, Input("x1", (17,), "float32", later=((17,), (17,)))),
    (Step("v0", "{0}.sin() + {1}", ("x0", "x1")), Step("v1", "{0}.exp()", ("x1",))),
    ("v0", "v1"),
    {"cpp.simdlen": 128},
    call_mode=CallMode(threads=2),
)


@pytest.mark.usefixtures("wrong_sine")
def test_calls_threads_and_sizes_shrink() -> None:
    failure = judge(WRONG_AT_THREE)
    assert failure is not None
    assert (failure.kind, failure.call, failure.label) == ("value", 0, 0)
    small = shrink(WRONG_AT_THREE, lambda p: still_fails(p, failure), 60)
    assert small.is_plain
    assert small.text() == "def program(x0, x1):\n    v0 = x0.sin() + x1\n    return [v0]\n"
    assert [i.shape for i in small.inputs] == [(), ()]


def test_a_failure_of_a_later_call_keeps_the_calls_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wrong at three rows, behind a call with more of them."""
    monkeypatch.setattr("litz.fuzz.dynamo.ThroughDynamo._called", _forgetful)
    program = replace(WRONG_AT_THREE, call_mode=CallMode(), options={})
    failure = judge(program)
    assert failure is not None
    assert failure.call == 1
    small = shrink(program, lambda p: still_fails(p, failure), 60)
    assert {len(i.shapes) for i in small.inputs} == {2}
    with pytest.raises(AssertionError, match="call 1"):
        exec(small.script(), {})


def _forgetful(self: ThroughDynamo, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Right in a first call alone."""
    wrong = self.calls > 1 and self.backend is not captured
    return [r + wrong for r in self.function(*inputs)]


@pytest.mark.usefixtures("wrong_sine")
def test_wrong_gradients_are_found() -> None:
    """The gradient of a cosine is a sine, and the cosine itself is right."""
    calls = [[data(1, (5, 17), torch.float32)]]
    call_mode = CallMode(gradients=True)
    failure = check_calls(lambda x: [x.cos()], calls, {}, ("y", "dx", "x"), call_mode)
    assert failure is not None
    assert (failure.kind, failure.text[:3]) == ("value", "dx:")
    assert check_calls(lambda x: [x.tanh()], calls, {}, (), call_mode) is None


def test_parameters_are_written_to_between_calls() -> None:
    calls = [[data(k, (4, 3), torch.float32), data(k + 9, (2, 3), torch.float32)] for k in range(4)]
    for gradients in (False, True):
        call_mode = CallMode(gradients)
        assert check_calls(_linear, calls, {}, (), call_mode, parameters=(1,)) is None
    stale = ThroughDynamo(_linear, {}, CallMode(), (1,))
    first = stale(calls[0])
    assert not torch.equal(first[0], stale([calls[0][0], calls[1][1]])[0])


def _linear(x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    return [torch.nn.functional.linear(x, weight)]


def test_gradients_in_float64_are_moved_by_rounding() -> None:
    x = torch.rand(1000) + 1
    function = with_gradients(lambda t: [t * 3])
    exact, noisy = (run_wide(function, [x], [torch.float32] * 2, n)[1] for n in (0, 1))
    moved = ((noisy - exact) / exact).abs().max()
    assert 2**-24 < moved < 2**-20
