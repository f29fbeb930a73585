"""Constant folding: any op over constants becomes a constant.

In: nothing. Out: `FOLD_RULES`, a row for each op of the table, computed by its NumPy meaning. Ops
without a value at compile time are not folded: integer division by zero, INT_MIN // -1, a negative
integer power, a cast of a float outside the range of the integer type, and checks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from litz.ir.checks import CHECK_OPS
from litz.ir.dtypes import BOOL, DType
from litz.ir.expr import Expr, const
from litz.ir.interpret import convert
from litz.ir.ops import OPS
from litz.ir.special import POLYNOMIALS, SPECIAL
from litz.rewrite.engine import Rule
from litz.rewrite.pattern import SIGNS, Bindings

_INTEGER_DIVISIONS = ("floordiv", "truncdiv", "mod")
# NumPy has no meaning for these on booleans.
_NOT_ON_BOOL = ("sub", "neg", "floordiv", "truncdiv", "mod", "pow", "shl", "shr")


def folded(m: Bindings) -> Expr | None:
    """The value of an op whose operands are constants; None if it has none at compile time."""
    root = m["root"]
    dtype = root.args[-1].dtype
    if dtype.is_narrow or (dtype is BOOL and root.op in _NOT_ON_BOOL) or _has_no_value(root):
        return None
    operands: list[Any] = [np.asarray(a.attr, dtype=a.dtype.numpy) for a in root.args]
    with np.errstate(all="ignore"):
        return _constant(OPS[root.op].numpy(*operands), root.dtype)


def _has_no_value(root: Expr) -> bool:
    if len(root.args) != 2 or not root.args[1].dtype.is_int:
        return False
    x, y = root.args[0].attr, root.args[1].attr
    if root.op in _INTEGER_DIVISIONS:
        # The least integer over -1 traps on some machines.
        return bool(y == 0 or (y == -1 and x == -(1 << (root.dtype.bits - 1))))
    return bool(root.op == "pow" and y < 0)


def converted(m: Bindings) -> Expr | None:
    """The value of a constant in another type, rounded or wrapped as eager does."""
    root, value = m["root"], m["root"].args[0].attr
    source, target = root.args[0].dtype, root.dtype
    if target is BOOL:
        return const(value != 0, BOOL)
    if source.is_float and target.is_int:
        in_range = math.isfinite(value) and -(1 << 63) <= value < (1 << 63)
        result = const(int(value), target) if in_range else None
        # Outside the target's range the result differs between machines.
        return result if result is not None and result.attr == int(value) else None
    return _constant(np.asarray(value, dtype=source.numpy), target)


def _constant(array: Any, dtype: DType) -> Expr:
    with np.errstate(all="ignore"):
        value = convert(np.asarray(array), dtype).item()
    # One NaN for all: its payload and sign mean nothing, and would make equal nodes differ.
    return const(math.nan if value != value else value, dtype)


def _left_side(op: str) -> str:
    names = "ABC"[: OPS[op].arity]
    if op not in SIGNS:
        return f"{op}({', '.join(names)})"
    return f"{names[0]} {SIGNS[op]} {names[1]}" if len(names) == 2 else f"{SIGNS[op]}{names}"


# `where` has rules of its own; a check must happen; special functions of a constant are rare, and
# their reference is slow to compute and, for large arguments, not computable at all.
NOT_FOLDED = {"where", *CHECK_OPS, "gcd", *SPECIAL, *POLYNOMIALS}

FOLD_RULES = [
    *(
        Rule(f"fold_{op}", f"{_left_side(op)} -> K", let={"K": folded})
        for op in OPS
        if op not in NOT_FOLDED
    ),
    Rule("fold_cast", "cast(A) -> K", let={"K": converted}),
    Rule("fold_narrow", "narrow(A) -> K", let={"K": converted}),
]
