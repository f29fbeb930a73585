"""The time of a call: candidates compiled in this process, checked, then timed alternately.

In: a case. Out: one `Row`. Dynamo is reset between cases. Example:

    [row] = measure_calls(case, Settings(against=("eager",), seconds=1), print)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch

from litz.bench.agreement import Agreement
from litz.bench.candidates import CANDIDATES
from litz.bench.case import Case, Program, Say, Settings
from litz.bench.results import OURS, Row
from litz.bench.timing import Candidate, interleave

Facts = Callable[[Program], Mapping[str, float]]


def _no_facts(_: Program) -> Mapping[str, float]:
    return {}


def measure_calls(
    case: Case, settings: Settings, say: Say, metric: str = "call", facts: Facts = _no_facts
) -> list[Row]:
    """Compile with every candidate, leave out those that fail or are wrong, time the rest."""
    with running_on(case.threads or settings.threads):
        torch._dynamo.reset()
        gc.collect()
        program = case.build()
        calls, missing = compiled(program, candidates_of(case, settings), say)
        say("timing")
        timings = interleave(calls, settings.seconds) if calls else {}
    samples = {name: timing.samples for name, timing in timings.items()}
    row = Row(case.suite, case.name, case.variant, metric, samples, missing)
    return [row.with_facts(facts(program))]


def candidates_of(case: Case, settings: Settings) -> list[str]:
    """Litz, the candidates that this case needs, and those that the user asked for."""
    return list(dict.fromkeys((OURS, *case.beside, *settings.against)))


def compiled(
    program: Program, names: list[str], say: Say
) -> tuple[dict[str, Candidate], dict[str, str]]:
    """Calls by candidate, and for each other candidate the reason why it has none."""
    say("running eager in float32 and float64")
    agreement = Agreement(program)
    calls: dict[str, Candidate] = {}
    missing: dict[str, str] = {}
    for name in names:
        say(f"compiling with {name}")
        function = CANDIDATES[name].compile(program.function)
        try:
            fault = agreement.fault(program(function))
        except Exception as error:  # whatever it is, the others can still be timed
            fault = error_line(error)
        if fault:
            missing[name] = fault
        else:
            calls[name] = partial(function, *program.args, **program.kwargs)
    return calls, missing


def error_line(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


@contextmanager
def running_on(threads: int | None) -> Iterator[None]:
    """Set the number of threads for a block, without gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)
