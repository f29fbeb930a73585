"""Polynomials: how the index algebra represents sums and products.

In: an i64 `Expr`. Out: a map from each monomial (its atoms in `order`) to its integer coefficient,
and back. Example: `(i0 + 2) * 3` is `{(i0,): 3, (): 6}`.
"""

from __future__ import annotations

from functools import lru_cache

from litz.ir.expr import Expr, apply, integer
from litz.ir.order import order

Monomial = tuple[Expr, ...]
Poly = dict[Monomial, int]
MOST_TERMS = 64
LIMIT, DIGIT = 1 << 63, 1 << 62


@lru_cache(maxsize=4096)
def to_poly(node: Expr) -> Poly:
    """Read an expression as a polynomial over its atoms; shared, so never to be changed."""
    if node.is_const:
        return {(): node.attr} if node.attr else {}
    if node.op in ("add", "sub", "mul", "neg"):
        parts = [to_poly(a) for a in node.args]
        # A large product stays one atom: expanded, a chain of squares would grow exponentially.
        if node.op != "mul" or len(parts[0]) * len(parts[1]) <= MOST_TERMS:
            return combine(node.op, parts)
    return {(node,): 1}


def combine(op: str, parts: list[Poly]) -> Poly:
    """The sum, difference, product or negation of polynomials."""
    if op == "mul":
        left, right = parts
        product: Poly = {}
        for m, a in left.items():
            for n, b in right.items():
                key = tuple(sorted(m + n, key=order))
                product[key] = product.get(key, 0) + a * b
        return {m: c for m, c in product.items() if c}
    if op == "neg":
        return {m: -c for m, c in parts[0].items()}
    total = dict(parts[0])
    sign = -1 if op == "sub" else 1
    for m, c in parts[1].items():
        total[m] = total.get(m, 0) + sign * c
    return {m: c for m, c in total.items() if c}


def from_poly(poly: Poly) -> Expr:
    """Write a polynomial as an expression, the same one every time."""
    # An expression of sizes alone is computed by the call, exactly; any other by a kernel, in 64
    # bits.
    number = whole if all(atom.op == "size" for m in poly for atom in m) else integer
    constant = poly.get((), 0)
    total: Expr | None = None
    for monomial in sorted((m for m in poly if m), key=lambda m: [order(a) for a in m]):
        term = monomial[0]
        for atom in monomial[1:]:
            term = apply("mul", term, atom)
        if poly[monomial] != 1:
            term = apply("mul", term, number(poly[monomial]))
        total = term if total is None else apply("add", total, term)
    if total is None:
        total = number(constant)
    elif constant:
        total = apply("add", total, number(constant))
    return total


def whole(number: int) -> Expr:
    """An integer of any length. One that does not fit 64 bits is written as a sum of products of
    smaller ones: a call computes it exactly, and a kernel modulo 2**64, like any product."""
    if abs(number) < LIMIT:
        return integer(number)
    high, low = divmod(number, DIGIT)
    return apply("add", apply("mul", whole(high), integer(DIGIT)), integer(low))
