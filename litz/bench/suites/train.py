"""Suite `train`: a training step (forward, loss, backward, AdamW) of the models of the zoo.

In: nothing. Out: for each model the time of a step, its peak of memory and a cold compile; and
AdamW alone over 200 parameters. Example: `bert step`, `AdamW 200 parameters`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from litz.bench.calls import measure_calls
from litz.bench.case import Case, Program, Say, Settings, Suite
from litz.bench.fresh import COLD, measure_compile, measure_memory
from litz.bench.results import Row
from litz.bench.training import Training, Updates
from litz.bench.zoo import BASE, SMALL, workload

MODELS = ("bert", "gpt2", "llama", "vit", "resnet", "t5", "distilbert", "mixer", "lstm", "unet")
FEW = ("gpt2", "mixer")
# Half the width of the real models: a step takes three times as long as a call.
MEDIUM = replace(BASE, hidden=384, heads=6, layers=2, image=112)
PARAMETERS = 200
# Shapes of a transformer: projections, biases, norms, embeddings.
SHAPES = [(384, 384), (384,), (1536, 384), (1536,), (384, 1536), (1000, 384), (64, 3, 8, 8)]


def step(name: str, quick: bool) -> Program:
    """A training step of a model of the zoo."""
    work = workload(name, SMALL if quick else MEDIUM)
    return Program(Training(work.model), (), work.inputs)


def updates(count: int, foreach: bool) -> Program:
    """AdamW over parameters of a few shapes."""
    torch.manual_seed(0)
    held = [torch.nn.Parameter(torch.randn(SHAPES[k % len(SHAPES)])) for k in range(count)]
    for parameter in held:
        parameter.grad = torch.randn(parameter.shape)
    return Program(Updates(held, foreach))


def cases(quick: bool) -> list[Case]:
    models = FEW if quick else MODELS
    count = 10 if quick else PARAMETERS
    measures: dict[str, Callable[[Case, Settings, Say], list[Row]]] = {
        "step": measure_calls,
        "memory": measure_memory,
        "compile": partial(measure_compile, runs=(COLD,)),
    }
    by_model = [
        Case("train", name, what, partial(step, name, quick), measure)
        for what, measure in measures.items()
        for name in models
    ]
    ways = {"foreach": True, "one by one": False}
    return by_model + [
        Case("train", "AdamW", f"{count} parameters, {way}", partial(updates, count, foreach),
             measure_calls)
        for way, foreach in ways.items()
    ]  # fmt: skip


SUITE = Suite("Training steps: the time, the peak of memory, a cold compile; AdamW alone.", cases)
