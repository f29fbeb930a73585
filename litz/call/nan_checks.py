"""NaN checks: the steps that `nan_asserts` adds after each result.

In: a graph and its constants. Out: `NanCheck` steps. The infinities of a mask are expected: they
come from constants of the program, and spread to all results computed from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.utils._pytree as pytree

from litz.ir.call_plan import NanCheck, origins_text
from litz.ir.expr import walk
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, exprs_of, read, written


class NanChecks:
    """`infinite` are buffers that certainly hold expected infinities; `seen` are buffers that a
    check has looked at, which finds out at run time."""

    def __init__(self, graph: KernelGraph, constants: dict[str, torch.Tensor]) -> None:
        floats = [(n, tensor) for n, tensor in constants.items() if tensor.is_floating_point()]
        self.infinite = {name for name, tensor in floats if bool(tensor.isinf().any())}
        self.seen: set[str] = set()
        for step in graph.body[: graph.prepack_steps]:
            if self._meant(step) is True:
                self.infinite |= {buffer.name for buffer in written(step)}

    def at(
        self, buffers: list[Buffer], step: Kernel | Extern | None, allow_inf: bool
    ) -> Iterator[NanCheck]:
        """The checks of inputs, or of the results of a step."""
        found = allow_inf if step is None else self._meant(step)
        where = origins_text(step.origins if step else ())
        for buffer in (b for b in buffers if b.dtype.is_float):
            yield NanCheck(buffer, where, found)
            self.seen.add(buffer.name)

    def _meant(self, step: Kernel | Extern) -> bool | tuple[str, ...]:
        """Whether infinities in a step's results are expected: True if it, or a buffer that it
        reads, has infinite constants; else the checked buffers that it reads, if any."""
        names = [b.name for b in read(step)]
        if _has_infinity(step) or not self.infinite.isdisjoint(names):
            return True
        return tuple(n for n in dict.fromkeys(names) if n in self.seen) or False


def _has_infinity(step: Kernel | Extern) -> bool:
    """Whether a step has an infinite constant."""
    if isinstance(step, Kernel):
        found = [node.attr for node in walk(*exprs_of(step)) if node.op == "const"]
    else:
        found = pytree.tree_leaves((step.args, step.kwargs))
    return any(isinstance(value, float) and math.isinf(value) for value in found)
