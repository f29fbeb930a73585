"""Work grows with the kernels and no faster, through link: counted in calls and in lines of IR.

Python's work is counted in calls, its own and those of C functions. LLVM's cannot be: it is linear
in the text of a module while no function grows, and each function has a price of its own. So
functions are counted, and the lines of the longest one.
"""

from __future__ import annotations

import cProfile
import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from litz.compiler import compile_graph
from litz.config import snapshot
from litz.cyclic_gc import THRESHOLDS, fewer_collections
from litz.report import Report
from tests.numerics.table import measured
from tests.stages import compiled, copied, through_aot

FEW, MANY = 100, 500
# Work a kernel may grow by this much: the last batch of a short program is not full.
SLACK = 1.1
Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def sums(count: int) -> Program:
    """Sums of rows and of columns in turns: none fuses with the next."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for k in range(count):
            x = x - x.sum(k % 2, keepdim=True)
        return x

    return function, (torch.randn(8, 40),)


def calls(count: int) -> Program:
    """A kernel, a call of ATen's, a kernel: as many segments as kernels."""

    def function(x: torch.Tensor) -> torch.Tensor:
        for k in range(count):
            x = torch.sort(x.sin(), k % 2)[0]
        return x

    return function, (torch.randn(8, 40),)


def layers(count: int) -> Program:
    """Products with as many weights, and what follows each."""

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for w in weights:
            x = torch.nn.functional.gelu(x @ w)
        return x

    return function, tuple(torch.randn(16, 16) / 4 for _ in range(count + 1))


def updates(count: int) -> Program:
    """An optimizer's step: no update waits for another."""

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        for p, g, m in zip(tensors[::3], tensors[1::3], tensors[2::3], strict=True):
            m.mul_(0.9).add_(g, alpha=0.1)
            p.sub_(m, alpha=0.01)
        return tensors[0].sum()

    return function, tuple(torch.randn(4, 4) for _ in range(3 * count))


def sizes(count: int) -> Program:
    """Values of many sizes, read long after they were made: the arena's free blocks are many."""

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        made = [x.cumsum(k % 2) for k, x in enumerate(inputs)]
        total = inputs[0].sum()
        for y in made[::3] + made[1::3] + made[2::3]:
            total = ((total + y).cumsum(0) * 0.1).sum()
        return total

    return function, tuple(torch.randn(8, 3 + k % 7) for k in range(count // 2))


PROGRAMS: dict[str, Callable[[int], Program]] = {
    "sums": sums, "calls": calls, "layers": layers, "updates": updates, "sizes": sizes,
}  # fmt: skip


def _compiled(program: Program) -> tuple[int, Report]:
    """The calls of every stage, link with them, and what they made."""
    found: list[tuple[int, Report]] = []

    def compiler(module: torch.fx.GraphModule) -> Callable[..., Any]:
        profile = cProfile.Profile()
        config = snapshot({})
        profile.enable()
        graph, report = compile_graph(module, "inference", config)
        profile.disable()
        found.append((sum(entry.callcount for entry in profile.getstats()), report))
        return graph.call

    function, inputs = program
    with torch.no_grad():
        through_aot(function, compiler)(*inputs)
    return found[0]


def _functions(report: Report) -> list[int]:
    """The lines of each function of the module."""
    bodies = re.split(r"^define ", report.source.text, flags=re.M)[1:]
    return [body.partition("\n}")[0].count("\n") for body in bodies]


@pytest.mark.parametrize("name", PROGRAMS)
def test_work_for_each_kernel_stays_flat_through_link(name: str) -> None:
    make = PROGRAMS[name]
    _compiled(make(50))  # what is made once for a process
    (few, short), (many, long) = _compiled(make(FEW)), _compiled(make(MANY))
    assert len(long.call.kernels) >= 0.9 * MANY
    assert many / MANY < SLACK * few / FEW
    assert len(_functions(long)) <= len(_functions(short)) + 2
    assert max(_functions(long)) <= max(_functions(short)) + 2


# Segments are functions by name up to 32 of them, and by number beyond.
@pytest.mark.parametrize(("name", "count"), [*((name, 24) for name in PROGRAMS), ("calls", 70)])
def test_many_kernels_compute_what_eager_does(name: str, count: int) -> None:
    """Results, and the inputs that were written to."""
    function, inputs = PROGRAMS[name](count)
    exact, eager, ours = [x.double() for x in inputs], list(map(copied, inputs)), [*inputs]
    run = compiled(function)
    errors = measured([function(*exact), *exact], [function(*eager), *eager], [run(*ours), *ours])
    for e in errors:
        assert e.litz <= 4 * max(e.eager, 1), e  # sums are added up in another order


def test_the_collector_is_as_it_was_behind_a_compile() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(701, 11, 12)
        with pytest.raises(ValueError), fewer_collections():
            assert gc.get_threshold() == THRESHOLDS
            raise ValueError
        assert gc.get_threshold() == (701, 11, 12)
        gc.set_threshold(0, 11, 12)  # switched off by the program
        with fewer_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
