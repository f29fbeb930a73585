"""The stage at which a wrong program first goes wrong.

In: a program and its failure. Out: the name of a stage. The program is compiled up to each stage in
turn, run as that stage left it, with the same calls, and judged as before. The first stage that is
wrong is named, and the pass if the stage is a list of passes. Example: `passes
(remove_identities)`.

A graph is run by ATen, loops by the interpreter. If the interpreter raises an error that Litz did
not, the stage is skipped, and the next one that is wrong is named.
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

# Kinds of failures that a stage may cause besides the one that was seen.
MEANING = ("value", "shape", "type", "results")
A_STAGE = 60.0  # seconds in another process
ARENA = "plan (the arena)"
BEHIND = "schedule, codegen or runtime"
NOWHERE = "no stage: it did not fail again"

Judged = Callable[[Partway | None], Failure | None]  # None: compiled by all stages


class CompiledPartway(Compiled):
    """A function compiled up to a stage, without Dynamo."""

    def __init__(self, partway: Partway, *given: Any) -> None:
        super().__init__(*given)
        self.partway = partway

    def _compiled(self, module: torch.fx.GraphModule) -> Callable[..., Any]:
        return self.partway.compiled(module, "inference")


def stage_of(program: Program, like: Failure) -> str:
    """The first wrong stage. If the program kills its process, each stage gets a new one."""
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
    """The first pass of a list after which it fails, in brackets."""
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
    """Judges the calls of a program; the reference results are computed once."""
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
    every = [meaning(meant_by(function, program.call_mode), inputs) for inputs in calls]

    def often(partway: Partway | None) -> Failure | None:
        backend = None if partway is None else partway.backend
        given = (program.call_mode, program.parameters, backend)
        run = ThroughDynamo(function, options, *given, device=program.device)
        is_code = partway is None or partway.stage == "link"
        threads = program.call_mode.threads if is_code else 1
        return failure_of_calls(run, every, calls, labels, threads)

    return often
