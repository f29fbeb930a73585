"""Looks at results, one step after the other: what `nan_asserts` asks for.

In: a graph and its constants. Out: `LookAt` steps. The infinities of a mask are meant: they come
from constants of the program, and pass on to what is computed of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.utils._pytree as pytree

from litz.ir.call_plan import LookAt, origins_text
from litz.ir.expr import walk
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, exprs_of, read, written


class Looks:
    """`infinite` are buffers that certainly hold infinities which are meant, `seen` those that a
    look says it of."""

    def __init__(self, graph: KernelGraph, constants: dict[str, torch.Tensor]) -> None:
        floats = [(n, tensor) for n, tensor in constants.items() if tensor.is_floating_point()]
        self.infinite = {name for name, tensor in floats if bool(tensor.isinf().any())}
        self.seen: set[str] = set()
        for step in graph.body[: graph.prepared]:
            if self._meant(step) is True:
                self.infinite |= {buffer.name for buffer in written(step)}

    def at(
        self, buffers: list[Buffer], step: Kernel | Extern | None, meant: bool
    ) -> Iterator[LookAt]:
        """Look at inputs, or at what a step wrote."""
        found = meant if step is None else self._meant(step)
        where = origins_text(step.origins if step else ())
        for buffer in (b for b in buffers if b.dtype.is_float):
            yield LookAt(buffer, where, found)
            self.seen.add(buffer.name)

    def _meant(self, step: Kernel | Extern) -> bool | tuple[str, ...]:
        """Whether infinities of a step's results may be meant: by it, or by what it reads."""
        names = [b.name for b in read(step)]
        if _has_infinity(step) or not self.infinite.isdisjoint(names):
            return True
        return tuple(n for n in dict.fromkeys(names) if n in self.seen) or False


def _has_infinity(step: Kernel | Extern) -> bool:
    """Whether a step computes with a constant that is infinite."""
    if isinstance(step, Kernel):
        found = [node.attr for node in walk(*exprs_of(step)) if node.op == "const"]
    else:
        found = pytree.tree_leaves((step.args, step.kwargs))
    return any(isinstance(value, float) and math.isinf(value) for value in found)
