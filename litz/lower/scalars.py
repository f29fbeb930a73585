"""Symbolic numbers that the program computes from sizes, as expressions.

In: a captured node whose value is a SymInt, a SymFloat or a SymBool. Out: an `Expr`, an int, or a
float. Integers come from torch's own expression; floats and bools follow the node. Example:
`1.0 / x.shape[0]` is `div(f64(1.0), cast.f64(s0))`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from litz.ir.dtypes import BOOL, F64
from litz.ir.expr import Expr, apply, cast, const, integer
from litz.lower.symbols import number_or_size, truth_of

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _expr(value: Any) -> Expr:
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool):
        return const(value, BOOL)
    return integer(value) if isinstance(value, int) else const(value, F64)


def _float(value: Any) -> Expr:
    return cast(_expr(value), F64)


def _alike(op: str) -> Callable[..., Expr]:
    """An op on integers, or on floats if an operand is one."""

    def combined(*args: Any) -> Expr:
        found = [_expr(a) for a in args]
        if any(a.dtype is F64 for a in found):
            found = [cast(a, F64) for a in found]
        return apply(op, *found)

    return combined


def _remainder(*args: Any) -> Expr:
    """Python's remainder, for floats and integers: its sign is the divisor's."""
    is_float = any(_expr(a).dtype is F64 for a in args)
    return _alike("remainder" if is_float else "mod")(*args)


def _of_floats(op: str) -> Callable[..., Expr]:
    return lambda *args: apply(op, *map(_float, args))


RULES: dict[Any, Callable[..., Expr]] = {
    operator.add: _alike("add"),
    operator.sub: _alike("sub"),
    operator.mul: _alike("mul"),
    operator.neg: _alike("neg"),
    operator.floordiv: _alike("floordiv"),
    operator.mod: _remainder,
    operator.truediv: _of_floats("div"),
    operator.pow: _of_floats("pow"),
    operator.lt: _alike("lt"),
    operator.le: _alike("le"),
    operator.gt: _alike("gt"),
    operator.ge: _alike("ge"),
    operator.eq: _alike("eq"),
    operator.ne: _alike("ne"),
    operator.and_: _alike("and"),
    operator.or_: _alike("or"),
    math.sqrt: _of_floats("sqrt"),
    torch.sym_float: _float,
    torch.sym_not: lambda x: apply("eq", _expr(x), const(False, BOOL)),
    torch.sym_max: _alike("max"),
    torch.sym_min: _alike("min"),
    torch._sym_sqrt: _of_floats("sqrt"),  # type: ignore[attr-defined]
}


def number(like: Any) -> Any:
    """A symbolic number as torch's expression."""
    return number_or_size(like) if isinstance(like, torch.SymInt) else truth_of(like)


def scalar(node: torch.fx.Node, args: Any) -> Any:
    """The value of a node that computes a number."""
    like = node.meta.get("val")
    rule = None if isinstance(like, torch.SymInt) else RULES.get(node.target)
    return number(like) if rule is None else rule(*args)
