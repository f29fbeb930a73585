"""The stage at which a wrong program first goes wrong.

In: a program and what is wrong with it. Out: the name of a stage. The program is compiled as far as
each stage in turn and run as that stage left it, through the same calls, and judged as before; the
first that is wrong is named, and the pass if the stage is a list of them. Example: `passes
(remove_identities)`.

A graph is run by ATen, loops by the interpreter. A stage behind which the interpreter raises what
Litz did not is passed over: then the next one that is wrong is named.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from litz.config import snapshot
from litz.fuzz.compare import Failure, Tensors, failure_of_calls, failure_of_run, meaning, meant_by
from litz.fuzz.dynamo import ThroughDynamo
from litz.fuzz.isolate import Died, isolated
from litz.fuzz.program import Program
from litz.fuzz.runs import Compiled
from litz.fuzz.stages import LISTS, ON_A_DEVICE, STAGES, Partway

# What a stage may break beside the very thing that was seen.
MEANING = ("value", "shape", "type", "results")
A_STAGE = 60.0  # seconds in a process of its own
ARENA = "plan (the arena)"
BEHIND = "schedule, codegen or runtime"
NOWHERE = "no stage: it did not fail again"

Judged = Callable[[Partway | None], Failure | None]  # of None: compiled as ever


class CompiledPartway(Compiled):
    """A function compiled without Dynamo as far as a stage."""

    def __init__(self, partway: Partway, *given: Any) -> None:
        super().__init__(*given)
        self.partway = partway

    def _compiled(self, module: torch.fx.GraphModule) -> Callable[..., Any]:
        return self.partway.compiled(module, "inference")


def stage_of(program: Program, like: Failure) -> str:
    """Where it goes wrong. A program that kills its process has another for each stage."""
    judged = _judge_of(program)
    is_deadly = like.kind in ("crash", "timeout")
    fails = partial(_dies if is_deadly else _is_like, judged, like=like)
    config = snapshot(dict(program.options))
    for stage in STAGES if program.device == "cpu" else ON_A_DEVICE:
        if fails(Partway(stage, config)):
            return stage + _pass_of(stage, lambda s, k: fails(Partway(s, config, k)))
    if program.device != "cpu":
        return BEHIND
    return ARENA if fails(None) else NOWHERE


def _pass_of(stage: str, fails_behind: Callable[[str, int], bool]) -> str:
    """The first of a list of passes behind which it fails, in brackets."""
    if stage not in LISTS or fails_behind(stage, 0):
        return ""
    right, wrong = 0, len(LISTS[stage])
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if fails_behind(stage, middle) else (middle, wrong)
    return f" ({LISTS[stage][right].name})"


def _is_like(judged: Judged, partway: Partway | None, like: Failure) -> bool:
    found = judged(partway)
    if found is None:
        return False
    by_meaning = found.kind in MEANING and like.kind not in ("strides", "aliasing")
    return found.kind == like.kind or by_meaning


def _dies(judged: Judged, partway: Partway | None, like: Failure) -> bool:
    return isinstance(isolated(lambda: judged(partway) is None, A_STAGE), Died)


def _judge_of(program: Program) -> Judged:
    """Runs the calls of a program; what they should give is found once."""
    function, labels, options = program.function(), program.labels, program.options
    if program.is_plain:
        inputs = program.fresh_inputs()
        meant = meaning(function, inputs)

        def once(partway: Partway | None) -> Failure | None:
            given = (function, options, program.device)
            run: Callable[[Tensors], Tensors]
            run = Compiled(*given) if partway is None else CompiledPartway(partway, *given)
            return failure_of_run("litz", run, meant, inputs, labels)

        return once
    calls = [program.fresh_inputs(k) for k in range(program.calls)]
    every = [meaning(meant_by(function, program.manner), inputs) for inputs in calls]

    def often(partway: Partway | None) -> Failure | None:
        backend = None if partway is None else partway.backend
        given = (program.manner, program.parameters, backend)
        run = ThroughDynamo(function, options, *given, device=program.device)
        is_code = partway is None or partway.stage == "link"
        threads = program.manner.threads if is_code else 1
        return failure_of_calls(run, every, calls, labels, threads)

    return often
