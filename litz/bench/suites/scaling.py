"""Suite `scaling`: compile time by numbers of ops and of kernels, time by the number of threads.

In: nothing. Out: cases of 250 to 4,000 ops and of 100 to 10,000 kernels, each in fresh processes,
and of 1 to N threads. The facts `ms an op` and `ms a kernel` should be the same on every line of a
program, but for what a process does once. Example: `chain 4000 ops`, `gelu 2 threads`.
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
KERNELS = (100, 300, 1000, 3000, 10_000)
THREADS = tuple(takewhile(lambda n: n <= (os.cpu_count() or 1), (1, 2, 4, 8, 16, 32, 64)))


def chain(ops: int, x: Tensor, _: Tensor) -> Tensor:
    """Add, halve, cosine, repeated. A cosine is read by the next add and by the one after it."""
    values = [x, x, x, x]
    for k in range(ops):
        near = values[-1]
        if k % 3 == 0:
            values.append(near + values[-4])
        else:
            values.append(near * 0.5 if k % 3 == 1 else torch.cos(near))
    return values[-1]


def tree(ops: int, x: Tensor, y: Tensor) -> Tensor:
    """+ and * alternate, with x used twice by each *: fully inlined, it doubles every second op.

    From below 1, x * x + y with y in (-0.1, 0) goes to a fixed point: no overflow, no chaos.
    """
    for k in range(ops):
        x = x + y if k % 2 else x * x
    return x


def sums(kernels: int, x: Tensor, _: Tensor) -> Tensor:
    """Sums of rows and of columns in turns: each is a kernel, with the difference before it."""
    for k in range(kernels):
        x = 0.1 * (x - x.sum(k % 2, keepdim=True))
    return x


def calls(kernels: int, x: Tensor, _: Tensor) -> Tensor:
    """A kernel and a call of ATen's in turns."""
    for k in range(kernels):
        x = torch.sort(x.sin(), k % 2)[0]
    return x


SHAPES: dict[str, Callable[[int, Tensor, Tensor], Tensor]] = {"chain": chain, "+ * tree": tree}
BY_KERNELS: dict[str, Callable[[int, Tensor, Tensor], Tensor]] = {"sums": sums, "calls": calls}


def many_ops(shape: str, ops: int) -> Program:
    torch.manual_seed(0)
    return Program(partial(SHAPES[shape], ops), (torch.rand(64), -0.1 * torch.rand(64)))


def many_kernels(name: str, kernels: int) -> Program:
    torch.manual_seed(0)
    return Program(partial(BY_KERNELS[name], kernels), (torch.rand(8, 40), torch.rand(8, 40)))


def per_step(
    case: Case, settings: Settings, say: Say, steps: int = 1, what: str = "op"
) -> list[Row]:
    """Compile times, with what one op or kernel costs Litz."""
    rows = measure_compile(case, settings, say, runs=(COLD,))
    found = [(row, row.of(OURS)) for row in rows]
    fact = f"ms {'an' if what == 'op' else 'a'} {what}"
    return [row.with_facts({fact: 1e3 * t.median / steps}) if t else row for row, t in found]


def cases(quick: bool) -> list[Case]:
    by_ops = [
        Case(
            "scaling", shape, f"{ops} ops", partial(many_ops, shape, ops),
            partial(per_step, steps=ops),
        )
        for shape in SHAPES
        for ops in (FEW_OPS if quick else OPS)
    ]  # fmt: skip
    by_kernels = [
        Case(
            "scaling", name, f"{n} kernels", partial(many_kernels, name, n),
            partial(per_step, steps=n, what="kernel"),
        )
        for name in BY_KERNELS
        for n in (FEW_OPS if quick else KERNELS)
    ]  # fmt: skip
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
    return by_ops + by_kernels + by_threads


SUITE = Suite("Compile time by ops and kernels; time of a call by number of threads.", cases)
