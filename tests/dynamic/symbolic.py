"""A function compiled once for many sizes, for the tests.

In: a function. Out: `Symbolic`, which is called like it, holds every result against eager and
against the interpreter, and counts what was compiled. Example: `Symbolic(torch.relu)(x).graphs`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from litz.backend import litz
from litz.ir.interpret import run_kernels
from litz.ir.program import Extern
from litz.report import Explanation


class Symbolic:
    """Nothing may fall back: what fails, raises."""

    def __init__(
        self, function: Callable[..., Any], dynamic: bool | None = True, **options: Any
    ) -> None:
        torch._dynamo.reset()
        self.function, self.notes = function, Explanation()
        self.frames = 0  # times that Dynamo asked for a compile
        self.given: list[torch.Tensor] = []  # what the graph was last called with

        def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
            self.frames += 1
            given = {"on_error": "raise", **options}
            made = litz(module, inputs, options=given, explanation=self.notes)

            def call(*args: Any) -> Any:
                self.given = copy.deepcopy([a for a in args if isinstance(a, torch.Tensor)])
                return made(*args)

            return call

        self.compiled = torch.compile(function, backend=backend, dynamic=dynamic)

    @property
    def graphs(self) -> int:
        """Graphs compiled for all sizes; none may be compiled for each."""
        assert not self.notes.by_size and not self.notes.fallbacks, self.notes
        return len(self.notes.graphs)

    @property
    def aten_ops(self) -> set[str]:
        return {op.split(".")[1] for op in self.notes.aten_ops}

    def __call__(self, *inputs: Any) -> Any:
        return self.compiled(*inputs)

    def check(self, *inputs: Any, interpret: bool = True, **close: float) -> None:
        """Equal to eager, inputs and results; and kernel by kernel to the interpreter."""
        mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
        found, expected = self.compiled(*mine), self.function(*theirs)
        torch.testing.assert_close(found, expected, **close)
        torch.testing.assert_close(mine, theirs, **close)
        if interpret:
            (report,) = self.notes.graphs
            graph = report.plan.graph
            meant = run_kernels(graph, _in_order(graph.inputs, self.given), extern=_called)
            shown = [t for t in pytree.tree_leaves(expected) if isinstance(t, torch.Tensor)]
            arrays = [a for a in meant if isinstance(a, np.ndarray)]
            for array, tensor in zip(arrays, shown, strict=True):
                torch.testing.assert_close(torch.from_numpy(array), tensor, **close)


def _in_order(items: Any, tensors: list[torch.Tensor]) -> list[Any]:
    """The arguments of the graph: tensors as they come, and between them the sizes they show."""
    numbers: dict[str, int] = {}
    rest = iter(tensors)
    buffers = [(b, next(rest)) for b in items if hasattr(b, "shape")]
    for buffer, tensor in buffers:
        for n, number in zip(buffer.shape, tensor.shape, strict=True):
            if n.op == "size":
                numbers[n.attr[0]] = number
    known = {b.name: t.numpy() for b, t in buffers}
    return [known[i.name] if hasattr(i, "shape") else numbers[i.attr[0]] for i in items]


def _called(step: Extern, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    namespace, name, overload = step.target.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    args = pytree.tree_map(lambda a: torch.from_numpy(a) if isinstance(a, np.ndarray) else a, args)
    result = op(*args, **kwargs)
    results = [result] if step.single else list(result or ())
    return [t.numpy() if isinstance(t, torch.Tensor) else t for t in results]


def marked(tensor: torch.Tensor, *dims: int) -> torch.Tensor:
    """A tensor with dynamic dimensions."""
    for d in dims:
        torch._dynamo.mark_dynamic(tensor, d)
    return tensor
