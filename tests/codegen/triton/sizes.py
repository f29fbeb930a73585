"""Symbolic sizes on a GPU, as the interpreter runs them: one compile serves every size.

In: nothing. Out: the kernels, or an error if a program gives anything but what eager gives at some
size, touches memory beside its tensors, or is compiled twice. `CASES` are part of the cases beside
this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tests import draws
from tests.dynamic.symbolic import Symbolic
from tests.dynamic.test_programs import PROGRAMS

# Below and above a block of 1024 points, primes, and the first again: its place is remembered.
SHAPES = ((7, 9), (2, 2), (31, 5), (5, 1031), (7, 9))
# Of places of extremes and of streaming softmaxes, whose function of two values the interpreter
# calls for each element of a block, however few of them count: three seconds a call.
FEW = ((7, 9), (5, 1031), (7, 9))
BY_ELEMENT = ("_columns", "_rows")

MANY = 1000


def _apart(x: torch.Tensor) -> torch.Tensor:
    """Kernels that cannot fuse: intermediates in the arena, and a run of launches."""
    for _ in range(3):
        x = x - x.sum(0) * 0.25
    return x


def _called(x: torch.Tensor) -> torch.Tensor:
    """Calls of ATen's between kernels, over windows of the arena."""
    y = F.gelu(x @ x.t() / 8).sort(1).values
    return (y @ y.relu()).softmax(0)


def _indexed(x: torch.Tensor) -> torch.Tensor:
    i = torch.arange(x.shape[1] - 1, -1, -1) // 2
    return x[:, i] + torch.zeros(x.shape[1], x.shape[0]).index_add(0, i, x.t()).t()


def check(there: Any, program: Callable[..., Any]) -> list[Any]:
    """Every shape, several times, against eager; the kernels."""
    slow = program.__name__ in BY_ELEMENT
    with there.interpreting() as made:
        symbolic = Symbolic(program)
        for k, shape in enumerate(FEW if slow else SHAPES):
            x = torch.randn(shape, generator=draws.generator(k))
            for _ in range(1 if slow or x.numel() >= MANY else 3):  # the interpreter takes its time
                symbolic.check(x, interpret=False, rtol=1e-4, atol=1e-4)
        assert symbolic.graphs == len(made) == 1, len(made)
        (graph,) = made
        kernels = graph.device.source.kernels
        assert any(kernel.sizes for kernel in kernels), "no kernel is given a size"
        return list(kernels)


def narrow(there: Any) -> list[Any]:
    """Where guards bound the sizes, places are counted in 32 bits."""
    with there.interpreting() as made:
        symbolic = Symbolic(lambda x: (x * 2).softmax(-1), dynamic=None)
        for rows in (40, 2, 333):
            x = torch.randn(rows, 50)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=4096)
            symbolic.check(x, interpret=False)
        (graph,) = made
        kernels = graph.device.source.kernels
        assert {kind for kernel in kernels for kind in kernel.sizes} == {"i32"}
        return list(kernels)


def empty(there: Any) -> list[Any]:
    """No programs are no launch: the driver would refuse it. Dynamo gives such a size a graph of
    its own, unless it follows from others; so the graph is called here."""
    with there.interpreting() as made:
        Symbolic(lambda x: x * 2)(torch.ones(3, 9))
        (graph,) = made
        for rows in (4, 0):
            x, before = torch.ones(rows, 9), graph.device.launches
            inputs = [i.value for i in graph.graph.plan.body.inputs]
            (buffer,) = [b for b in inputs if hasattr(b, "shape")]
            sizes = dict(zip(buffer.shape, x.shape, strict=True))
            found = graph([x if b is buffer else sizes[b] for b in inputs])
            assert found[0].equal(x * 2)
            assert graph.device.launches == before + (rows > 0)
        return []


CASES: dict[str, Callable[[Any], list[Any]]] = {
    **{f"any size, {p.__name__}": lambda there, p=p: check(there, p) for p in PROGRAMS},
    "any size, kernels apart": lambda there: check(there, _apart),
    "any size, calls between": lambda there: check(there, _called),
    "any size, nothing left": empty,
    "any size, indices": lambda there: check(there, _indexed),
    "any size, bounded": narrow,
}
