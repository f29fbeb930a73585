"""Suite `cpu`: the models of the zoo, float32, one item and several at a time.

In: nothing. Out: a case for each model and batch. Example: `bert batch 1`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from litz.bench.calls import measure_calls
from litz.bench.case import Case, Program, Suite
from litz.bench.zoo import BASE, SMALL, ZOO, workload

BATCHES = (1, 4)


def model(name: str, batch: int, quick: bool) -> Program:
    """A model of the zoo as a program."""
    work = workload(name, replace(SMALL if quick else BASE, batch=batch))
    return Program(work.model, (), work.inputs)


def cases(quick: bool) -> list[Case]:
    return [
        Case("cpu", name, f"batch {batch}", partial(model, name, batch, quick), measure_calls)
        for name in ZOO
        for batch in BATCHES
    ]


SUITE = Suite("Models from their configs, with random weights: the time of a call.", cases)
