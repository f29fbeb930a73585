"""The integer algebra of indices: sums of products, floor division and remainder, with ranges.

In: an i64 `Expr`. Out: an equal, simpler one (`simplify`), its bounds, its coefficient in an axis.
No sympy: torch's symbolic sizes are converted to `size` nodes at the border. Every axis carries its
extent, so each rule is decided without context and each node is simplified once.
Example: `((i0 * 128 + i1) // 128) * 768` with i1 < 128 becomes `i0 * 768`.

It computes with unbounded integers, as is right for addresses. A value of a program may wrap, so
only the parts of a value that cannot wrap are simplified (`simplify_values`, `ir/magnitude.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import combinations
from math import gcd

from litz.ir.dtypes import I64
from litz.ir.expr import Expr, apply, integer, load, rebuild, transform
from litz.ir.magnitude import ARITHMETIC, LIMIT, is_exact
from litz.ir.order import order
from litz.ir.poly import Monomial, combine
from litz.ir.poly import Poly as Poly
from litz.ir.poly import from_poly as from_poly
from litz.ir.poly import to_poly as to_poly
from litz.ir.program import Buffer

ZERO = integer(0)
ONE = integer(1)
CACHED = 4096  # answers that a function keeps: layers of a model ask the same, one after the other


# The two ways to simplify a node, named by the slot that keeps the result: as an address or a part
# of one, or as a value, whose arithmetic may wrap.
ADDRESS, VALUE = "simple", "simple_value"


def simplify(root: Expr) -> Expr:
    """The canonical form of an index expression; other parts of the tree are rebuilt around it."""
    if root.simple is None:
        root.simple = _solved(root, ADDRESS)
        root.simple.simple = root.simple
    return root.simple


def simplify_values(root: Expr) -> Expr:
    """Simplify the indices of loads, and the values that cannot wrap."""
    return _solved(root, VALUE)


def _solved(root: Expr, way: str) -> Expr:
    """A node simplified in one of the ways, operands first, each node once."""
    stack = [(root, way)]
    while stack:
        node, way = stack[-1]
        if getattr(node, way) is None:
            needs = _needs(node, way)
            missing = [need for need in needs if getattr(*need) is None]
            if missing:
                stack.extend(missing)
                continue
            args = tuple(getattr(*need) for need in needs)
            setattr(node, way, (_as_address if way == ADDRESS else _as_value)(node, args))
        stack.pop()
    found: Expr = getattr(root, way)
    return found


def _needs(node: Expr, way: str) -> list[tuple[Expr, str]]:
    """The operands of a node, each with the way to simplify it; none for an axis or a size."""
    if node.op in ("axis", "size"):
        return []
    if node.op == "load":
        guard = [] if node.guard is None else [(node.guard, VALUE)]
        return [(i, ADDRESS) for i in node.index] + guard
    if node.op == "check_index":  # an index that the program computed
        return [(node.args[0], VALUE), (node.args[1], ADDRESS)]
    if node.dtype is not I64:
        way = VALUE
    return [(a, way) for a in node.args]


def _as_address(node: Expr, args: tuple[Expr, ...]) -> Expr:
    if node.dtype is not I64 or not args:
        return rebuild(node, args) if args else node
    if node.op in ("add", "sub", "mul", "neg"):
        return _canonical(to_poly(rebuild(node, args)))
    if node.op == "floordiv":
        return floordiv(args[0], args[1])
    if node.op == "mod":
        return modulo(args[0], args[1])
    return _checked(rebuild(node, args)) if node.op == "check_index" else rebuild(node, args)


def _as_value(node: Expr, args: tuple[Expr, ...]) -> Expr:
    if not args:
        return node
    node = rebuild(node, args)
    return simplify(node) if node.op in ARITHMETIC and is_exact(node) else node


def _checked(node: Expr) -> Expr:
    """A `check_index` node, or its index alone if that is exact and surely in range."""
    value, extent = node.args
    return value if is_exact(value) and _within(to_poly(value), to_poly(extent)) else node


def _canonical(poly: Poly) -> Expr:
    result = from_poly(_recombine(poly))
    result.simple = result
    return result


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
            least, most = combine("mul", [least, span[0]]), combine("mul", [most, span[1]])
        if factor < 0:
            least, most = most, least
        low = combine("add", [low, combine("mul", [least, {(): factor}])])
        high = combine("add", [high, combine("mul", [most, {(): factor}])])
    return low, high


@lru_cache(maxsize=CACHED)
def _atom_bounds(atom: Expr) -> tuple[Poly, Poly] | None:
    """The range of an atom that is never negative; None for any other."""
    if atom.op == "axis":
        return {}, _minus_one(to_poly(atom.extent))
    if atom.op == "size":
        return ({(atom,): 1}, {(atom,): 1}) if atom.attr[1] >= 0 else None
    if atom.op == "check_index" or (atom.op == "mod" and _is_positive(atom.args[1])):
        return {}, _minus_one(to_poly(atom.args[1]))
    if atom.op == "floordiv" and _is_positive(atom.args[1]):
        span, by = bounds(to_poly(atom.args[0])), to_poly(atom.args[1])
        if span is None or not is_nonnegative(span[0]):
            return None
        if set(span[1]) | set(by) <= {()}:
            return {}, {(): v} if (v := span[1].get((), 0) // by[()]) else {}
        whole, rest = split_evenly(combine("add", [span[1], {(): 1}]), by)
        return {}, span[1] if rest else _minus_one(whole)  # x < q * d: then x // d < q
    return None


@lru_cache(maxsize=CACHED)
def _is_positive(divisor: Expr) -> bool:
    """Whether a remainder by it is never negative."""
    counts = divisor.op == "size" and divisor.attr[1] >= 0  # if it is zero, no loop runs
    return counts or is_nonnegative(_minus_one(to_poly(divisor)))


def _minus_one(poly: Poly) -> Poly:
    return combine("sub", [poly, {(): 1}])


def is_nonnegative(poly: Poly) -> bool:
    """Whether a polynomial in sizes is at least zero wherever the sizes may lie."""
    shifted: Poly = {}
    for monomial, factor in poly.items():
        term: Poly = {(): factor}
        for atom in monomial:
            if atom.op != "size":
                return False
            # s = s' + low with s' >= 0: then non-negative coefficients suffice.
            term = combine("mul", [term, {(atom,): 1, (): atom.attr[1]}])
        shifted = combine("add", [shifted, term])
    return all(c >= 0 for c in shifted.values())


@lru_cache(maxsize=CACHED)
def _is_counted(atom: Expr) -> bool:
    """Whether an atom is computed from axes and sizes; a number from memory may be anything."""
    if atom.op in ("axis", "size", "check_index"):
        return True
    parts = {"mod": atom.args[1:], "floordiv": atom.args}.get(atom.op, ())
    return bool(parts) and all(_cannot_wrap(to_poly(part)) for part in parts)


def _cannot_wrap(poly: Poly) -> bool:
    """Whether a sum is exact in 64 bits, which the rules of division need."""
    return all(_is_counted(atom) for monomial in poly for atom in monomial)


def _within(poly: Poly, limit: Poly) -> bool:
    """0 <= poly < limit."""
    span = bounds(poly)
    if span is None:
        return False
    room = combine("sub", [_minus_one(limit), span[1]])
    return is_nonnegative(span[0]) and is_nonnegative(room)


@lru_cache(maxsize=CACHED)
def surely_inside(index: Expr, extent: Expr) -> bool:
    """Whether an index lies in 0..extent at every point of its axes."""
    return _within(to_poly(simplify(index)), to_poly(extent))


# -- floor division and remainder ------------------------------------------------------------


def split_evenly(poly: Poly, divisor: Poly) -> tuple[Poly, Poly]:
    """q and r with poly = q * divisor + r; q has the terms that divide evenly."""
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
    """The same by a sum: divide by its longest term, unless that leaves no shorter a rest."""
    lead = max(divisor, key=lambda m: [len(m), *(order(a) for a in m)], default=())
    whole, _ = split_evenly(poly, {lead: divisor[lead]}) if lead else ({}, poly)
    rest = combine("sub", [poly, combine("mul", [whole, divisor])])
    return (whole, rest) if len(rest) < len(poly) else ({}, poly)


def _removed(atoms: list[Expr], atom: Expr) -> bool:
    if atom not in atoms:
        return False
    atoms.remove(atom)
    return True


def _common_factor(poly: Poly, divisor: Poly) -> tuple[Poly, Poly, Poly, Expr] | None:
    """g, a, b, m with poly = g * a + b, 0 <= b < g and divisor = g * m; both may hold sizes."""
    if len(divisor) != 1:
        return None
    ((wanted, whole),) = divisor.items()
    numbers = sorted({gcd(c, whole) for c in poly.values()}, reverse=True)
    for count in range(len(wanted), -1, -1):
        for atoms in dict.fromkeys(combinations(wanted, count)):
            for number in numbers if atoms else [n for n in numbers if n > 1]:
                g = {atoms: number}
                a, b = split_evenly(poly, g)
                if a and _within(b, g):
                    m, _ = split_evenly(divisor, g)
                    return g, a, b, from_poly(m)
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
    return from_poly(combine("add", [q, to_poly(floordiv(from_poly(r), from_poly(d)))]))


def _quotient_of_less(p: Poly, d: Poly) -> Expr | None:
    """r // d -> 0 if 0 <= r < d"""
    return ZERO if _within(p, d) else None


