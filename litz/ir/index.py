"""The integer algebra of indices: sums of products, floor division and remainder, with ranges.

In: an i64 `Expr`. Out: an equal, simpler one (`simplify`), its bounds, its coefficient in an axis.
No sympy: torch's symbolic sizes are converted to `size` nodes at the border. Every axis carries its
extent, so each rule is decided without context and each node is simplified once.
Example: `((i0 * 128 + i1) // 128) * 768` with i1 < 128 becomes `i0 * 768`.

A polynomial maps a monomial (atoms in order of creation) to its integer coefficient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from math import gcd

from litz.ir.expr import Expr, apply, integer, load, rebuild, transform
from litz.ir.program import Buffer

Monomial = tuple[Expr, ...]
Poly = dict[Monomial, int]
ZERO = integer(0)
ONE = integer(1)
MOST_TERMS = 64


def simplify(root: Expr, memo: dict[Expr, Expr] | None = None) -> Expr:
    """The canonical form of an index expression; other parts of the tree are rebuilt around it.

    A `memo` shared between calls visits what lies below several indices once.
    """
    if root.simple is None:
        root.simple = transform(root, _simplify_node, memo)
        root.simple.simple = root.simple
    return root.simple


def _simplify_node(node: Expr, args: tuple[Expr, ...]) -> Expr:
    if node.simple is not None:
        return node.simple
    if node.op == "axis":
        return node  # its extent is part of its identity
    if node.dtype.name != "i64" or not args:
        return rebuild(node, args)
    if node.op in ("add", "sub", "mul", "neg"):
        result = _canonical(to_poly(rebuild(node, args)))
    elif node.op == "floordiv":
        result = floordiv(args[0], args[1])
    elif node.op == "mod":
        result = modulo(args[0], args[1])
    elif node.op == "check_index" and _within(to_poly(args[0]), to_poly(args[1])):
        result = args[0]
    else:
        return rebuild(node, args)
    node.simple = result
    return result


def _canonical(poly: Poly) -> Expr:
    result = from_poly(_recombine(poly))
    result.simple = result
    return result


@lru_cache(maxsize=4096)
def to_poly(node: Expr) -> Poly:
    """Read an expression as a polynomial over its atoms; shared, so never to be changed."""
    if node.is_const:
        return {(): node.attr} if node.attr else {}
    if node.op in ("add", "sub", "mul", "neg"):
        parts = [to_poly(a) for a in node.args]
        # A large product stays one atom: written out, a chain of squares would grow without end.
        if node.op != "mul" or len(parts[0]) * len(parts[1]) <= MOST_TERMS:
            return _combine(node.op, parts)
    return {(node,): 1}


def _combine(op: str, parts: list[Poly]) -> Poly:
    if op == "mul":
        left, right = parts
        product: Poly = {}
        for m, a in left.items():
            for n, b in right.items():
                key = tuple(sorted(m + n, key=_serial))
                product[key] = product.get(key, 0) + a * b
        return {m: c for m, c in product.items() if c}
    if op == "neg":
        return {m: -c for m, c in parts[0].items()}
    total = dict(parts[0])
    sign = -1 if op == "sub" else 1
    for m, c in parts[1].items():
        total[m] = total.get(m, 0) + sign * c
    return {m: c for m, c in total.items() if c}


def _serial(node: Expr) -> int:
    return node.serial


def from_poly(poly: Poly) -> Expr:
    """Write a polynomial as an expression, the same one every time."""
    constant = poly.get((), 0)
    total: Expr | None = None
    for monomial in sorted((m for m in poly if m), key=lambda m: [a.serial for a in m]):
        term = monomial[0]
        for atom in monomial[1:]:
            term = apply("mul", term, atom)
        if poly[monomial] != 1:
            term = apply("mul", term, integer(poly[monomial]))
        total = term if total is None else apply("add", total, term)
    if total is None:
        total = integer(constant)
    elif constant:
        total = apply("add", total, integer(constant))
    return total


# -- ranges ----------------------------------------------------------------------------------


def bounds(poly: Poly) -> tuple[Poly, Poly] | None:
    """Least and greatest value, as polynomials in sizes; None if an atom has no known range."""
    low: Poly = {}
    high: Poly = {}
    for monomial, factor in poly.items():
        least: Poly = {(): 1}
        most: Poly = {(): 1}
        for atom in monomial:
            span = _atom_bounds(atom)
            if span is None:
                return None
            least, most = _combine("mul", [least, span[0]]), _combine("mul", [most, span[1]])
        if factor < 0:
            least, most = most, least
        low = _combine("add", [low, _combine("mul", [least, {(): factor}])])
        high = _combine("add", [high, _combine("mul", [most, {(): factor}])])
    return low, high


@lru_cache(maxsize=4096)
def _atom_bounds(atom: Expr) -> tuple[Poly, Poly] | None:
    """Range of an atom that is never negative."""
    if atom.op == "axis":
        return {}, _minus_one(to_poly(atom.extent))
    if atom.op == "size":
        return {(atom,): 1}, {(atom,): 1}
    if atom.op == "check_index" or (atom.op == "mod" and _is_positive(atom.args[1])):
        return {}, _minus_one(to_poly(atom.args[1]))
    if atom.op == "floordiv" and _is_positive(atom.args[1]):
        span, by = bounds(to_poly(atom.args[0])), to_poly(atom.args[1])
        if span is None or not is_nonnegative(span[0]):
            return None
        if set(span[1]) | set(by) <= {()}:
            return {}, {(): v} if (v := span[1].get((), 0) // by[()]) else {}
        whole, rest = split_evenly(_combine("add", [span[1], {(): 1}]), by)
        return {}, span[1] if rest else _minus_one(whole)  # x < q * d: then x // d < q
    return None


@lru_cache(maxsize=4096)
def _is_positive(divisor: Expr) -> bool:
    """Whether a remainder by it is never negative."""
    return divisor.op == "size" or is_nonnegative(_minus_one(to_poly(divisor)))


def _minus_one(poly: Poly) -> Poly:
    return _combine("sub", [poly, {(): 1}])


def is_nonnegative(poly: Poly) -> bool:
    """Whether a polynomial in sizes is at least zero wherever the sizes may lie."""
    shifted: Poly = {}
    for monomial, factor in poly.items():
        term: Poly = {(): factor}
        for atom in monomial:
            if atom.op != "size":
                return False
            # s = s' + low with s' >= 0: then non-negative coefficients suffice.
            term = _combine("mul", [term, {(atom,): 1, (): atom.attr[1]}])
        shifted = _combine("add", [shifted, term])
    return all(c >= 0 for c in shifted.values())


@lru_cache(maxsize=4096)
def _is_counted(atom: Expr) -> bool:
    """Whether an atom is made of axes and sizes: what is read from memory may be any number."""
    if atom.op in ("axis", "size", "check_index"):
        return True
    parts = {"mod": atom.args[1:], "floordiv": atom.args}.get(atom.op, ())
    return bool(parts) and all(_cannot_wrap(to_poly(part)) for part in parts)


def _cannot_wrap(poly: Poly) -> bool:
    """Whether a sum is exact in 64 bits, as the laws of division need it to be."""
    return all(_is_counted(atom) for monomial in poly for atom in monomial)


def _within(poly: Poly, limit: Poly) -> bool:
    """0 <= poly < limit."""
    span = bounds(poly)
    if span is None:
        return False
    room = _combine("sub", [_minus_one(limit), span[1]])
    return is_nonnegative(span[0]) and is_nonnegative(room)


def surely_inside(index: Expr, extent: Expr) -> bool:
    """Whether an index lies in 0..extent at every point of its axes."""
    return _within(to_poly(simplify(index)), to_poly(extent))


# -- floor division and remainder ------------------------------------------------------------


def split_evenly(poly: Poly, divisor: Poly) -> tuple[Poly, Poly]:
    """q and r with poly = q * divisor + r, taking into q the terms that divide evenly."""
    if len(divisor) != 1:
        return _split_by_sum(poly, divisor)
    ((wanted, factor),) = divisor.items()
    quotient: Poly = {}
    rest: Poly = {}
    for monomial, c in poly.items():
        left = list(monomial)
        if c % factor == 0 and all(_removed(left, atom) for atom in wanted):
            quotient[tuple(left)] = quotient.get(tuple(left), 0) + c // factor
        else:
            rest[monomial] = c
    return quotient, rest


def _split_by_sum(poly: Poly, divisor: Poly) -> tuple[Poly, Poly]:
    """The same by a sum: by its longest term, unless what is left is no shorter for it."""
    lead = max(divisor, key=lambda m: [len(m), *(a.serial for a in m)], default=())
    whole, _ = split_evenly(poly, {lead: divisor[lead]}) if lead else ({}, poly)
    rest = _combine("sub", [poly, _combine("mul", [whole, divisor])])
    return (whole, rest) if len(rest) < len(poly) else ({}, poly)


def _removed(atoms: list[Expr], atom: Expr) -> bool:
    if atom not in atoms:
        return False
    atoms.remove(atom)
    return True


def _common_factor(poly: Poly, divisor: Poly) -> tuple[Poly, Poly, Poly, int] | None:
    """g, a, b, m with poly = g * a + b, 0 <= b < g and divisor = g * m; g may hold sizes."""
    if len(divisor) != 1:
        return None
    ((wanted, whole),) = divisor.items()
    for number in sorted({gcd(c, whole) for c in poly.values()}, reverse=True):
        g = {wanted: number}
        a, b = split_evenly(poly, g) if g != {(): 1} else ({}, poly)
        if a and _within(b, g):
            return g, a, b, whole // number
    return None


def _single_atom(poly: Poly, op: str) -> Expr | None:
    if len(poly) == 1:
        ((monomial, factor),) = poly.items()
        if factor == 1 and len(monomial) == 1 and monomial[0].op == op:
            return monomial[0]
    return None


def _quotient_of_multiples(p: Poly, d: Poly) -> Expr | None:
    """(q * d + r) // d -> q + r // d"""
    q, r = split_evenly(p, d)
    if not q:
        return None
    return from_poly(_combine("add", [q, to_poly(floordiv(from_poly(r), from_poly(d)))]))


