"""The border to torch's symbolic sizes: sympy expressions in, sizes of the loop IR out.

In: ints and SymInts. Out: `Expr`. Sums and products of symbols stay polynomials, so that the index
algebra can work with them; anything else (a floor division, a maximum) becomes a size of its own,
defined by the others. Example: `s0 * 64` is a polynomial, `s0 // 2` is a size named after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._dynamo.source import TensorPropertySource
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import symbolic_shapes
from torch.utils import _pytree as pytree

from litz.errors import SizeUnknown
from litz.ir.dtypes import BOOL, F64, I64
from litz.ir.expr import (
    HINT,
    Expr,
    apply,
    cast,
    const,
    integer,
    rebuild,
    size,
    transform,
)  # fmt: skip
from litz.ir.index import ONE, floordiv, modulo, simplify, to_poly
from litz.ir.magnitude import ARITHMETIC, is_exact
from litz.ir.poly import whole
from litz.ir.sizes import at_least, content, is_polynomial, name_of, named

# Raised, by torch and by us, where an answer would hold for some sizes only.
GUARD_ERRORS: tuple[type[Exception], ...] = (
    symbolic_shapes.GuardOnDataDependentSymNode,
    getattr(symbolic_shapes, "_ShapeEnvGuardError", SizeUnknown),  # not before torch 2.13
    SizeUnknown,
)
UNDECIDED_ERRORS: tuple[type[Exception], ...] = (*GUARD_ERRORS, TypeError)
# An upper bound above this counts as no bound.
UNLIMITED = 1 << 40
LOWEST = -(1 << 62)
GREATEST = (1 << 63) - 1
# Used by one thread at a time: see COMPILE_LOCK.
_KNOWN: WeakKeyDictionary[symbolic_shapes.ShapeEnv, dict[Any, Expr]] = WeakKeyDictionary()


def sizes(values: Sequence[Any]) -> tuple[Expr, ...]:
    """Sizes or strides as expressions."""
    return tuple(map(size_of, values))


def size_of(value: Any) -> Expr:
    """A number or a SymInt as an expression, without asking the shape environment anything."""
    if isinstance(value, Expr):
        return value
    if not isinstance(value, torch.SymInt):
        return integer(int(value))
    environment = value.node.shape_env
    known = _KNOWN.setdefault(environment, {})
    return _converted(value.node.expr, environment, known)


def environment_of(value: Any) -> Any:
    """The shape environment of a value whose sizes are symbolic."""
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return leaf.node.shape_env
        if isinstance(leaf, FakeTensor) and leaf.fake_mode.shape_env is not None:
            return leaf.fake_mode.shape_env
    return None


def symbol_times(environment: Any, symbol: Any) -> tuple[Expr | None, int]:
    """(size, factor) such that the symbol is known to be factor * size; (None, 1) if it is a
    number."""
    found = _converted(environment.replace(symbol), environment, _KNOWN.setdefault(environment, {}))
    if found.is_const:
        return None, 1
    if found.op == "size" and not found.args:
        return found, 1
    factor, unit = content(to_poly(found))
    if unit.op != "size" or unit.args or factor < 1:
        raise SizeUnknown(str(symbol), f"it is {found}")
    return unit, factor


def truth_of(value: torch.SymBool | torch.SymFloat) -> Expr:
    """A bool or a float as torch's expression."""
    return of_sympy(value.node.expr, value.node.shape_env)


def of_sympy(expr: Any, environment: Any) -> Expr:
    """A bool or a number from a sympy expression."""
    return _converted(expr, environment, _KNOWN.setdefault(environment, {}))


def strides(values: Sequence[Any]) -> tuple[Expr, ...]:
    """Strides as expressions. For a tensor that may be empty torch writes max(1, u0); u0 does as
    well, since nothing steps along an empty tensor, and it is a polynomial like other strides."""
    return tuple(simplify(transform(size_of(n), _unclamped)) for n in values)


def _unclamped(node: Expr, args: tuple[Expr, ...]) -> Expr:
    if node.op == "size" and args and args[0].op == "max" and ONE in args[0].args:
        one, other = args[0].args
        return other if one is ONE else one
    return rebuild(node, args)


