"""Sizes that a call in the middle of a graph tells: what the text does once it knows them.

In: the calls that tell sizes, and all that waits for them. Out: lines of Python. Of `nonzero(x)`:

    result = op_3(x0)
    n_u0 = result.shape[0]
    table[7] = n_u0
    if not (n_u0 <= 8): check_failed("Runtime assertion failed ...", "... (model.py:12)", u0=n_u0)
    y5 = empty((n_u0, ), (1, ), float32)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from litz.ir.dtypes import BOOL, F64
from litz.ir.expr import Expr, apply, const, integer
from litz.ir.program import Binding, Buffer, Extern
from litz.ir.sizes import of_buffer, roots
from litz.runtime.asserts import where
from litz.runtime.numbers import local_name, number_text, table_text

PARTS = {"shape": ".shape", "stride": ".stride()"}


class LateSizes:
    """Which sizes are told, and when. `entries` are numbers of the table by their place in it."""

    def __init__(self, bound: frozenset[Expr]) -> None:
        self.bound = bound
        self.told: frozenset[Expr] = frozenset()
        self.made: list[Expr] = []  # sizes that are made of others
        self.entries: dict[int, Expr] = {}
        # Outputs and workspaces, which are allocated as soon as their size is known.
        self.outputs: list[Buffer] = []

    def await_numbers(
        self, symbols: Iterable[Expr], computed: Mapping[str, Expr], layout: Mapping[str, int]
    ) -> None:
        """Note what follows from sizes that are told."""
        self.made = [s for s in symbols if s.args and self.concerns(s)]
        self.entries = {layout[n]: value for n, value in computed.items() if self.concerns(value)}

    def concerns(self, *sizes: Expr) -> bool:
        """Whether something follows from sizes that a call of the graph tells."""
        return bool(self.bound) and bool(self.bound & roots(*sizes))

    def told_lines(self, step: Extern, result: str, operand: str) -> list[str]:
        """Name the sizes that a result tells, and all numbers that follow from them."""
        lines = [f"{local_name(b.symbol)} = {told_text(b, result, operand)}" for b in step.binds]
        before = self.told
        lines += self.named_lines([b.symbol for b in step.binds])
        numbers = [(k, value) for k, value in self.entries.items() if self._follows(value, before)]
        return lines + [f"table[{entry}] = {table_text(value)}" for entry, value in numbers]

    def named_lines(self, symbols: Iterable[Expr]) -> list[str]:
        """Name the sizes that are made of some that are known from here on."""
        before, self.told = self.told, self.told.union(symbols)
        made = [s for s in self.made if self._follows(s, before)]
        return [f"{local_name(s)} = {number_text(s.args[0])}" for s in made]

    def _follows(self, value: Expr, before: frozenset[Expr]) -> bool:
        """Whether a number can be computed now, and could not before."""
        needed = self.bound & roots(value)
        return needed <= self.told and not needed <= before

    def ready(self) -> list[Buffer]:
        """Outputs and workspaces whose sizes are known by now, once each."""
        found = [b for b in self.outputs if (of_buffer(b) & self.bound) <= self.told]
        self.outputs = [b for b in self.outputs if b not in found]
        return found


def told_text(binding: Binding, result: str, operand: str) -> str:
    """Where the result of a call tells a size."""
    if binding.path == ("offset",):
        return f"{result}.storage_offset() - {operand}.storage_offset()"
    steps = [f"[{part}]" if isinstance(part, int) else PARTS[part] for part in binding.path]
    number = "".join([result, *steps])
    if not steps:  # a number itself, which may be a truth
        number = f"{'float' if binding.symbol.dtype is F64 else 'int'}({number})"
    return number if binding.divisor == 1 else f"{number} // {binding.divisor}"


def check_line(step: Extern) -> str:
    """A check that the program makes of symbolic numbers; nothing if it always holds."""
    condition, message = _checked(step)
    if condition.is_const and condition.attr:
        return ""
    known = sorted(roots(condition), key=lambda size: str(size.attr[0]))
    values = "".join(f", {size.attr[0]}={local_name(size)}" for size in known)
    told = f"{message}, {where(step.origins)!r}{values}"
    return f"if not {number_text(condition)}: check_failed({told})"


def _checked(step: Extern) -> tuple[Expr, str]:
    """What is asked for, and the text of torch's message."""
    if step.target == "aten._assert_scalar.default":
        condition, message = step.args
        known = isinstance(condition, Expr)
        return condition if known else const(bool(condition), BOOL), repr(message)
    given = dict(zip(("size", "min", "max"), step.args, strict=False)) | dict(step.kwargs)
    number = _number(given["size"])
    low, high = given.get("min"), given.get("max")
    truth = const(True, BOOL)
    for op, bound in (("ge", low), ("le", high)):
        if bound is not None:
            truth = apply("and", truth, apply(op, number, _number(bound)))
    limits = ", ".join("" if n is None else str(n) for n in (low, high))
    shown = f"{{{number_text(number)}}}"
    return truth, f'f"Invalid value range for {shown} between [{limits}]."'


def _number(value: Expr | int) -> Expr:
    return value if isinstance(value, Expr) else integer(value)
