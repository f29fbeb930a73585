"""Sizes that only data tells: what torch says of where each stands in a result.

In: a captured node that torch marked as telling sizes (`nonzero`, `item`, a mask as index). Out:
`Binding`s of the call it becomes. Example: of `nonzero(x)` with the shape (u0, 2), u0 is what
stands at the path ("shape", 0) of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.fx
from torch.fx.experimental import symbolic_shapes

from litz.errors import SizeUnknown
from litz.ir.program import Binding
from litz.lower.symbols import environment_of, symbol_times

METHODS = {"size": "shape", "stride": "stride", "storage_offset": "offset"}


def bindings_of(node: torch.fx.Node) -> tuple[Binding, ...]:
    """The sizes that a node tells; none of most nodes."""
    found = node.meta.get("unbacked_bindings")
    if not found or node.op == "placeholder":  # a saved size is an argument by now
        return ()
    return tuple(_bindings(node, found))


def _bindings(node: torch.fx.Node, found: Any) -> Iterator[Binding]:
    environment = environment_of(node.meta.get("val"))
    if environment is None:  # every size that it told turned out to be a number
        return
    seen = set()
    for symbol, path in symbolic_shapes.resolve_unbacked_bindings(environment, found).items():
        # What torch has found out meanwhile: u0 may be 8, or another size, or twice another.
        size, factor = symbol_times(environment, symbol)
        if size is None or size in seen:
            continue
        seen.add(size)
        steps, divisor = _path(str(symbol), path)
        yield Binding(size, steps, divisor * factor)


def _path(name: str, path: Any) -> tuple[tuple[str | int, ...], int]:
    steps: list[str | int] = []
    divisor = 1
    for key in path:
        kind = type(key).__name__
        if kind == "SequenceKey":
            steps.append(key.idx)
        elif kind == "CallMethodKey" and key.name in METHODS:
            steps.append(METHODS[key.name])
        elif kind == "DivideByKey" and isinstance(key.divisor, int):
            divisor *= key.divisor
        elif kind != "ConvertIntKey":  # a truth is the number one or zero
            raise SizeUnknown(name, f"it stands at {key} of a result")
    return tuple(steps), divisor
