"""Patterns: the two sides of a rewrite equation, read from its text.

In: an equation such as `"where(~c, x, y) -> where(c, y, x)"`. Out: two `TermPattern` trees, one to
`match` against an `Expr`, one to `build` an `Expr` from the bindings. The text is in Python's
syntax. Infix signs and calls are rows of the op table. A lower-case name stands for any expression,
an upper-case one for any constant, a numeral for that constant in its operand's type. `cast(x)` and
`narrow(x)` convert to any type, on the right side to the type of the left side; `cast.f32(x)`
converts to f32.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from litz.ir.dtypes import BOOL, DTYPES, DType
from litz.ir.expr import Expr, apply, cast, const, narrow
from litz.ir.ops import OPS

Bindings = dict[str, Expr]
Make = Callable[[Expr], Expr]

SIGNS: dict[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "neg": "-", "not": "~",
}  # fmt: skip
_INFIX: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "shr", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt",
    ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne", ast.USub: "neg", ast.Invert: "not",
}  # fmt: skip
_NUMBERS = {"inf": math.inf, "nan": math.nan}
CONVERSIONS = {"cast": cast, "narrow": narrow}


@dataclass(frozen=True)
class TermPattern:
    """`attr` is a variable's name, a literal's value or the target type of a conversion."""

    op: str  # "any", "constant", "literal", "cast", "narrow" or a row of the op table
    args: tuple[TermPattern, ...] = ()
    attr: Any = None

    @property
    def root_op(self) -> str | None:
        """The op of every node that this matches; None if it matches any op."""
        if self.op == "any":
            return None
        return "const" if self.op in ("constant", "literal") else self.op

    def nodes(self) -> Iterator[TermPattern]:
        """This pattern and all below it."""
        yield self
        for argument in self.args:
            yield from argument.nodes()


def parse_equation(text: str) -> tuple[TermPattern, TermPattern]:
    """`"x * 1 -> x"` as a left and a right side."""
    left, right = text.split("->")
    return parse_pattern(left), parse_pattern(right)


def parse_pattern(text: str) -> TermPattern:
    """One side of an equation."""
    return _read(ast.parse(text.strip(), mode="eval").body)


def _read(tree: ast.expr) -> TermPattern:
    match tree:
        case ast.Constant(value=value):
            return TermPattern("literal", (), value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return TermPattern("literal", (), -number)
        case ast.Name(id=name):
            if name in _NUMBERS:
                return TermPattern("literal", (), _NUMBERS[name])
            return TermPattern("constant" if name.isupper() else "any", (), name)
        case ast.UnaryOp(op=sign, operand=operand):
            return TermPattern(_INFIX[type(sign)], (_read(operand),))
        case ast.BinOp(left=left, op=sign, right=right):
            return TermPattern(_INFIX[type(sign)], (_read(left), _read(right)))
        case ast.Compare(left=left, ops=[sign], comparators=[right]):
            return TermPattern(_INFIX[type(sign)], (_read(left), _read(right)))
        case ast.Call(func=ast.Name(id=name), args=args):
            assert name in OPS or name in CONVERSIONS, f"no op is called {name}"
            return TermPattern(name, tuple(_read(a) for a in args))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=dtype), args=[operand]):
            return TermPattern(name, (_read(operand),), DTYPES[dtype])
    raise ValueError(f"not a pattern: {ast.unparse(tree)}")


def orders(pattern: TermPattern) -> list[TermPattern]:
    """Every form of a pattern with operands of commutative ops swapped.

    Listing them once, when a table is indexed, makes matching a walk without backtracking.
    """
    if not pattern.args:
        return [pattern]
    found: dict[TermPattern, None] = {}
    commutes = pattern.op in OPS and OPS[pattern.op].commutative
    for args in itertools.product(*(orders(a) for a in pattern.args)):
        found[TermPattern(pattern.op, args, pattern.attr)] = None
        if commutes:
            found[TermPattern(pattern.op, args[::-1], pattern.attr)] = None
    return list(found)


def match(pattern: TermPattern, node: Expr, bound: Bindings) -> bool:
    """Whether the node has the pattern's form; `bound` collects the expression of each name."""
    op = pattern.op
    if op == "any" or (op == "constant" and node.is_const):
        # Equal expressions are one object, so a repeated name costs one identity test.
        return bound.setdefault(pattern.attr, node) is node
    if op == "literal":
        return node.is_const and is_literal(node, pattern.attr)
    if node.op != op or (pattern.attr is not None and node.dtype is not pattern.attr):
        return False
    return all(match(p, a, bound) for p, a in zip(pattern.args, node.args, strict=True))


def is_literal(node: Expr, value: bool | int | float) -> bool:
    """Whether a constant is this literal: -0.0 is not 0, True is not 1, 0.5 is no integer."""
    if isinstance(value, bool) != (node.dtype is BOOL):
        return False
    if not node.dtype.is_float and value != value // 1:
        return False
    return node is const(value, node.dtype)


def build(pattern: TermPattern, bound: Mapping[str, Expr], dtype: DType, make: Make) -> Expr:
    """An expression of type `dtype` in the pattern's form; `make` is applied to every new node."""
    if pattern.op in ("any", "constant"):
        return bound[pattern.attr]
    if pattern.op == "literal":
        return const(pattern.attr, dtype)
    if pattern.op in CONVERSIONS:
        operand = build(pattern.args[0], bound, dtype, make)
        return make(CONVERSIONS[pattern.op](operand, pattern.attr or dtype))
    inner = dtype if OPS[pattern.op].result == "same" else operand_dtype(pattern, bound)
    assert inner is not None, f"nothing says what type the operands of {pattern.op} have"
    wanted = [inner] * len(pattern.args)
    if pattern.op == "where":
        wanted[0] = BOOL
    args = (build(p, bound, d, make) for p, d in zip(pattern.args, wanted, strict=True))
    return make(apply(pattern.op, *args))


def operand_dtype(pattern: TermPattern, bound: Mapping[str, Expr]) -> DType | None:
    """The type of an op's operands, from the first one whose type is known."""
    for argument in pattern.args[1:] if pattern.op == "where" else pattern.args:
        if argument.op in ("any", "constant"):
            return bound[argument.attr].dtype
        if argument.op in CONVERSIONS:
            return argument.attr  # type: ignore[no-any-return]
        if argument.op in OPS:
            return BOOL if OPS[argument.op].result == "bool" else operand_dtype(argument, bound)
    return None
