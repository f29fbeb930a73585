"""Calls on a GPU that fail, tensors without elements, operands that are kept: by the interpreter.

In: nothing. Out: an error if a call that failed changed the next one, if an empty tensor is not
what eager gives, or if a later call wrote into what an op has kept. `CASES` are part of the cases
beside this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from litz.errors import IndexOutOfRange
from tests import draws
from tests.runtime import keeping
from tests.runtime.faults import Injected, every_step, fail_everywhere

X = torch.randn(6, 6, generator=draws.generator(0))
GOOD, BAD = torch.tensor([5, 2, 0, 1, 4, 3]), torch.tensor([5, 2, 9, 1, 4, 3])
EMPTY = torch.randn(0, 8)


def _gathers(x: torch.Tensor, i: torch.Tensor) -> Any:
    """Kernels with indices around calls with and without a place for their result."""
    rows = (x[i] + 1).softmax(-1)
    ordered = rows.sort(0).values @ x
    return ordered.cumsum(0)[i], ordered


def _everywhere(there: Any) -> None:
    graph, _ = there.graph_of(there.tiled(_gathers, X, GOOD))
    failures = fail_everywhere(graph, lambda: [X, GOOD], lambda: [X, BAD], late=True)
    assert failures >= 4 * 15


def _cause(there: Any) -> None:
    """What a kernel noted came before what a call raises behind it, and is told by this call."""
    graph, _ = there.graph_of(there.tiled(_gathers, X, GOOD))
    scope = graph.call.__globals__
    (first, *_) = [name for name in every_step(graph) if name.startswith("op_")]
    before = scope[first]

    def fails(*_: Any, **__: Any) -> None:
        raise Injected(first)

    scope[first] = fails
    try:
        graph([X, BAD])
    except IndexOutOfRange as error:
        assert isinstance(error.__cause__, Injected)
    else:
        raise AssertionError("nothing was raised")
    scope[first] = before
    torch.testing.assert_close(graph([X, GOOD]), list(_gathers(X, GOOD)))


def _both(x: torch.Tensor) -> Any:
    """An empty result that a call reads, too."""
    y = x + 1
    return y, y.sort(-1).values, F.pad(y, (1, 2, 3, 0))


def _empty(function: Callable[[torch.Tensor], Any]) -> Callable[[Any], None]:
    def check(there: Any) -> None:
        graph, _ = there.graph_of(there.tiled(function, EMPTY))
        wanted = function(EMPTY)
        listed = list(wanted) if isinstance(wanted, tuple) else [wanted]
        for _ in range(2):
            found = graph([EMPTY])
            torch.testing.assert_close(found, listed)
            assert [t.stride() for t in found] == [t.stride() for t in listed]

    return check


def _kept(there: Any) -> None:
    """Operands of an op that keeps them have memory of their own, and no kernel inherits it."""
    inputs = [X + k for k in range(3)]
    for name, function in keeping.FUNCTIONS.items():
        if name != "inside a branch":  # Dynamo's to trace
            graph, _ = there.graph_of(there.tiled(function, X))
            keeping.check(function, lambda x, graph=graph: graph([x])[0], inputs)


# What is run.
CASES: dict[str, Callable[[Any], None]] = {
    "calls that fail at each line": _everywhere,
    "an error that a kernel noted before": _cause,
    "operands that are kept": _kept,
    "an empty operand": _empty(lambda x: (x + 1).sort(-1).values),
    "an empty result that a call reads": _empty(_both),
    "an empty operand beside others": _empty(
        lambda x: ((x * 2).sort(0).values.sum(0) + (x.t() @ x).sort(-1).values.sum(0)).sort().values
    ),
}