def _quotient_common_factor(p: Poly, d: Poly) -> Expr | None:
    """(g * a + b) // (g * m) -> a // m if 0 <= b < g"""
    found = _common_factor(p, d)
    if found is None:
        return None
    _, a, _, m = found
    return floordiv(from_poly(a), m)


def _quotient_of_quotient(p: Poly, d: Poly) -> Expr | None:
    """(x // a) // b -> x // (a * b) for positive constants"""
    inner = _single_atom(p, "floordiv")
    if inner is None or set(d) != {()} or not inner.args[1].is_const:
        return None
    both = inner.args[1].attr * d[()]
    if inner.args[1].attr <= 0 or not 0 < both < LIMIT:
        return None
    return floordiv(inner.args[0], integer(both))


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
    inner = to_poly(modulo(from_poly(a), m))
    return from_poly(combine("add", [combine("mul", [inner, g]), b]))


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


@lru_cache(maxsize=CACHED)
def floordiv(value: Expr, divisor: Expr) -> Expr:
    """value // divisor, simplified."""
    return _by_rules("floordiv", FLOORDIV_RULES, value, divisor)


@lru_cache(maxsize=CACHED)
def modulo(value: Expr, divisor: Expr) -> Expr:
    """value % divisor, simplified."""
    return _by_rules("mod", MODULO_RULES, value, divisor)


