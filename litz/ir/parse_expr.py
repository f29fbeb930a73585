"""Reading expressions and operands, for `ir/parse.py` and `ir/call_parse.py`.

In: Python's syntax tree of an expression, and a `Scope` of names. Out: an `Expr`, an operand, a
site; or a `Mistake` that names what was expected. Example:
`expr_of(tree_of("i0 * 128 + 1"), scope)`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

import torch

from litz.ir.checks import CHECK_OPS, Site
from litz.ir.dtypes import DTYPES
from litz.ir.expr import Expr, apply, bitcast, cast, const, integer, load, narrow, reduce, scan
from litz.ir.grammar import Mistake
from litz.ir.index import ZERO
from litz.ir.ops import OPS, REDUCTIONS, SCANS
from litz.ir.program import Buffer, ViewArg
from litz.ir.text import INFIX, PREFIX


@dataclass
class Scope:
    """The meaning of names: axes, sizes and `let` names. Buffers have a namespace of their own."""

    names: dict[str, Expr] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    opaque: dict[int, Any] = field(default_factory=dict)  # opaque operands (`ir/call_plan.py`)

    def buffer(self, node: ast.expr) -> Buffer:
        found: Buffer = known(self.buffers, name_of(node), "buffer")
        return found


def tree_of(text: str, mode: str = "eval") -> Any:
    """Python's syntax tree of an expression, or of one statement."""
    try:
        tree: Any = ast.parse(text, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Mistake(f"not a Python expression ({error.args[0]})") from None
    return tree.body if mode == "eval" else tree.body[0]


def name_of(node: ast.expr) -> str:
    """A plain, dotted or quoted name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        return ast.unparse(node)
    raise Mistake(f"expected a name, not {ast.unparse(node)}")


def known(table: dict[Any, Any], name: Any, what: str) -> Any:
    if name not in table:
        raise Mistake(f"there is no {what} {name!r}")
    return table[name]


def _operator(symbol: str) -> type[ast.AST]:
    tree: Any = tree_of(f"a {symbol} b")
    return type(tree.ops[0] if isinstance(tree, ast.Compare) else tree.op)


_BINARY = {_operator(symbol): op for op, (symbol, _) in INFIX.items()}
_UNARY = {type(tree_of(f"{symbol}a").op): op for op, symbol in PREFIX.items()}


def exprs_of(text: str, scope: Scope) -> tuple[Expr, ...]:
    return tuple(expr_of(e, scope) for e in tree_of(f"[{text}]").elts)


def items_of(node: ast.expr, scope: Scope) -> tuple[Expr, ...]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return tuple(expr_of(p, scope) for p in parts)


def expr_of(node: Any, scope: Scope) -> Expr:
    match node:
        case ast.Constant(value=int()) if type(node.value) is int:
            return integer(node.value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return integer(-number)
        case ast.UnaryOp() if type(node.op) in _UNARY:
            return apply(_UNARY[type(node.op)], expr_of(node.operand, scope))
        case ast.BinOp() if type(node.op) in _BINARY:
            op = _BINARY[type(node.op)]
            return apply(op, expr_of(node.left, scope), expr_of(node.right, scope))
        case ast.Compare(ops=[compare], comparators=[right]) if type(compare) in _BINARY:
            return apply(_BINARY[type(compare)], expr_of(node.left, scope), expr_of(right, scope))
        case ast.Name():
            found: Expr = known(scope.names, node.id, "axis, size or value")
            return found
        case ast.Subscript():
            return load(scope.buffer(node.value), items_of(node.slice, scope))
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return _call(name, node.args, scope)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=form), attr=kind), args=[first, *rest]):
            return _qualified(form, kind, expr_of(first, scope), [expr_of(r, scope) for r in rest])
    raise Mistake(f"not an expression of the IR: {ast.unparse(node)}")


def _call(name: str, args: list[ast.expr], scope: Scope) -> Expr:
    """`f32(1.5)`, `guarded(test, x[i0])`, `exp(x)`."""
    if name in DTYPES and len(args) == 1:
        return const(_number(args[0]), DTYPES[name])
    site = site_of(args[-1]) if name in CHECK_OPS and args else None
    args = args if site is None else args[:-1]
    operands = [expr_of(a, scope) for a in args]
    if name == "guarded" and len(args) == 2 and operands[1].op == "load":
        return load(operands[1].buffer, operands[1].index, operands[0])
    spec = known(OPS, name, "op")
    if len(args) != spec.arity:
        raise Mistake(f"{name} takes {spec.arity} operands, not {len(args)}")
    return apply(name, *operands, site=site)


def site_of(node: ast.expr) -> Site | None:
    """The site of a check: `site("index", "aten.index.Tensor", "model.py:3", 0)`."""
    match node:
        case ast.Call(func=ast.Name(id="site"), args=args, keywords=[]):
            return Site(*(ast.literal_eval(a) for a in args))
    return None


_CONVERSIONS = {"cast": cast, "narrow": narrow, "bitcast": bitcast}


def _qualified(form: str, kind: str, value: Expr, rest: list[Expr]) -> Expr:
    """`cast.bf16(x)`, `bitcast.i32(x)`, `reduce.sum(x, r0, r1)`, `scan.sum(x, i0)`."""
    if form in _CONVERSIONS and not rest:
        return _CONVERSIONS[form](value, known(DTYPES, kind, "type"))
    if form in ("reduce", "scan") and all(r.op == "axis" for r in rest):
        known(REDUCTIONS if form == "reduce" else SCANS, kind, "reduction")
        if form == "reduce":
            return reduce(kind, tuple(rest), value)
        if len(rest) == 1:
            return scan(kind, rest[0], value)
    raise Mistake(f"not a form of the IR: {form}.{kind} with {1 + len(rest)} operands")


def _number(node: ast.expr) -> Any:
    """A Python number, True or False; `inf` and `nan` are numbers here."""
    match node:
        case ast.Constant(value=bool() | int() | float() | complex()):
            return node.value
        case ast.Name(id="inf" | "nan"):
            return float(node.id)
        case ast.UnaryOp(op=ast.USub()):
            return -_number(node.operand)
    raise Mistake(f"expected a number, not {ast.unparse(node)}")


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


# -- operands of extern calls ----------------------------------------------------------------


def operand(node: Any, scope: Scope) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id="inf" | "nan") | ast.UnaryOp(op=ast.USub()):
            return _number(node)
        case ast.Name():
            whole = scope.buffer(node)
            return ViewArg(whole, whole.shape, whole.strides, ZERO)
        case ast.Call(func=ast.Name(id="view"), args=[base, shape, strides, offset]):
            parts = items_of(shape, scope), items_of(strides, scope), expr_of(offset, scope)
            return ViewArg(scope.buffer(base), *parts)
        case ast.Call(func=ast.Name(id="size"), args=[number]):
            return expr_of(number, scope)
        case ast.Call(func=ast.Name(id="opaque"), args=[ast.Constant(value=number)]):
            return known(scope.opaque, number, "opaque operand")
        case ast.BinOp():  # a complex number
            return ast.literal_eval(node)
        case ast.Call(func=ast.Name(id="device"), args=[], keywords=keywords):
            return torch.device(**{k.arg: operand(k.value, scope) for k in keywords if k.arg})
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if hasattr(torch, name):
            return getattr(torch, name)
        case ast.List():
            return [operand(e, scope) for e in node.elts]
        case ast.Tuple():
            return tuple(operand(e, scope) for e in node.elts)
    raise Mistake(f"not an operand: {ast.unparse(node)}")