def _quotient_of_less(p: Poly, d: Poly) -> Expr | None:
    """r // d -> 0 if 0 <= r < d"""
    return ZERO if _within(p, d) else None


def _quotient_common_factor(p: Poly, d: Poly) -> Expr | None:
    """(g * a + b) // (g * m) -> a // m if 0 <= b < g"""
    found = _common_factor(p, d)
    if found is None:
        return None
    _, a, _, m = found
    return floordiv(from_poly(a), integer(m))


def _quotient_of_quotient(p: Poly, d: Poly) -> Expr | None:
    """(x // a) // b -> x // (a * b) for positive constants"""
    inner = _single_atom(p, "floordiv")
    if inner is None or set(d) != {()} or not inner.args[1].is_const:
        return None
    if inner.args[1].attr <= 0 or d[()] <= 0:
        return None
    return floordiv(inner.args[0], integer(inner.args[1].attr * d[()]))


def _quotient_of_remainder(p: Poly, d: Poly) -> Expr | None:
    """(x % (a * b)) // b -> (x // b) % a for positive constants"""
    inner = _single_atom(p, "mod")
    if inner is None or set(d) != {()} or not inner.args[1].is_const:
        return None
    whole, part = inner.args[1].attr, d[()]
    if part <= 0 or whole <= 0 or whole % part:
        return None
    return modulo(floordiv(inner.args[0], integer(part)), integer(whole // part))


def _remainder_of_multiples(p: Poly, d: Poly) -> Expr | None:
    """(q * d + r) % d -> r % d"""
    q, r = split_evenly(p, d)
    return modulo(from_poly(r), from_poly(d)) if q else None


def _remainder_of_less(p: Poly, d: Poly) -> Expr | None:
    """r % d -> r if 0 <= r < d"""
    return from_poly(p) if _within(p, d) else None


def _remainder_common_factor(p: Poly, d: Poly) -> Expr | None:
    """(g * a + b) % (g * m) -> g * (a % m) + b if 0 <= b < g"""
    found = _common_factor(p, d)
    if found is None:
        return None
    g, a, b, m = found
    inner = to_poly(modulo(from_poly(a), integer(m)))
    return from_poly(_combine("add", [_combine("mul", [inner, g]), b]))


def _remainder_of_remainder(p: Poly, d: Poly) -> Expr | None:
    """(x % (a * b)) % b -> x % b for positive constants"""
    inner = _single_atom(p, "mod")
    if inner is None or set(d) != {()} or not inner.args[1].is_const:
        return None
    if d[()] <= 0 or inner.args[1].attr % d[()]:
        return None
    return modulo(inner.args[0], integer(d[()]))


IndexRule = Callable[[Poly, Poly], Expr | None]
FLOORDIV_RULES: tuple[IndexRule, ...] = (
    _quotient_of_less,
    _quotient_of_multiples,
    _quotient_common_factor,
    _quotient_of_quotient,
    _quotient_of_remainder,
)
MODULO_RULES: tuple[IndexRule, ...] = (
    _remainder_of_less,
    _remainder_of_multiples,
    _remainder_common_factor,
    _remainder_of_remainder,
)


def floordiv(value: Expr, divisor: Expr) -> Expr:
    """value // divisor, simplified."""
    return _by_rules("floordiv", FLOORDIV_RULES, value, divisor)


def modulo(value: Expr, divisor: Expr) -> Expr:
    """value % divisor, simplified."""
    return _by_rules("mod", MODULO_RULES, value, divisor)


def _by_rules(op: str, rules: Iterable[IndexRule], value: Expr, divisor: Expr) -> Expr:
    p, d = to_poly(value), to_poly(divisor)
    if d == {(): 1}:
        return value if op == "floordiv" else ZERO
    if not d or (set(d) == {()} and d[()] < 0):
        return apply(op, value, divisor)  # never made by lower; kept as it is rather than guessed
    if set(p) <= {()} and set(d) == {()}:
        number = p.get((), 0)
        return integer(number // d[()] if op == "floordiv" else number % d[()])
    for rule in rules if _cannot_wrap(p) and _cannot_wrap(d) else ():
        result = rule(p, d)
        if result is not None:
            return _canonical(to_poly(result))
    result = apply(op, _canonical(p), from_poly(d))
    result.simple = result
    return result


def _recombine(poly: Poly) -> Poly:
    """k*m*(x // m) + k*(x % m) -> k*x, and k*a*((x // a) % b) + k*(x % a) -> k*(x % (a*b))."""
    for monomial in poly:
        for low in monomial:
            merged = _with_partner(poly, monomial, low) if low.op == "mod" else None
            if merged is not None:
                return _recombine(merged)
    return poly


def _with_partner(poly: Poly, monomial: Monomial, low: Expr) -> Poly | None:
    """Without the term of `low` = x % m and the one that holds x // m, or (x // m) % b."""
    x, m = low.args
    rest = list(monomial)
    rest.remove(low)
    k = {tuple(rest): poly[monomial]}
    scale, quotient = _combine("mul", [k, to_poly(m)]), floordiv(x, m)
    for other, factor in poly.items():
        for high in other:
            pairs = high is quotient or (high.op == "mod" and high.args[0] is quotient)
            if pairs and {other: factor} == _combine("mul", [{(high,): 1}, scale]):
                whole = to_poly(x if high is quotient else _merged(x, m, high))
                left = {n: c for n, c in poly.items() if n not in (monomial, other)}
                return _combine("add", [left, _combine("mul", [whole, k])])
    return None


def _merged(x: Expr, m: Expr, high: Expr) -> Expr:
    return modulo(x, from_poly(_combine("mul", [to_poly(m), to_poly(high.args[1])])))


def simplify_indices(root: Expr) -> Expr:
    """Simplify what loads are indexed by; values, which may wrap, stay as they are."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        if node.op != "load":
            return node
        return load(node.buffer, tuple(simplify(i) for i in node.index), node.guard)

    return transform(root, change)


# -- what the stages ask ---------------------------------------------------------------------


def flat_index(buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
    """The element offset of an index: the sum of index times stride."""
    total: Poly = {}
    for i, stride in zip(index, buffer.strides, strict=True):
        total = _combine("add", [total, _combine("mul", [to_poly(simplify(i)), to_poly(stride)])])
    return _canonical(total)


def product(sizes: Iterable[Expr]) -> Expr:
    """The product of sizes."""
    total: Poly = {(): 1}
    for s in sizes:
        total = _combine("mul", [total, to_poly(s)])
    return from_poly(total)


def row_major(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The strides of a contiguous buffer; torch counts a size of zero as one."""
    counted = [ONE if n is ZERO else n for n in shape]
    return tuple(product(counted[k + 1 :]) for k in range(len(shape)))


def ravel(index: tuple[Expr, ...], shape: tuple[Expr, ...]) -> Expr:
    """Row-major number of an index."""
    total = ZERO
    for i, n in zip(index, shape, strict=True):
        total = simplify(apply("add", apply("mul", total, n), i))
    return total


def unravel(flat: Expr, shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The index whose row-major number is `flat`."""
    result: list[Expr] = []
    for position in range(len(shape)):
        step = product(shape[position + 1 :])
        part = floordiv(flat, step) if step is not ONE else flat
        result.append(modulo(part, shape[position]) if position else part)
    if result and shape[0] is ONE:
        result[0] = ZERO
    return tuple(result)


def coefficient(index: Expr, variable: Expr) -> tuple[Expr, Expr] | None:
    """stride and rest with index = stride * variable + rest; None if it is not affine in it."""
    stride: Poly = {}
    rest: Poly = {}
    for monomial, c in to_poly(simplify(index)).items():
        if variable in monomial:
            left = list(monomial)
            left.remove(variable)
            if any(variable in atom.axes for atom in left):
                return None
            stride[tuple(left)] = stride.get(tuple(left), 0) + c
        elif any(variable in atom.axes for atom in monomial):
            return None
        else:
            rest[monomial] = c
    return from_poly(stride), from_poly(rest)
