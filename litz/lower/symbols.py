"""The border to torch's symbolic sizes: sympy comes in, sizes of the loop IR go out.

In: ints and SymInts. Out: `Expr`. Sums and products of symbols stay what they are, so that the
index algebra can work with them; anything else (a floor division, a maximum) becomes a size of its
own, made of the others. Example: `s0 * 64` is a polynomial, `s0 // 2` is a size named after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.fx.experimental import symbolic_shapes

from litz.errors import SizeUnknown
from litz.ir.dtypes import F64, I64
from litz.ir.expr import HINT, Expr, apply, cast, const, integer, size
from litz.ir.index import floordiv, modulo, simplify
from litz.ir.sizes import at_least, is_polynomial, named

# What is raised where an answer would hold for some sizes alone, by torch and by us.
GUARDS: tuple[type[Exception], ...] = (
    symbolic_shapes.GuardOnDataDependentSymNode,
    getattr(symbolic_shapes, "_ShapeEnvGuardError", SizeUnknown),  # not before torch 2.13
    SizeUnknown,
)
# Sizes above this are taken for "no limit is known".
UNLIMITED = 1 << 40
_KNOWN: WeakKeyDictionary[symbolic_shapes.ShapeEnv, dict[Any, Expr]] = WeakKeyDictionary()


def sizes(values: Sequence[Any]) -> tuple[Expr, ...]:
    """Sizes or strides as expressions."""
    return tuple(map(size_of, values))


def size_of(value: Any) -> Expr:
    """A number or a SymInt as an expression, without a question to the shape environment."""
    if isinstance(value, Expr):
        return value
    if not isinstance(value, torch.SymInt):
        return integer(int(value))
    environment = value.node.shape_env
    known = _KNOWN.setdefault(environment, {})
    return _converted(value.node.expr, environment, known)


def number_or_size(value: torch.SymInt) -> Expr | int:
    """What a rule is given for a symbolic number: a plain one, if it is no other."""
    found = size_of(value)
    return found.number if found.is_const else found


def is_zero(value: Any) -> bool:
    """Whether a size is certainly nothing."""
    return isinstance(value, int) and value == 0


def _converted(expr: Any, environment: Any, known: dict[Any, Expr]) -> Expr:
    if expr not in known:
        known[expr] = _convert(expr, environment, known)
    return known[expr]


def _convert(expr: Any, environment: Any, known: dict[Any, Expr]) -> Expr:
    if expr.is_Integer:
        return integer(int(expr))
    if expr.is_Float:
        return const(float(expr), F64)
    if expr.is_Symbol:
        return _symbol(expr, environment)
    rule = RULES.get(type(expr).__name__)
    if rule is None:
        raise SizeUnknown(str(expr), f"{type(expr).__name__} has no form in the loop IR")
    found: Expr = rule([_converted(a, environment, known) for a in expr.args])
    if found.dtype is F64 or is_polynomial(found):
        return found
    return named(found, *_range(environment.bound_sympy(expr)))


def _symbol(symbol: Any, environment: Any) -> Expr:
    low, high = _range(environment.var_to_range[symbol])
    return size(str(symbol), low, high, int(environment.optimization_hint(symbol, fallback=HINT)))


def _range(found: Any) -> tuple[int, int | None]:
    """Sizes are never negative, whatever else is not known of them."""
    low = int(found.lower) if found.lower.is_Integer else 0
    high = int(found.upper) if found.upper.is_Integer else UNLIMITED
    return max(low, 0), high if high < UNLIMITED else None


def _combined(op: str, operands: Iterable[Expr]) -> Expr:
    """Of integers, or of floats if one of them is."""
    found = list(operands)
    if any(n.dtype is F64 for n in found):
        return reduce(lambda a, b: apply(op, a, b), (cast(n, F64) for n in found))
    return simplify(reduce(lambda a, b: apply(op, a, b), found))


def _undominated(operands: list[Expr], beats: Callable[[Expr, Expr], bool]) -> list[Expr]:
    """Without those that another one always beats: max(1, s0) is s0 if that is never less."""
    kept: list[Expr] = []
    for n in operands:
        if not any(beats(other, n) for other in kept):
            kept = [*(other for other in kept if not beats(n, other)), n]
    return kept


def _quotient(operands: list[Expr]) -> Expr:
    return apply("div", *(cast(n, F64) for n in operands))


def _power(operands: list[Expr]) -> Expr:
    base, exponent = operands
    if exponent.number < 1:
        raise SizeUnknown(str(base), "a power that is no product")
    return _combined("mul", [base] * exponent.number)


# By the name of the sympy function.
RULES: dict[str, Any] = {
    "Add": lambda args: _combined("add", args),
    "Mul": lambda args: _combined("mul", args),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": lambda args: floordiv(*args),
    "CleanDiv": lambda args: floordiv(*args),
    "Mod": lambda args: modulo(*args),
    "PythonMod": lambda args: modulo(*args),
    "Max": lambda args: _combined("max", _undominated(args, at_least)),
    "Min": lambda args: _combined("min", _undominated(args, lambda a, b: at_least(b, a))),
    "ToFloat": lambda args: cast(args[0], F64),
    "IntTrueDiv": _quotient,
    "FloatTrueDiv": _quotient,
    "TruncToInt": lambda args: cast(args[0], I64),
    "FloorToInt": lambda args: cast(apply("floor", args[0]), I64),
    "CeilToInt": lambda args: cast(apply("ceil", args[0]), I64),
}
