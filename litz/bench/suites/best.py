"""Suite `best`: models at their fastest: weights are constants, choices are timed.

In: nothing. Out: for each model the time of a call, and that of the first one, which includes
tuning. Here `litz` and `inductor` are the candidates `litz-best` and `inductor-best`, with the
defaults of both beside them. Caches are empty for each model. Both compilers also reuse code
within a process: so defaults come last, and `--models` with one name gives the fairest seconds.
Example: `python -m litz bench --suite best --models bert`.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch

from litz.bench.agreement import Agreement
from litz.bench.calls import error_line, running_on
from litz.bench.candidates import CANDIDATES
from litz.bench.case import Case, Program, Say, Settings, Suite, with_own_code
from litz.bench.fresh import empty_caches
from litz.bench.results import OURS, Row
from litz.bench.suites import cpu
from litz.bench.timing import interleave

THEIRS, THEIR_DEFAULT, OUR_DEFAULT = "inductor", "inductor default", "litz default"
# The name in a row, and the candidate it stands for.
BESIDE = {
    OURS: "litz-best",
    THEIRS: "inductor-best",
    OUR_DEFAULT: "litz",
    THEIR_DEFAULT: "inductor",
}


def measure(case: Case, settings: Settings, say: Say) -> list[Row]:
    """Compile with every candidate, note the first calls, time the others alternately."""
    with running_on(case.threads or settings.threads), empty_caches() as environment:
        gc.collect()
        with mock.patch.dict(os.environ, environment):
            return _rows(case, settings, say)


def _rows(case: Case, settings: Settings, say: Say) -> list[Row]:
    say("loading the compilers")
    for candidate in BESIDE.values():
        if not CANDIDATES[candidate].why_not():
            CANDIDATES[candidate].compile(torch.nn.ReLU())(torch.ones(8))
    torch._dynamo.reset()
    program = case.build()
    say("running eager in float32 and float64")
    agreement = Agreement(program)
    calls: dict[str, Callable[[], Any]] = {}
    first: dict[str, tuple[float, ...]] = {}
    missing: dict[str, str] = {}
    for name, candidate in BESIDE.items():
        say(f"compiling with {candidate}")
        if why := CANDIDATES[candidate].why_not():
            missing[name] = why
            continue
        fault, calls[name], took = _first(program, candidate, agreement)
        if fault:
            missing[name] = fault
            del calls[name]
            continue
        first[name] = (took,)
    say("timing")
    timed = interleave(calls, settings.seconds) if calls else {}
    samples = {name: timing.samples for name, timing in timed.items()}
    where = (case.suite, case.name, case.variant)
    return [Row(*where, "call", samples, missing), Row(*where, "first call, cold", first, missing)]


def _first(
    program: Program, candidate: str, agreement: Agreement
) -> tuple[str, Callable[[], Any], float]:
    """The fault of a candidate's first result, how to call it again, and the first call's time."""
    model = with_own_code(program.function, candidate.replace("-", "_"))
    function = CANDIDATES[candidate].compile(model)
    start = time.perf_counter()
    try:
        result = program(function)
        took = time.perf_counter() - start
        fault = agreement.fault(result)
    except Exception as error:  # whatever it is, the others can still be timed
        fault, took = error_line(error), 0.0
    return fault, partial(function, *program.args, **program.kwargs), took


def cases(quick: bool) -> list[Case]:
    return [replace(case, suite="best", measure=measure) for case in cpu.cases(quick)]


SUITE = Suite("Models with frozen weights, tuned: a call, and the first one.", cases)
