"""Index coverage: the axes of a value that its readers cover completely, so that all checks run.

In: the axes of a value, a load of it, and the axes of its reader that run over their whole extent.
Out: the axes of the value that the load covers. Example: `t[i0 // 4, i0 % 4]` with `i0 < 20` covers
all of `t: [5, 4]`, and `t[i0, i1]` with `i0 < 2` covers only its second axis. An axis that is not
proven to be covered counts as not covered.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from litz.ir.checks import CHECK_OPS
from litz.ir.expr import Expr, apply, integer, walk
from litz.ir.index import ONE, ZERO, coefficient, simplify
from litz.ir.program import Store
from litz.ir.sizes import at_least, difference

Axes = frozenset[Expr]
Dimension = tuple[Expr, Expr]  # an axis of the value, and the index that reads it


def checks_of(store: Store) -> set[Axes]:
    """The axes that each check of a stored value depends on."""
    nodes = walk(store.value, *store.index)
    return {n.axes & frozenset(store.index) for n in nodes if n.op in CHECK_OPS}


def walked(place: tuple[Expr, ...], node: Expr, whole: Axes) -> Axes:
    """The axes of a value, stored at `place`, that a load covers; `whole` are the reader's."""
    if node.index == place:
        return whole & frozenset(place)
    dimensions = [(a, i) for a, i in zip(place, node.index, strict=True) if a.op == "axis"]
    found: set[Expr] = set()
    for group in _groups(dimensions):
        used = frozenset().union(*(i.axes for _, i in group))
        if used and used <= whole and _covers(group, used, node.guard is not None):
            found.update(a for a, _ in group)
    return frozenset(found)


def unrolled(place: tuple[Expr, ...], nodes: list[Expr]) -> dict[Expr, Axes]:
    """Load -> the axes of a value that several loads with constant indices cover together, as in
    an unrolled sum."""
    nodes = [n for n in nodes if n.guard is None]
    along = [
        k
        for k, a in enumerate(place)
        if a.op == "axis" and a.extent.is_const and all(n.index[k].is_const for n in nodes)
    ]
    count = prod(place[k].extent.number for k in along)
    if not along or count > len(nodes):
        return {}
    alike: dict[tuple[Expr, ...], list[Expr]] = {}
    for n in nodes:
        alike.setdefault(tuple(i for k, i in enumerate(n.index) if k not in along), []).append(n)
    axes = frozenset(place[k] for k in along)
    # Indices are in range: as many different ones as the value has positions are all of them.
    whole = [m for m in alike.values() if len({n.index for n in m}) == count]
    return {n: axes for members in whole for n in members}


def _groups(dimensions: Iterable[Dimension]) -> list[list[Dimension]]:
    """Dimensions whose indices have no axis in common are covered independently."""
    groups: list[tuple[set[Expr], list[Dimension]]] = []
    for dimension in dimensions:
        used, members = set(dimension[1].axes), [dimension]
        for other in [g for g in groups if g[0] & used]:
            groups.remove(other)
            used, members = used | other[0], [*other[1], *members]
        groups.append((used, members))
    return [members for _, members in groups]


def _covers(group: list[Dimension], used: Axes, guarded: bool) -> bool:
    if any(n.op == "load" for n in walk(*(i for _, i in group))):
        return False
    if len(group) == len(used) == 1:
        return _covers_one(*group[0], *used)
    return not guarded and _covers_all(group, used)


def _covers_one(axis: Expr, index: Expr, variable: Expr) -> bool:
    """Whether an index moves in steps of one, from the first position or before it to the last or
    beyond; a guard excludes positions outside."""
    found = coefficient(index, variable)
    if found is None or found[0] not in (ONE, integer(-1)):
        return False
    step, start = found
    end = simplify(apply("add", start, apply("mul", step, difference(variable.extent, ONE))))
    first, last = (start, end) if step is ONE else (end, start)
    return at_least(ZERO, first) and at_least(last, difference(axis.extent, ONE))


def _covers_all(group: list[Dimension], used: Axes) -> bool:
    """Whether the axes are the digits of the flat index, and it has as many values as there are
    elements."""
    flat: Expr = ZERO
    count: Expr = ONE
    for axis, index in group:
        flat = apply("add", apply("mul", flat, axis.extent), index)
        count = simplify(apply("mul", count, axis.extent))
    flat, digits = simplify(flat), []
    for variable in used:
        found = coefficient(flat, variable)
        if found is None:
            return False
        digits.append((found[0], variable.extent))
        flat = found[1]
    reach: Expr = ONE
    for step, extent in sorted(digits, key=lambda digit: digit[0].hint):
        if step is not reach:
            return False
        reach = simplify(apply("mul", reach, extent))
    return flat is ZERO and reach is count
