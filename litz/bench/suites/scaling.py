"""Suite `scaling`: compile time against the number of ops, and time against the number of threads.

In: nothing. Out: cases of 250 to 4,000 ops, each in fresh processes, and of 1 to N threads. The
fact `ms an op` should be the same on every line. Example: `chain 4000 ops`, `gelu 2 threads`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor

from litz.bench.calls import measure_calls
from litz.bench.case import Case, Program, Say, Settings, Suite
from litz.bench.fresh import COLD, measure_compile
from litz.bench.results import OURS, Row
from litz.bench.suites import kernels
from litz.bench.suites.cpu import model

OPS = (250, 500, 1000, 2000, 4000)
FEW_OPS = (20, 40)
THREADS = tuple(takewhile(lambda n: n <= (os.cpu_count() or 1), (1, 2, 4, 8, 16, 32, 64)))


def chain(ops: int, x: Tensor, _: Tensor) -> Tensor:
    """Add, halve, cosine, over again. A cosine is read by the next add and by the one after it."""
    values = [x, x, x, x]
    for k in range(ops):
        near = values[-1]
        if k % 3 == 0:
            values.append(near + values[-4])
        else:
            values.append(near * 0.5 if k % 3 == 1 else torch.cos(near))
    return values[-1]


def tree(ops: int, x: Tensor, y: Tensor) -> Tensor:
    """+ and * in turns, with x used twice by each *: written out, it doubles with every second op.

    From below 1, x * x + y with y in (-0.1, 0) goes to a fixed point: no overflow, no chaos.
    """
    for k in range(ops):
        x = x + y if k % 2 else x * x
    return x


SHAPES: dict[str, Callable[[int, Tensor, Tensor], Tensor]] = {"chain": chain, "+ * tree": tree}


def many_ops(shape: str, ops: int) -> Program:
    torch.manual_seed(0)
    return Program(partial(SHAPES[shape], ops), (torch.rand(64), -0.1 * torch.rand(64)))


def per_op(case: Case, settings: Settings, say: Say, ops: int = 1) -> list[Row]:
    """Compile times, with what one op costs Litz."""
    rows = measure_compile(case, settings, say, runs=(COLD,))
    found = [(row, row.of(OURS)) for row in rows]
    return [row.with_facts({"ms an op": 1e3 * t.median / ops}) if t else row for row, t in found]


def cases(quick: bool) -> list[Case]:
    by_ops = [
        Case(
            "scaling", shape, f"{ops} ops", partial(many_ops, shape, ops), partial(per_op, ops=ops)
        )
        for shape in SHAPES
        for ops in (FEW_OPS if quick else OPS)
    ]
    size = "L1" if quick else kernels.MEMORY
    programs = {
        "bert": partial(model, "bert", 2, quick),
        "gelu": partial(kernels.program, "gelu", size),
        "softmax": partial(kernels.program, "softmax", size),
        "full sum": partial(kernels.program, "full sum", size),
    }
    by_threads = [
        Case("scaling", name, f"{n} thread{'s' * (n > 1)}", build, measure_calls, threads=n)
        for name, build in programs.items()
        for n in THREADS
    ]
    return by_ops + by_threads


SUITE = Suite("Compile time by number of ops; time of a call by number of threads.", cases)
