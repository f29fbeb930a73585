"""Suite `dynamic`: models called with sequences of many lengths, compiled once for all of them.

In: nothing. Out: for each model a row for each length: Litz with symbolic sizes beside Litz
compiled for exactly that length, TorchInductor with symbolic sizes, and eager. The column
`compiles` counts the graphs that Litz has compiled so far; for torch, a length of one is a graph of
its own. Example: `bert 2 x 128`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from litz.backend import litz
from litz.bench.agreement import Agreement
from litz.bench.calls import error_line, running_on
from litz.bench.candidates import OPTIONS
from litz.bench.case import Case, Program, Say, Settings, Suite, with_own_code
from litz.bench.results import OURS, Row
from litz.bench.timing import interleave
from litz.bench.zoo import BASE, SMALL, Scale, workload
from litz.report import Explanation

MODELS = ("bert", "gpt2", "llama", "distilbert")
FEW = ("gpt2",)
# The first is the length seen while tracing.
LENGTHS = (128, 1, 2, 7, 16, 31, 33, 64, 100, 127, 200, 256, 333, 400, 512)
FEW_LENGTHS = (24, 5, 17)
STATIC = "litz static"
# How often torch compiles one code object before it gives up.
MOST_COMPILES = 64


def program(name: str, length: int, scale: Scale) -> Program:
    """A model of the zoo and tokens of some length."""
    work = workload(name, scale)
    tokens = torch.Generator().manual_seed(length)
    shape = (scale.batch, length)
    inputs = {
        key: torch.randint(0, 1000, shape, generator=tokens) if key == "input_ids" else value
        for key, value in work.inputs.items()
        if key == "input_ids" or not isinstance(value, torch.Tensor)
    }
    return Program(work.model, (), inputs)


def measure_lengths(
    lengths: tuple[int, ...], scale: Scale, case: Case, settings: Settings, say: Say
) -> list[Row]:
    """Compile once, then measure one length after the other."""
    config = torch._dynamo.config.patch(recompile_limit=MOST_COMPILES)
    with running_on(case.threads or settings.threads), config:
        torch._dynamo.reset()
        gc.collect()
        given = case.build()
        notes = Explanation()
        symbolic = _symbolic(given.function, settings, notes)
        return [
            _row(case, length, scale, given.function, symbolic, notes, settings, say)
            for length in lengths
        ]


def _symbolic(
    model: Callable[..., Any], settings: Settings, notes: Explanation
) -> Mapping[str, Callable[..., Any]]:
    """Each candidate, compiled once for all lengths."""
    ours = partial(litz, options=OPTIONS, explanation=notes)
    found = {OURS: torch.compile(with_own_code(model, "symbolic"), backend=ours, dynamic=True)}
    if "inductor" in settings.against:
        found["inductor"] = torch.compile(with_own_code(model, "inductor"), dynamic=True)
    if "eager" in settings.against:
        found["eager"] = model
    return found


def _row(
    case: Case, length: int, scale: Scale, model: Callable[..., Any],
    symbolic: Mapping[str, Callable[..., Any]], notes: Explanation, settings: Settings, say: Say,
) -> Row:  # fmt: skip
    shape = f"{scale.batch} x {length}"
    say(f"{shape}: compiling")
    inputs = program(case.name, length, scale).kwargs
    agreement = Agreement(Program(model, (), inputs))
    ours = partial(litz, options=OPTIONS)
    own = torch.compile(with_own_code(model, f"length_{length}"), backend=ours, dynamic=False)
    calls: dict[str, Callable[[], Any]] = {}
    missing: dict[str, str] = {}
    for candidate, function in {**symbolic, STATIC: own}.items():
        try:
            fault = agreement.fault(Program(function, (), inputs)())
        except Exception as error:  # the others can still be timed
            fault = error_line(error)
        if fault:
            missing[candidate] = fault
        else:
            calls[candidate] = partial(function, **inputs)
    say(f"{shape}: timing")
    timings = interleave(calls, settings.seconds) if calls else {}
    samples = {candidate: timing.samples for candidate, timing in timings.items()}
    row = Row(case.suite, case.name, shape, "call", samples, missing)
    return row.with_facts({"compiles": len(notes.graphs), "by size": len(notes.by_size)})


def cases(quick: bool) -> list[Case]:
    models, lengths = (FEW, FEW_LENGTHS) if quick else (MODELS, LENGTHS)
    scale = SMALL if quick else BASE
    return [
        Case("dynamic", name, "", partial(program, name, lengths[0], scale),
             partial(measure_lengths, lengths, scale))
        for name in models
    ]  # fmt: skip


SUITE = Suite("Models compiled once for sequences of all lengths, up to 512 tokens.", cases)
