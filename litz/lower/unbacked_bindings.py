"""Unbacked sizes: where each is found in the result of the call that binds it.

In: a captured node that binds unbacked sizes (`nonzero`, `item`, a mask as index). Out:
`UnbackedBindings`: the `UnbackedBinding`s of the call it becomes, and conditions to check after it.
Example: of `nonzero(x)` with the shape (u0, 2), u0 is at the path ("shape", 0) of the result.

What torch assumed about such a size while tracing holds only if it is checked at run time. Torch
may take u0 to be 5, since `x[x > 0] + torch.ones(5)` needs that, and then it writes 5 everywhere,
in its own assertions too; or take it to be positive, since a decomposition takes a maximum.
Therefore every range, every substituted number and every deferred assertion becomes a check, unless
the graph has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.fx.experimental import symbolic_shapes

from litz.errors import SizeUnknown
from litz.ir.dtypes import I64
from litz.ir.expr import Expr, apply, integer, size
from litz.ir.index import ZERO, simplify
from litz.ir.program import UnbackedBinding
from litz.ir.sizes import difference, roots
from litz.lower.symbols import GREATEST, LOWEST, environment_of, of_sympy, symbol_times

METHODS = {"size": "shape", "stride": "stride", "storage_offset": "offset"}
# Comparison -> the position of its greater operand, of its lesser one, and their least distance.
ORDERS = {"ge": (0, 1, 0), "gt": (0, 1, 1), "le": (1, 0, 0), "lt": (1, 0, 1)}


@dataclass(frozen=True)
class UnbackedBindings:
    """The sizes that a node binds, and conditions that torch assumes of them."""

    binds: tuple[UnbackedBinding, ...] = ()
    assumptions: tuple[Expr, ...] = ()


def unbacked_bindings_of(node: torch.fx.Node, known: Collection[Expr]) -> UnbackedBindings:
    """The sizes that a node binds and that are not `known` before it; most nodes bind none."""
    found = node.meta.get("unbacked_bindings")
    environment = environment_of(node.meta.get("val")) if found else None
    if environment is None or node.op == "placeholder":  # a saved size is an argument of this graph
        return UnbackedBindings()
    binds: list[UnbackedBinding] = []
    assumptions: list[Expr] = []
    for symbol, path in symbolic_shapes.resolve_unbacked_bindings(environment, found).items():
        steps, divisor = _path(str(symbol), path)
        # What torch has learned since: u0 may be 8, or another size, or twice another.
        taken_for = of_sympy(environment.replace(symbol), environment)
        bound, factor = symbol_times(environment, symbol)
        if bound is not None and bound not in known and bound not in [b.symbol for b in binds]:
            binds.append(UnbackedBinding(bound, steps, divisor * factor))
            assumptions += _range(binds[-1])
        if bound is None or bound.attr[0] != str(symbol):
            read = size(str(symbol), LOWEST)  # under its own name, to check that it is equal
            binds.append(UnbackedBinding(read, steps, divisor))
            assumptions.append(apply("eq", read, taken_for))
        for concluded in environment.deferred_runtime_asserts.get(symbol, ()):
            assumptions.append(of_sympy(environment.replace(concluded.expr), environment))
    return UnbackedBindings(tuple(binds), tuple(c for c in assumptions if not c.is_const))


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
        elif kind != "ConvertIntKey":  # a bool is one or zero
            raise SizeUnknown(name, f"it stands at {key} of a result")
    return tuple(steps), divisor


def _range(binding: UnbackedBinding) -> Iterator[Expr]:
    symbol = binding.symbol
    if symbol.dtype is not I64:
        return
    _, low, high, _ = symbol.attr
    if low > (0 if "shape" in binding.path else LOWEST):
        yield apply("ge", symbol, integer(low))
    if high is not None and high < GREATEST:
        yield apply("le", symbol, integer(high))


def asserted_conditions(nodes: Iterable[torch.fx.Node]) -> set[Expr]:
    """The conditions that the graph itself asserts."""
    found: set[Expr] = set()
    for node in nodes:
        if node.target is torch.ops.aten._assert_scalar.default:
            value = getattr(node.args[0], "meta", {}).get("val")
            if isinstance(value, torch.SymBool):
                found.add(_canonical(of_sympy(value.node.expr, value.node.shape_env)))
    return found


class DeferredAsserts:
    """Conditions that wait until every size in them is bound. Each is checked once, and none that
    the graph asserts itself."""

    def __init__(self, checked: set[Expr]) -> None:
        self.checked = checked
        self.waiting: list[Expr] = []

    def add(self, conditions: Iterable[Expr]) -> None:
        """Add conditions that nothing checks yet."""
        for condition in conditions:
            form = _canonical(condition)
            if form not in self.checked:
                self.checked.add(form)
                self.waiting.append(condition)

    def ready(self, bound: set[Expr]) -> list[Expr]:
        """Conditions whose sizes are all bound by now."""
        found = [c for c in self.waiting if roots(c) <= bound]
        self.waiting = [c for c in self.waiting if c not in found]
        return found


def _canonical(condition: Expr) -> Expr:
    """One form for equivalent comparisons: 0 <= u0, u0 >= 0 and u0 > -1."""
    if condition.op not in ORDERS or any(a.dtype is not I64 for a in condition.args):
        return condition
    greater, lesser, least = ORDERS[condition.op]
    apart = difference(condition.args[greater], condition.args[lesser])
    return apply("ge", simplify(apply("sub", apart, integer(least))), ZERO)
