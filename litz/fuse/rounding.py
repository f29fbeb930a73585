"""Rounding: which values of half types are rounded wherever they are computed, as in eager.

In: loops. Out: the same loops, some with stores that always round. A half is computed in f32, and
its rounding (`narrow`) is dropped where the value stays inside a kernel. That is right only if it
cannot be noticed. A value that two loops read, or one loop and the caller or an ATen op, would be
rounded for one reader and not for the other; a comparison or a floor turns a rounding difference
into another result. Such values keep their rounding. Example, bf16, with two readers of t0:

    t0[i0] = narrow.bf16(x[i0] * f32(0.3))   ->   t0[i0] = cast.bf16(x[i0] * f32(0.3))

A value that is only copied is not converted at all (`drop_round_trips`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

from litz.ir.dtypes import FP8_DTYPES
from litz.ir.expr import Expr, apply, cast, const, rebuild, walk
from litz.ir.program import Buffer, Extern, Loop, exprs_of, loads, read, written

Body = tuple[Loop | Extern, ...]

# Discontinuous ops: if an operand differs by a rounding, the result may differ by any amount.
DISCONTINUOUS = frozenset(
    {
        *("eq", "ne", "lt", "le", "gt", "ge", "floor", "ceil", "trunc", "round", "sign"),
        *("floordiv", "truncdiv", "mod", "remainder", "fmod"),
    }
)
PLACES = ("argmax", "argmin")  # reductions and scans that return the position of an extreme


def keep_roundings(body: Body, seen: Collection[Buffer]) -> Body:
    """Always round values with several readers or a discontinuous one. `seen` are the buffers that
    the caller sees."""
    halves = {b for step in body for b in written(step) if b.dtype.is_half}
    if not halves:
        return body
    settled = _read_twice(body, seen) | _read_by_discontinuous(body)
    result: list[Loop | Extern] = []
    for step in reversed(body):  # a copy of a rounded value needs a rounded source
        if isinstance(step, Loop) and any(s.buffer in settled for s in step.stores):
            stores = tuple(replace(s, value=keep_rounding(s.value)) for s in step.stores)
            copied = (node for s in step.stores for node in _choices(s.value))
            settled.update(node.buffer for node in copied if node.op == "load")
            step = step if stores == step.stores else replace(step, stores=stores)
        result.append(step)
    return tuple(reversed(result))


def keep_rounding(value: Expr) -> Expr:
    """narrow(v) -> cast(v), also under `where`: rules drop a narrow in a kernel, never a cast."""
    done: dict[Expr, Expr] = {}
    for node in _choices(value):
        if node.op == "where":
            done[node] = apply("where", node.args[0], *(done[a] for a in node.args[1:]))
        elif node.op == "narrow" or _widens(node):
            done[node] = cast(done.get(node.args[0], node.args[0]), node.dtype)
        else:
            done[node] = node
    return done[value]


def drop_round_trips(value: Expr) -> Expr:
    """narrow(where(c, cast(x), y)) -> where(c, x, narrow(y)): elements that are only selected are
    not widened and rounded again. That would change the bits of some NaNs, and the program may have
    reinterpreted integers as halves. Only for stored values: inside a kernel a half is wide.
    (Triton has no 8-bit float constants: values that select one are left alone.)"""
    if value.op not in ("narrow", "cast") or not value.dtype.is_narrow:
        return value
    (root,), done = value.args, dict[Expr, Expr]()
    copies, stack = False, [root] if root.op == "where" else []
    while stack:
        node = stack[-1]
        inside = node.args[1:] if node.op == "where" else ()
        missing = [a for a in inside if a not in done]
        stack.extend(missing)
        if missing:
            continue
        if node.op == "where":
            done[node] = apply("where", node.args[0], *(done[a] for a in inside))
        elif node.op == "cast" and node.args[0].dtype is value.dtype:
            done[node], copies = node.args[0], True
        elif node.is_const and value.dtype in FP8_DTYPES:
            return value
        elif node.is_const:
            done[node] = const(node.attr, value.dtype)
        else:
            done[node] = rebuild(value, (node,))
        stack.pop()
    return done[root] if copies else value


def _widens(node: Expr) -> bool:
    return node.op == "cast" and node.dtype.is_float and node.args[0].dtype.is_half


def _choices(value: Expr) -> list[Expr]:
    """The values that `value` may be a copy of, then each `where` between them, and last itself;
    widened values count as copies."""
    found: dict[Expr, None] = {}
    stack = [value]
    while stack:
        node = stack[-1]
        inside = node.args[1:] if node.op == "where" else node.args if _widens(node) else ()
        missing = [a for a in inside if a not in found]
        if missing and node not in found:
            stack.extend(missing)
        else:
            found[stack.pop()] = None
    return list(found)


def _read_twice(body: Body, seen: Collection[Buffer]) -> set[Buffer]:
    readers = Counter(b for step in body for b in read(step) if b.dtype.is_half)
    return {b for b, count in readers.items() if count + (b in seen) > 1}


def _read_by_discontinuous(body: Body) -> set[Buffer]:
    found: set[Buffer] = set()
    for step in body:
        if isinstance(step, Loop) and any(b.dtype.is_float for b in read(step)):
            jumps = [node for node in walk(*exprs_of(step)) if _is_discontinuous(node)]
            found.update(n.buffer for n in loads(*(a for node in jumps for a in node.args)))
    return found


def _is_discontinuous(node: Expr) -> bool:
    if node.op in ("reduce", "scan"):
        return (node.attr[0] if node.op == "reduce" else node.attr) in PLACES
    if node.op == "cast":
        return node.args[0].dtype.is_float and not node.dtype.is_float
    return node.op in DISCONTINUOUS and node.args[0].dtype.is_float
