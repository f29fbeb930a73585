"""Shrinking: a failing program gets fewer calls, steps, outputs, flags, inputs and elements.

In: a program and a test of whether a smaller one still fails. Out: the smallest found in the given
time. Each change is tried, and kept if the program still fails. Example: of forty steps,

    v0 = x0.cumsum(0)
    return [v0[::2]]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from litz.fuzz.program import NAMES, CallMode, Input, Program, Step

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, seconds: float) -> Program:
    """Try all kinds of changes until none helps."""
    end = time.monotonic() + seconds
    before = None
    while program != before and time.monotonic() < end:
        before = program
        for changes in (
            plainer_call_mode, fewer_calls, fewer_outputs, fewer_steps, shorter_paths,
            fewer_options, plainer_inputs, smaller_sizes,
        ):  # fmt: skip
            program = _applied(program, changes, fails, end)
    return renamed(program)


def _applied(
    program: Program, changes: Callable[[Program], Iterator[Program]], fails: Fails, end: float
) -> Program:
    """Take the first change that still fails and begin again, until no change does."""
    progress = True
    while progress:
        progress = False
        for candidate in changes(program):
            smaller = candidate.without_dead_steps()
            if time.monotonic() > end:
                return program
            if smaller != program and fails(smaller):
                program, progress = smaller, True
                break
    return program


def plainer_call_mode(program: Program) -> Iterator[Program]:
    """Without gradients, threads, parameters; and without Dynamo, if it is called once."""
    call_mode = program.call_mode
    plain = CallMode(dynamo=call_mode.dynamo)
    free = tuple(replace(i, parameter=False) for i in program.inputs)
    for less in (
        replace(program, call_mode=CallMode(), inputs=free),
        replace(program, call_mode=plain),
        replace(program, call_mode=replace(call_mode, gradients=False)),
        replace(program, call_mode=replace(call_mode, threads=1)),
        replace(program, call_mode=replace(call_mode, automatic=False)),
        replace(program, inputs=free),
    ):
        if less != program:
            yield less


def fewer_calls(program: Program) -> Iterator[Program]:
    """A single call, then all but one."""
    every = range(program.calls)
    if program.calls == 1:
        return
    for kept in [[k] for k in every] + [[j for j in every if j != k] for k in every]:
        inputs = (i.reshaped([i.shapes[k] for k in kept]) for i in program.inputs)
        call_mode = replace(program.call_mode, dynamo=True)
        yield replace(program, inputs=tuple(inputs), call_mode=call_mode)


def fewer_outputs(program: Program) -> Iterator[Program]:
    """Either half, then all but one."""
    outputs, half = program.outputs, len(program.outputs) // 2
    if half:
        yield replace(program, outputs=outputs[:half])
        yield replace(program, outputs=outputs[half:])
        for k in range(len(outputs)):
            yield replace(program, outputs=outputs[:k] + outputs[k + 1 :])


def fewer_steps(program: Program) -> Iterator[Program]:
    """Remove ranges of steps, long ones first; values that later steps need become inputs."""
    length = len(program.steps)
    size = max(length // 2, 1)
    while length:
        for start in range(0, length, size):
            yield _cut(program, start, start + size)
        if size == 1:
            return
        size //= 2


def _cut(program: Program, start: int, stop: int) -> Program:
    gone = program.steps[start:stop]
    kept = program.steps[:start] + program.steps[stop:]
    needed = {name for step in kept for name in step.operands} | set(program.outputs)
    values = [_values(program, call) for call in range(program.calls)]
    made = [
        Input(s.name, (), NAMES[values[0][s.name].dtype]).reshaped(
            [tuple(v[s.name].shape) for v in values]
        )
        for s in gone
        if s.name in needed and s.name in values[0]
    ]
    return replace(program, inputs=(*program.inputs, *made), steps=kept)


def _values(program: Program, call: int) -> dict[str, torch.Tensor]:
    """Every value of the program in eager."""
    names = tuple(step.name for step in program.steps if step.name)
    showing = replace(program, outputs=names)
    with torch.no_grad():
        return dict(zip(names, showing.function()(*showing.fresh_inputs(call)), strict=True))


def shorter_paths(program: Program) -> Iterator[Program]:
    """Replace a step's value by one of its operands."""
    for k, step in enumerate(program.steps):
        for operand in dict.fromkeys(step.operands) if step.name else ():
            rest = program.steps[:k] + program.steps[k + 1 :]
            yield _renamed(replace(program, steps=rest), {step.name: operand})


def fewer_options(program: Program) -> Iterator[Program]:
    yield replace(program, options={})
    for name in program.options:
        yield replace(program, options={n: v for n, v in program.options.items() if n != name})


def plainer_inputs(program: Program) -> Iterator[Program]:
    for k, item in enumerate(program.inputs):
        for plainer in (
            replace(item, base="", layout="contiguous"),
            replace(item, special=False),
            replace(item, dtype="float32"),
            replace(item, seed=1),
        ):
            if plainer != item:
                inputs = program.inputs[:k] + (plainer,) + program.inputs[k + 1 :]
                yield replace(program, inputs=inputs)


def smaller_sizes(program: Program) -> Iterator[Program]:
    """Make one size smaller in all inputs of a call, or remove a dimension of one input."""
    for call in range(program.calls):
        sizes = sorted({n for i in program.inputs for n in i.shapes[call] if n > 1}, reverse=True)
        for n in sizes:
            for smaller in dict.fromkeys((1, 2, 3, n // 2, n - 1)):
                if smaller < n:
                    yield _resized(program, call, n, smaller)
    for k, item in enumerate(program.inputs):
        for d in range(len(item.shape) if not item.base else 0):
            shapes = [s[:d] + s[d + 1 :] for s in item.shapes]
            fewer = replace(item, layout="contiguous").reshaped(shapes)
            yield replace(program, inputs=program.inputs[:k] + (fewer,) + program.inputs[k + 1 :])


def _resized(program: Program, call: int, size: int, smaller: int) -> Program:
    def resized(item: Input) -> Input:
        shapes = list(item.shapes)
        for k in range(len(shapes)) if item.parameter else [call]:  # a parameter has one shape
            shapes[k] = tuple(smaller if m == size else m for m in shapes[k])
        return item.reshaped(shapes)

    return replace(program, inputs=tuple(map(resized, program.inputs)))


def _renamed(program: Program, names: dict[str, str]) -> Program:
    def new(name: str) -> str:
        return names.get(name, name)

    return replace(
        program,
        inputs=tuple(replace(i, name=new(i.name), base=new(i.base)) for i in program.inputs),
        steps=tuple(
            Step(new(s.name), s.template, tuple(new(n) for n in s.operands)) for s in program.steps
        ),
        outputs=tuple(new(n) for n in program.outputs),
    )


def renamed(program: Program) -> Program:
    """Number inputs and values from zero."""
    made = [step.name for step in program.steps if step.name]
    names = {i.name: f"x{k}" for k, i in enumerate(program.inputs)}
    return _renamed(program, names | {name: f"v{k}" for k, name in enumerate(made)})
