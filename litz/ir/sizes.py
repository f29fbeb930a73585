"""Arithmetic on sizes that may be symbolic: exact quotients, counts, multiples, bounds.

In: sizes, as `Expr`. Out: sizes, or answers that hold for every value of the symbols. Nothing here
looks at a hint. Example: `quotient(s0 * 768, 64)` is `s0 * 12`, `quotient(s0, 64)` is None.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import gcd
from typing import Any

from litz.ir.dtypes import I64
from litz.ir.expr import Expr, apply, integer, size, walk
from litz.ir.index import (
    CACHED,
    ONE,
    ZERO,
    Poly,
    floordiv,
    from_poly,
    is_nonnegative,
    simplify,
    size_product,
    split_evenly,
    to_poly,
)
from litz.ir.program import Buffer, Extern, Kernel, Loop, ViewArg, exprs_of, read, written


def count_of(axes: Iterable[Expr]) -> Expr:
    """The number of points of axes, exactly."""
    return size_product(a.extent for a in axes)


def quotient(whole: Expr, part: Expr) -> Expr | None:
    """whole / part, if that leaves no remainder for any value of the symbols."""
    if part is ZERO:
        return None
    found, rest = split_evenly(to_poly(whole), to_poly(part))
    return None if rest else from_poly(found)


def is_multiple(whole: Expr, number: int) -> bool:
    """Whether a size is always a multiple of a number."""
    return all(c % number == 0 for c in to_poly(whole).values())


def ceil_div(whole: Expr, part: Expr | int) -> Expr:
    """The least number of parts that cover a size."""
    by = integer(part) if isinstance(part, int) else part
    if whole.is_const and by.is_const:
        return integer(-(-whole.number // by.number))
    exact = quotient(whole, by)
    if exact is not None:
        return exact
    return floordiv(simplify(apply("sub", apply("add", whole, by), integer(1))), by)


def at_least(value: Expr, least: Expr) -> bool:
    """Whether value >= least for all values of the symbols; False if that is not known."""
    poly = to_poly(apply("sub", value, least))
    return is_nonnegative(poly)


def is_polynomial(value: Expr) -> bool:
    """Whether a value is a sum of products of sizes."""
    return all(atom.op == "size" for monomial in to_poly(value) for atom in monomial)


def named(value: Expr, low: int = 0, high: int | None = None) -> Expr:
    """The value itself if it is a polynomial in sizes, else a new size with that value."""
    if is_polynomial(value):
        return value
    return size(name_of(value), low, high, value.hint, value)


def name_of(value: Expr) -> str:
    """The name of a size that is computed as a value: the same in every process."""
    return f"z{hashlib.sha256(str(value).encode()).hexdigest()[:8]}"


def greatest(poly: Poly) -> int | None:
    """An upper bound of the absolute value of a polynomial in sizes, if there is one."""
    total = 0
    for monomial, factor in poly.items():
        term = abs(factor)
        for atom in monomial:
            if atom.op != "size" or atom.attr[2] is None or atom.attr[1] < 0:
                return None
            term *= atom.attr[2]
        total += term
    return total


def is_known(*sizes: Expr) -> bool:
    """Whether all are constants."""
    return all(n.is_const for n in sizes)


def difference(one: Expr, other: Expr) -> Expr:
    """one - other."""
    return simplify(apply("sub", one, other))


def total(sizes: Iterable[Expr]) -> Expr:
    """The sum of sizes."""
    found: Expr = ZERO
    for n in sizes:
        found = simplify(apply("add", found, n))
    return found


def symbols(*roots: Expr) -> Iterator[Expr]:
    """The sizes in expressions, once each; not the sizes that those are made of."""
    seen: set[Expr] = set()
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "size":
            yield node
        else:
            stack.extend(reversed(node.args))


def roots(*exprs: Expr) -> set[Expr]:
    """The sizes that expressions depend on and that are made of no others."""
    return {n for n in walk(*exprs) if n.op == "size" and not n.args}


def of_buffer(buffer: Buffer) -> set[Expr]:
    """The sizes that a buffer's layout depends on."""
    return roots(*buffer.shape, *buffer.strides)


def used_in(step: Loop | Kernel | Extern) -> set[Expr]:
    """The sizes that a step has to know."""
    found = {n for b in (*read(step), *written(step)) for n in of_buffer(b)}
    if isinstance(step, Extern):
        return found | roots(*sizes_of((step.args, step.kwargs)))
    if isinstance(step, Kernel):
        axes = (*step.outer, *(a for phase in step.phases for a in phase.inner))
        found |= roots(*(n for b in step.scratch for n in b.shape))
    else:
        axes = (*step.axes, *step.reduced)
    return found | roots(*axes, *exprs_of(step))


def sizes_of(value: Any) -> Iterator[Expr]:
    """The expressions inside an extern's argument tree, or an output."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, ViewArg):
        yield from (*value.shape, *value.strides, value.offset)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from sizes_of(item)


def renamed(symbol: Expr, name: str) -> Expr:
    """A size of the same range under another name, not made of others."""
    _, low, high, hint = symbol.attr
    return size(name, low, high, hint, dtype=symbol.dtype)


def content(poly: Poly) -> tuple[int, Expr]:
    """number and size with poly = number * size, the number as large as possible."""
    number = gcd(*poly.values()) if poly else 0
    if not number:
        return 0, integer(1)
    return number, from_poly({m: c // number for m, c in poly.items()})


def solution(symbol: Expr, value: Expr) -> tuple[int, int] | None:
    """Two numbers, factor and rest, with value = factor * symbol + rest; None if there are none.
    Example: from the value of `2 * s0 + 1` follows s0, as an exact quotient."""
    poly = to_poly(value) if value.dtype is I64 else {}
    factor, rest = poly.get((symbol,), 0), poly.get((), 0)
    alone = set(poly) <= {(symbol,), ()}
    return (factor, rest) if factor and alone else None


def span(buffer: Buffer) -> Expr:
    """Elements of storage from the first to the last element of a buffer."""
    return _span(buffer.shape, buffer.strides)


@lru_cache(maxsize=CACHED)
def _span(shape: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Expr:
    if any(n is ZERO for n in shape):
        return ZERO
    steps = zip(shape, strides, strict=True)
    reach = (apply("mul", difference(n, ONE), step) for n, step in steps)
    return total((ONE, *reach))


def extent_bytes(buffer: Buffer) -> Expr:
    """Bytes of storage from the first to the last element of a buffer."""
    return size_product((span(buffer), integer(buffer.dtype.bytes)))
