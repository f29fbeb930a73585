"""Symbolic sizes in the text of a call: where each comes from, and what is computed of them.

In: sizes of the loop IR. Out: Python text. Every symbol has a local name in the call, read off an
input; sizes that are made of others follow. Example: `s0 * 64` is `n_s0 * 64`, and `n_s0` is the
call's own argument or `x3.shape[1]`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from typing import Any

from litz.errors import SizeUnknown
from litz.ir.dtypes import F64, I64
from litz.ir.expr import Expr
from litz.ir.program import Buffer, Extern, Plan, ViewArg, read, written
from litz.ir.sizes import solution, symbols

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "and", "or": "or", "div": "/",
    "remainder": "%",
}  # fmt: skip


def local_name(symbol: Expr) -> str:
    """What the text calls a size."""
    return f"n_{symbol.attr[0]}"


def number_text(value: Expr) -> str:
    """A number that follows from sizes, as Python."""
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
    """Sizes or strides, as Python."""
    return f"({''.join(f'{number_text(n)}, ' for n in sizes)})"


def table_text(value: Expr) -> str:
    """A number as an entry of the table, which holds 64 bits: a float lends its own."""
    text = number_text(value)
    if value.dtype is F64:
        return f"float_bits({text})"
    # Nothing that a call computes for a kernel may wrap: what eager does not take either, it
    # refuses with these words of Python's.
    return f"({text}.to_bytes(8, 'little', signed=True) and {text})" if _may_wrap(value) else text


def _may_wrap(value: Expr) -> bool:
    """Whether a size is a number that the program computed, and that might not fit 64 bits."""
    return value.op == "size" and bool(value.args) and value.attr[1] <= -(1 << 62)


def float_bits(number: float) -> int:
    """What a kernel reads as a double."""
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def symbols_of(plan: Plan, computed: Iterable[Expr]) -> list[Expr]:
    """Every size that a call has to know, those first that others are made of."""
    found: dict[Expr, None] = {}

    def add(symbol: Expr) -> None:
        for below in symbols(*symbol.args):
            add(below)
        found[symbol] = None

    for symbol in symbols(*computed, *_sizes_of(plan)):
        add(symbol)
    return list(found)


def _sizes_of(plan: Plan) -> Iterator[Expr]:
    graph = plan.graph
    yield from (unit for unit, _ in plan.regions)
    for item in graph.inputs:
        yield from _leaves(item)
    for step in graph.body:
        yield from _leaves((*read(step), *written(step)))
        if isinstance(step, Extern):
            yield from _leaves((step.args, tuple(v for _, v in step.kwargs)))
            yield from (b.symbol for b in step.binds)
    yield from _leaves(tuple(o.value for o in graph.outputs))


def _leaves(value: Any) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, Buffer):
        yield from (*value.shape, *value.strides)
    elif isinstance(value, ViewArg):
        yield from (*_leaves(value.buffer), *value.shape, *value.strides, value.offset)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)


def source_of(symbol: Expr, inputs: Iterable[tuple[Buffer | Expr, str]]) -> str:
    """Where a call finds a size: an argument, a dimension of one, or what is computed of such."""
    if symbol.args:
        return number_text(symbol.args[0])
    shown = list(_shown(inputs))
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


def _shown(inputs: Iterable[tuple[Buffer | Expr, str]]) -> Iterator[tuple[Expr, str]]:
    """Sizes and strides that a call is given, each with its text."""
    for item, name in inputs:
        if not isinstance(item, Buffer):
            yield item, name
            continue
        for d, (n, step) in enumerate(zip(item.shape, item.strides, strict=True)):
            yield n, f"{name}.shape[{d}]"
            yield step, f"{name}.stride({d})"