def number_or_size(value: torch.SymInt) -> Expr | int:
    """The argument that a rule gets for a symbolic number: an int if it is known to be one."""
    found = size_of(value)
    return found.number if found.is_const else found


def as_value(number: Expr) -> Expr:
    """A number as a kernel computes with it. One that 64 bits may not hold, such as n ** 5, the
    call computes in Python instead, which refuses it if it does not fit."""
    if number.dtype not in (I64, F64) or _fits(number):
        return number
    return size(f"w{name_of(number)}", LOWEST, None, HINT, number, number.dtype)


def _fits(number: Expr) -> bool:
    """Whether no intermediate value leaves 64 bits. The call computes a named size already."""
    if number.op == "size" or is_exact(number):
        return True
    return number.op not in ARITHMETIC and all(_fits(a) for a in number.args)


def is_zero(value: Any) -> bool:
    """Whether a size is known to be zero."""
    return isinstance(value, int) and value == 0


def _converted(expr: Any, environment: Any, known: dict[Any, Expr]) -> Expr:
    if expr not in known:
        known[expr] = _convert(expr, environment, known)
    return known[expr]


def _convert(expr: Any, environment: Any, known: dict[Any, Expr]) -> Expr:
    if expr.is_Integer:
        return whole(int(expr))
    if expr.is_Float:
        return const(float(expr), F64)
    if expr.is_Symbol:
        return _symbol(expr, environment)
    if expr.is_Boolean and expr.is_Atom:
        return const(bool(expr), BOOL)
    settled = _settled(expr, environment)
    if settled is not None:
        return integer(settled)
    rule = RULES.get(type(expr).__name__)
    if rule is None:
        raise SizeUnknown(str(expr), f"{type(expr).__name__} has no form in the loop IR")
    pairs = type(expr).__name__ == "Piecewise"
    args = [a for pair in expr.args for a in pair.args] if pairs else expr.args
    found: Expr = rule([_converted(a, environment, known) for a in args])
    if found.dtype is not I64 or is_polynomial(found):
        return found
    return named(found, *_range(expr, environment.bound_sympy(expr), environment))


def _settled(expr: Any, environment: Any) -> int | None:
    """Zero or one, where a guard says that an expression is. Torch substitutes a symbol that a
    guard fixes, but leaves s0 // 2 as it is; yet a dimension of one broadcasts, and the result was
    predicted that way. A product is one only if its factors are."""
    if not expr.is_integer or expr.is_Mul or expr.is_Pow:
        return None
    hint = _hint(expr, environment)
    if hint not in (0, 1):
        return None
    number = environment.create_symintnode(expr, hint=hint)
    return hint if symbolic_shapes.statically_known_true(number == hint) else None


def _symbol(symbol: Any, environment: Any) -> Expr:
    if not symbol.is_integer:
        return size(str(symbol), LOWEST, None, 1, dtype=F64)
    if symbol not in environment.var_to_range:  # of a nested tensor: only passed on, not a number
        return size(str(symbol), LOWEST, None, HINT)
    low, high = _range(symbol, environment.var_to_range[symbol], environment)
    return size(str(symbol), low, high, _hint(symbol, environment))


def _hint(symbol: Any, environment: Any) -> int:
    """A symbol's value at tracing, or the user's hint; torch before 2.13 has only the first."""
    if hasattr(environment, "optimization_hint"):
        return int(environment.optimization_hint(symbol, fallback=HINT))
    seen = environment.size_hint(symbol, allow_none=True)
    return HINT if seen is None else int(seen)


def _range(expr: Any, found: Any, environment: Any) -> tuple[int, int | None]:
    """A number that the program was given may be negative; a size never is. A number computed from
    sizes has no upper limit, that is, it is no larger than a tensor can be. Any other may be any 64
    bit number."""
    low = int(found.lower) if found.lower.is_Integer else LOWEST
    high = int(found.upper) if found.upper.is_Integer else UNLIMITED
    if high < UNLIMITED:
        return max(low, LOWEST), high
    counts = all(_is_dimension(symbol, environment) for symbol in expr.free_symbols)
    return max(low, LOWEST), None if counts or low < 0 else GREATEST