def _by_rules(op: str, rules: Iterable[IndexRule], value: Expr, divisor: Expr) -> Expr:
    p, d = to_poly(value), to_poly(divisor)
    if d == {(): 1}:
        return value if op == "floordiv" else ZERO
    if not d or (set(d) == {()} and d[()] < 0):
        return apply(op, value, divisor)  # `lower` never makes one, so no rule covers it
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
    """The sum with two terms merged: that of `low` = x % m, and that of x // m or (x // m) % b."""
    x, m = low.args
    rest = list(monomial)
    rest.remove(low)
    k = {tuple(rest): poly[monomial]}
    scale, quotient = combine("mul", [k, to_poly(m)]), floordiv(x, m)
    for other, factor in poly.items():
        for high in other:
            pairs = high is quotient or (high.op == "mod" and high.args[0] is quotient)
            if pairs and {other: factor} == combine("mul", [{(high,): 1}, scale]):
                whole = to_poly(x if high is quotient else _merged(x, m, high))
                left = {n: c for n, c in poly.items() if n not in (monomial, other)}
                return combine("add", [left, combine("mul", [whole, k])])
    return None


def _merged(x: Expr, m: Expr, high: Expr) -> Expr:
    return modulo(x, from_poly(combine("mul", [to_poly(m), to_poly(high.args[1])])))


def simplify_indices(root: Expr) -> Expr:
    """Simplify the indices of loads; values, which may wrap, stay as they are."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        if node.op != "load":
            return node
        return load(node.buffer, tuple(simplify(i) for i in node.index), node.guard)

    return transform(root, change)


# -- offsets and shapes, for the stages --------------------------------------------------------


def flat_index(buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
    """The element offset of an index: the sum of index times stride."""
    total: Poly = {}
    for i, stride in zip(index, buffer.strides, strict=True):
        total = combine("add", [total, combine("mul", [to_poly(simplify(i)), to_poly(stride)])])
    return _canonical(total)


def size_product(sizes: Iterable[Expr]) -> Expr:
    """The product of sizes."""
    return _size_product(tuple(sizes))


@lru_cache(maxsize=CACHED)
def _size_product(sizes: tuple[Expr, ...]) -> Expr:
    total: Poly = {(): 1}
    for s in sizes:
        total = combine("mul", [total, to_poly(s)])
    return from_poly(total)


def row_major(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The strides of a contiguous buffer; as in torch, a size of zero counts as one."""
    counted = [ONE if n is ZERO else n for n in shape]
    return tuple(size_product(counted[k + 1 :]) for k in range(len(shape)))


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
        step = size_product(shape[position + 1 :])
        part = floordiv(flat, step) if step is not ONE else flat
        result.append(modulo(part, shape[position]) if position else part)
    if result and shape[0] is ONE:
        result[0] = ZERO
    return tuple(result)


@lru_cache(maxsize=CACHED)
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
