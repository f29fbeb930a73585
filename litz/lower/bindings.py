"""Sizes that only data tells: what torch says of where each stands in a result.

In: a captured node that torch marked as telling sizes (`nonzero`, `item`, a mask as index). Out:
`Told`: the `Binding`s of the call it becomes, and what has to be looked at behind it. Example: of
`nonzero(x)` with the shape (u0, 2), u0 is what stands at the path ("shape", 0) of the result.

What torch found out about such a size while it traced is true only if somebody looks. It may take
u0 for the number 5, since `x[x > 0] + torch.ones(5)` needs that, and then it writes 5 everywhere,
in its own assertions too; or for positive, since a decomposition takes a maximum. So every range,
every number that a size was taken for and every conclusion is a check, unless the graph has it.
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
from litz.ir.program import Binding
from litz.ir.sizes import difference, roots
from litz.lower.symbols import GREATEST, LOWEST, environment_of, of_sympy, symbol_times

METHODS = {"size": "shape", "stride": "stride", "storage_offset": "offset"}
# Of a comparison: which operand is the greater one, which the lesser, and by how much at least.
ORDERS = {"ge": (0, 1, 0), "gt": (0, 1, 1), "le": (1, 0, 0), "lt": (1, 0, 1)}


@dataclass(frozen=True)
class Told:
    """What a node tells: sizes, and conditions that torch takes for granted of them."""

    binds: tuple[Binding, ...] = ()
    believed: tuple[Expr, ...] = ()


def told_by(node: torch.fx.Node, known: Collection[Expr]) -> Told:
    """The sizes that a node tells and that are not `known` before it; none of most nodes."""
    found = node.meta.get("unbacked_bindings")
    environment = environment_of(node.meta.get("val")) if found else None
    if environment is None or node.op == "placeholder":  # a saved size is an argument by now
        return Told()
    binds: list[Binding] = []
    believed: list[Expr] = []
    for symbol, path in symbolic_shapes.resolve_unbacked_bindings(environment, found).items():
        steps, divisor = _path(str(symbol), path)
        # What torch has found out meanwhile: u0 may be 8, or another size, or twice another.
        taken_for = of_sympy(environment.replace(symbol), environment)
        told, factor = symbol_times(environment, symbol)
        if told is not None and told not in known and told not in [b.symbol for b in binds]:
            binds.append(Binding(told, steps, divisor * factor))
            believed += _range(binds[-1])
        if told is None or told.attr[0] != str(symbol):
            read = size(str(symbol), LOWEST)  # under its own name, to see whether it is that
            binds.append(Binding(read, steps, divisor))
            believed.append(apply("eq", read, taken_for))
        for concluded in environment.deferred_runtime_asserts.get(symbol, ()):
            believed.append(of_sympy(environment.replace(concluded.expr), environment))
    return Told(tuple(binds), tuple(c for c in believed if not c.is_const))


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


def _range(binding: Binding) -> Iterator[Expr]:
    symbol = binding.symbol
    if symbol.dtype is not I64:
        return
    _, low, high, _ = symbol.attr
    if low > (0 if "shape" in binding.path else LOWEST):
        yield apply("ge", symbol, integer(low))
    if high is not None and high < GREATEST:
        yield apply("le", symbol, integer(high))


def asserted(nodes: Iterable[torch.fx.Node]) -> set[Expr]:
    """The conditions that the graph itself checks."""
    found: set[Expr] = set()
    for node in nodes:
        if node.target is torch.ops.aten._assert_scalar.default:
            value = getattr(node.args[0], "meta", {}).get("val")
            if isinstance(value, torch.SymBool):
                found.add(_canonical(of_sympy(value.node.expr, value.node.shape_env)))
    return found


class Unchecked:
    """Conditions that wait until every size in them is told; each is given once, and none that the
    graph checks itself."""

    def __init__(self, checked: set[Expr]) -> None:
        self.checked = checked
        self.waiting: list[Expr] = []

    def add(self, conditions: Iterable[Expr]) -> None:
        """Remember conditions that nobody checks yet."""
        for condition in conditions:
            form = _canonical(condition)
            if form not in self.checked:
                self.checked.add(form)
                self.waiting.append(condition)

    def ready(self, told: set[Expr]) -> list[Expr]:
        """Those that can be checked by now."""
        found = [c for c in self.waiting if roots(c) <= told]
        self.waiting = [c for c in self.waiting if c not in found]
        return found


def _canonical(condition: Expr) -> Expr:
    """One form of the comparisons that say the same: 0 <= u0, u0 >= 0 and u0 > -1."""
    if condition.op not in ORDERS or any(a.dtype is not I64 for a in condition.args):
        return condition
    greater, lesser, least = ORDERS[condition.op]
    apart = difference(condition.args[greater], condition.args[lesser])
    return apply("ge", simplify(apply("sub", apart, integer(least))), ZERO)