def _is_dimension(symbol: Any, environment: Any) -> bool:
    """Whether a symbol is a size, a stride or an offset of an input: memory bounds it."""
    sources = environment.var_to_sources.get(symbol, ())
    return any(isinstance(source, TensorPropertySource) for source in sources)


def _combined(op: str, operands: Iterable[Expr]) -> Expr:
    """An op on integers, or on floats if an operand is one."""
    found = list(operands)
    if any(n.dtype is F64 for n in found):
        return reduce(lambda a, b: apply(op, a, b), (cast(n, F64) for n in found))
    return simplify(reduce(lambda a, b: apply(op, a, b), found))


def _undominated(operands: list[Expr], beats: Callable[[Expr, Expr], bool]) -> list[Expr]:
    """Drop operands that another one always beats: max(1, s0) is s0 if s0 is at least 1."""
    kept: list[Expr] = []
    for n in operands:
        if not any(beats(other, n) for other in kept):
            kept = [*(other for other in kept if not beats(n, other)), n]
    return kept


def _quotient(operands: list[Expr]) -> Expr:
    return apply("div", *(cast(n, F64) for n in operands))


def _remainder(operands: list[Expr]) -> Expr:
    """Python's remainder, for floats and integers: its sign is the divisor's."""
    if any(n.dtype is F64 for n in operands):
        return apply("remainder", *(cast(n, F64) for n in operands))
    return modulo(*operands)


def _power(operands: list[Expr]) -> Expr:
    base, exponent = operands
    if exponent.number < 1:
        raise SizeUnknown(str(base), "a power that is no product")
    return _combined("mul", [base] * exponent.number)


def _compared(op: str) -> Callable[[list[Expr]], Expr]:
    """A comparison of numbers of one type, or of bools."""

    def compared(operands: list[Expr]) -> Expr:
        if any(n.dtype is F64 for n in operands):
            operands = [cast(n, F64) for n in operands]
        return apply(op, *operands)

    return compared


def _joined(op: str) -> Callable[[list[Expr]], Expr]:
    return lambda operands: reduce(lambda a, b: apply(op, a, b), operands)


def _piecewise(operands: list[Expr]) -> Expr:
    """Alternating values and conditions; the last condition always holds."""
    *pairs, (last, _) = zip(operands[::2], operands[1::2], strict=True)
    return reduce(lambda rest, pair: apply("where", pair[1], pair[0], rest), reversed(pairs), last)


# By the name of the sympy class.
RULES: dict[str, Any] = {
    "Equality": _compared("eq"),
    "Unequality": _compared("ne"),
    "StrictLessThan": _compared("lt"),
    "LessThan": _compared("le"),
    "StrictGreaterThan": _compared("gt"),
    "GreaterThan": _compared("ge"),
    "And": _joined("and"),
    "Or": _joined("or"),
    "Not": lambda args: apply("eq", args[0], const(False, BOOL)),
    "Piecewise": _piecewise,
    "Add": lambda args: _combined("add", args),
    "Mul": lambda args: _combined("mul", args),
    "Pow": _power,
    "PowByNatural": _power,
    "FloorDiv": lambda args: floordiv(*args),
    "CleanDiv": lambda args: floordiv(*args),
    "Mod": _remainder,
    "PythonMod": _remainder,
    "Max": lambda args: _combined("max", _undominated(args, at_least)),
    "Min": lambda args: _combined("min", _undominated(args, lambda a, b: at_least(b, a))),
    "ToFloat": lambda args: cast(args[0], F64),
    "IntTrueDiv": _quotient,
    "FloatTrueDiv": _quotient,
    "TruncToInt": lambda args: cast(args[0], I64),
    "FloorToInt": lambda args: cast(apply("floor", args[0]), I64),
    "CeilToInt": lambda args: cast(apply("ceil", args[0]), I64),
}
