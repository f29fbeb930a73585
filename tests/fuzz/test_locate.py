"""A find names the stage that a defect was planted in: called once, often, and for gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import litz.build
import litz.fuse
import litz.plan
import litz.schedule
from litz.codegen.llvm.ops import OP_EMITTERS
from litz.codegen.llvm.values import INLINE_MATH
from litz.fuzz.compare import Failure
from litz.fuzz.dynamo import ThroughDynamo
from litz.fuzz.hunt import judge
from litz.fuzz.locate import ARENA, NOWHERE, stage_of
from litz.fuzz.program import CallMode, Input, Program, Step
from litz.fuzz.stages import LISTS, STAGES
from litz.ir.expr import apply
from litz.ir.graph import Graph
from litz.ir.program import Kernel
from litz.lower.registry import RULES
from litz.passes import JOINT_PASSES, PASSES, Pass
from litz.runtime.graph import CompiledGraph
from tests.fuzz.hunting import USES_SINE, WRONG_SINE, command

aten = torch.ops.aten
Patch = pytest.MonkeyPatch

STEPS = (
    Step("v0", "{0}.sin()", ("x0",)),
    Step("v1", "{0} @ {1}", ("v0", "x1")),
    Step("v2", "{0}.softmax(1) * {0}.cumsum(1)", ("v1",)),
)
ONCE = Program(
    (Input("x0", (5, 17), "float32"), Input("x1", (17, 33), "float32", seed=2)),
    STEPS,
    ("v1", "v2"),
    {"cpp.opt_level": 1},
)
OFTEN = replace(
    ONCE,
    inputs=(
        Input("x0", (9, 17), "float32", later=((3, 17), (9, 17))),
        Input("x1", (17, 33), "float32", seed=2, later=((17, 33), (17, 33))),
    ),
)
TRAINED = replace(ONCE, call_mode=CallMode(gradients=True))
IN_AN_ARENA = {"max_fusion_size": 1}  # no kernel takes another's work: all lies in memory
PROGRAMS = {"once": ONCE, "often": OFTEN, "trained": TRAINED}


def cosines(graph: Graph) -> int:
    """A pass that is wrong about sines."""
    nodes = [n for n in graph.nodes if n.target is aten.sin.default]
    for node in nodes:
        node.target = aten.cos.default
    return len(nodes)


def plant_capture(patch: Patch) -> None:
    def decomposed(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x)

    for place in ("litz.fuzz.runs", "litz.capture.aot_autograd"):
        known = sys.modules[place].decompositions  # type: ignore[attr-defined]
        patch.setattr(
            f"{place}.decompositions", lambda k=known: {**k(), aten.sin.default: decomposed}
        )


def _plant_pass(patch: Patch, stage: str, passes: list[Pass]) -> None:
    patch.setitem(LISTS, stage, passes)
    patch.setattr("litz.passes." + {"partition": "JOINT_PASSES", "passes": "PASSES"}[stage], passes)


def plant_partition(patch: Patch) -> None:
    _plant_pass(patch, "partition", [*JOINT_PASSES[:5], Pass(cosines), *JOINT_PASSES[5:]])


def plant_passes(patch: Patch) -> None:
    _plant_pass(patch, "passes", [*PASSES[:12], Pass(cosines), *PASSES[12:]])


def plant_lower(patch: Patch) -> None:
    patch.setitem(RULES, aten.sin.default, RULES[aten.cos.default])


def _negative(kernel: Kernel) -> Kernel:
    """What its last phase stores has the other sign."""
    *phases, last = kernel.phases
    stores = tuple(
        replace(s, value=apply("neg", s.value)) if s.value.dtype.is_float else s
        for s in last.stores
    )
    return replace(kernel, phases=(*phases, replace(last, stores=stores)))


def plant_fuse(patch: Patch) -> None:
    right = litz.fuse.make_kernel
    patch.setattr("litz.fuse.make_kernel", lambda *a: _negative(right(*a)))


def plant_plan(patch: Patch) -> None:
    """Steps in another order than that of the data."""
    patch.setattr("litz.plan.order_by_level", lambda g: replace(g, body=g.body[::-1]))


def plant_schedule(patch: Patch) -> None:
    right = litz.schedule.canonical_axes
    patch.setattr("litz.schedule.canonical_axes", lambda k: _negative(right(k)))


def plant_codegen(patch: Patch) -> None:
    patch.setitem(OP_EMITTERS, "sin", OP_EMITTERS["abs"])
    patch.setattr("litz.codegen.llvm.values.INLINE_MATH", INLINE_MATH - {"sin"})


def plant_build(patch: Patch) -> None:
    """LLVM is wrong as soon as it optimises."""
    right = litz.build.compile_object

    def compiled(text: str, target: Any, level: int, trace: Any) -> bytes:
        return right(text.replace("fmul ", "fadd ") if level else text, target, level, trace)

    patch.setattr("litz.build.compile_object", compiled)


def plant_link(patch: Patch) -> None:
    """A call gives something else than its kernels wrote."""
    right = CompiledGraph._bind_wrapper

    def written_call(self: Any, names: dict[str, Any]) -> Callable[..., Any]:
        call = right(self, names)

        def wrong(args: list[Any]) -> list[Any]:
            return [r + 1 if isinstance(r, torch.Tensor) and r.is_floating_point() else r
                    for r in call(args)]  # fmt: skip

        wrong._boxed_call = True  # type: ignore[attr-defined]
        return wrong

    patch.setattr(CompiledGraph, "_bind_wrapper", written_call)


def plant_arena(patch: Patch) -> None:
    """All intermediates lie in one place."""
    right = litz.plan.assign_slots

    def together(*given: Any) -> Any:
        made = right(*given)
        return replace(made, slots={n: replace(s, offset=0) for n, s in made.slots.items()})

    patch.setattr("litz.plan.assign_slots", together)


PLANTED = {
    "capture": plant_capture, "partition": plant_partition, "passes": plant_passes,
    "lower": plant_lower, "fuse": plant_fuse, "plan": plant_plan, "schedule": plant_schedule,
    "codegen": plant_codegen, "build": plant_build, "link": plant_link, ARENA: plant_arena,
}  # fmt: skip


def test_a_defect_is_planted_in_every_stage() -> None:
    assert list(PLANTED) == [*STAGES, ARENA]


NAMED = {"passes": "passes (cosines)", "partition": "partition (cosines)"}
CASES = [(s, p) for s in PLANTED for p in ("once", "often") if s != "partition"]
CASES += [("partition", "trained"), ("codegen", "trained")]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_are_right_as_long_as_nothing_is_planted(program: str) -> None:
    assert judge(PROGRAMS[program]) is None


@pytest.mark.parametrize("stage, program", CASES)
def test_what_is_wrong_is_wrong_from_its_stage_on(
    stage: str, program: str, monkeypatch: Patch
) -> None:
    options = {**ONCE.options, **(IN_AN_ARENA if stage == ARENA else {})}
    wrong = replace(PROGRAMS[program], options=options)
    PLANTED[stage](monkeypatch)
    failure = judge(wrong)
    assert failure is not None
    assert stage_of(wrong, failure) == NAMED.get(stage, stage)


def _raises(*_: Any, **__: Any) -> Any:
    raise KeyError("planted")


def raising(graph: Graph) -> int:
    return int(_raises())


RAISED = {
    "fuse": "litz.fuse.make_kernel",
    "plan": "litz.plan.order_by_level", "schedule": "litz.schedule.canonical_axes",
    "codegen": "litz.codegen.emit_module", "build": "litz.build.compile_object",
    "link": "litz.runtime.CompiledGraph",
}  # fmt: skip


@pytest.mark.parametrize(
    "stage, program",
    [*((s, "once") for s in ("passes", "lower", *RAISED)), ("lower", "often"), ("link", "often")],
)
def test_what_raises_names_its_stage(stage: str, program: str, monkeypatch: Patch) -> None:
    if stage == "passes":
        _plant_pass(monkeypatch, stage, [*PASSES[:3], Pass(raising), *PASSES[3:]])
    elif stage == "lower":
        monkeypatch.setitem(RULES, aten.sin.default, _raises)
    else:
        monkeypatch.setattr(RAISED[stage], _raises)
    failure = judge(PROGRAMS[program])
    assert failure is not None
    assert "planted" in failure.text
    assert stage_of(PROGRAMS[program], failure) == (
        "passes (raising)" if stage == "passes" else stage
    )


def test_a_failure_by_threads_alone_is_of_the_last_stages(monkeypatch: Patch) -> None:
    """Two calls at once share a workspace."""
    program = replace(ONCE, call_mode=CallMode(threads=2), options=IN_AN_ARENA)
    right = ThroughDynamo.at_once

    def wrong(self: ThroughDynamo, inputs: Any) -> Any:
        return [([t + 1 for t in results], given) for results, given in right(self, inputs)]

    monkeypatch.setattr(ThroughDynamo, "at_once", wrong)
    failure = judge(program)
    assert failure is not None
    assert failure.text.startswith("threads: ")
    assert stage_of(program, failure) == "link"


def test_what_does_not_fail_again_has_no_stage() -> None:
    assert stage_of(ONCE, Failure("litz", "value", "")) == NOWHERE


KILLS = """
import os, signal, litz.codegen
right = litz.codegen.emit_module
def emit(plan, kernels, target):
    if any(o.op == "aten.sin.default" for k in kernels for o in k.kernel.origins):
        os.kill(os.getpid(), signal.SIGKILL)
    return right(plan, kernels, target)
litz.codegen.emit_module = emit
"""


def test_a_find_says_its_stage_in_what_is_printed_and_stored(tmp_path: Path) -> None:
    asked = ["--seed", str(USES_SINE), "--programs", "1", "--store", str(tmp_path)]
    result = command(*asked, planted=WRONG_SINE)
    assert result.returncode == 1, result.stderr
    (path,) = tmp_path.iterdir()
    for text in (result.stdout, path.read_text()):
        assert "first wrong after stage: codegen" in text


def test_a_crash_has_a_stage(tmp_path: Path) -> None:
    asked = ["--seed", str(USES_SINE), "--programs", "1", "--store", str(tmp_path)]
    result = command(*asked, planted=KILLS)
    assert result.returncode == 1, result.stderr
    assert "litz: crash: the process ended with status -9" in result.stdout
    assert "first wrong after stage: codegen" in result.stdout
