"""Symbolic sizes in a wrapper's text: where each comes from, and expressions of them.

In: sizes of the loop IR. Out: Python text. Every symbol has a local name in the wrapper, read off
an input; sizes that are made of others follow. Example: `s0 * 64` is `n_s0 * 64`, and `n_s0` is an
argument of the call or `x3.shape[1]`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator

from litz.errors import SizeUnknown
from litz.ir.call_plan import origins_text
from litz.ir.dtypes import BOOL, F64, I64
from litz.ir.expr import Expr, apply, const, integer
from litz.ir.program import Buffer, Extern, UnbackedBinding
from litz.ir.sizes import roots, solution

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "and", "or": "or", "div": "/",
    "remainder": "%",
}  # fmt: skip


def local_name(symbol: Expr) -> str:
    """The name of a size in the text."""
    return f"n_{symbol.attr[0]}"


def number_text(value: Expr) -> str:
    """An expression of sizes, as Python text."""
    if value.is_const:
        text = repr(value.attr)
        return text if math.isfinite(value.attr) else f"float({text!r})"
    if value.op == "size":
        return local_name(value)
    args = [number_text(a) for a in value.args]
    if value.op in INFIX:
        return f"({args[0]} {INFIX[value.op]} {args[1]})"
    if value.op in ("min", "max"):
        return f"{value.op}({args[0]}, {args[1]})"
    if value.op == "neg":
        return f"(-{args[0]})"
    if value.op == "where":
        return f"({args[1]} if {args[0]} else {args[2]})"
    if value.op == "cast" and value.dtype in (F64, I64):
        return f"{'float' if value.dtype is F64 else 'int'}({args[0]})"
    if value.op in ("floor", "ceil"):
        return f"float(math_{value.op}({args[0]}))"
    if value.op in ("sqrt", "pow"):
        return f"(({args[0]}) ** {args[1] if value.op == 'pow' else 0.5})"
    raise SizeUnknown(str(value), f"{value.op} has no form in the text of a call")


def tuple_text(sizes: Iterable[Expr]) -> str:
    """Sizes or strides, as Python text."""
    return f"({''.join(f'{number_text(n)}, ' for n in sizes)})"


def table_text(value: Expr) -> str:
    """The text of a number as a table entry of 64 bits; of a float, the bits of the double."""
    text = number_text(value)
    if value.dtype is F64:
        return f"float_bits({text})"
    # No number that a call computes for a kernel may wrap: `to_bytes` raises OverflowError for one
    # that does not fit, which eager refuses as well.
    return f"({text}.to_bytes(8, 'little', signed=True) and {text})" if _may_wrap(value) else text


def _may_wrap(value: Expr) -> bool:
    """Whether a size is a number that the program computed, and that might not fit 64 bits."""
    return value.op == "size" and bool(value.args) and value.attr[1] <= -(1 << 62)


def float_bits(number: float) -> int:
    """The bits of a double as an integer."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def source_of(symbol: Expr, inputs: Iterable[tuple[Buffer | Expr, str]]) -> str:
    """The text that gives a size: an argument, a dimension of one, or an expression of sizes."""
    if symbol.args:
        return number_text(symbol.args[0])
    shown = list(_size_sources(inputs))
    for value, text in shown:
        if value is symbol:
            return text
    for value, text in shown:
        solved = solution(symbol, value)
        if solved is not None:
            factor, rest = solved
            text = f"{text} - {rest}" if rest > 0 else f"{text} + {-rest}" if rest else text
            return text if factor == 1 else f"({text}) // {factor}"
    raise SizeUnknown(str(symbol), "no argument of the call shows it")


def _size_sources(inputs: Iterable[tuple[Buffer | Expr, str]]) -> Iterator[tuple[Expr, str]]:
    """The sizes and strides of a call's inputs, each with its text."""
    for item, name in inputs:
        if not isinstance(item, Buffer):
            yield item, name
            continue
        for d, (n, step) in enumerate(zip(item.shape, item.strides, strict=True)):
            yield n, f"{name}.shape[{d}]"
            yield step, f"{name}.stride({d})"


# -- unbacked sizes, and checks of sizes -----------------------------------------------------------

PARTS = {"shape": ".shape", "stride": ".stride()"}


def unbacked_text(binding: UnbackedBinding, result: str, operand: str) -> str:
    """The text that reads an unbacked size off the result of a call."""
    if binding.path == ("offset",):
        return f"{result}.storage_offset() - {operand}.storage_offset()"
    steps = [f"[{part}]" if isinstance(part, int) else PARTS[part] for part in binding.path]
    number = "".join([result, *steps])
    if not steps:  # a number itself, which may be a bool
        number = f"{'float' if binding.symbol.dtype is F64 else 'int'}({number})"
    return number if binding.divisor == 1 else f"{number} // {binding.divisor}"


def check_line(step: Extern) -> str:
    """The line of a program's check on symbolic numbers; empty if it always holds."""
    condition, message = _checked(step)
    if condition.is_const and condition.attr:
        return ""
    known = sorted(roots(condition), key=lambda size: str(size.attr[0]))
    values = "".join(f", {size.attr[0]}={local_name(size)}" for size in known)
    told = f"{message}, {origins_text(step.origins)!r}{values}"
    return f"if not {number_text(condition)}: check_failed({told})"


def _checked(step: Extern) -> tuple[Expr, str]:
    """The condition of a check, and the Python text of torch's message."""
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
