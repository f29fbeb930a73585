"""Splitting and merging of axes, so that indices have no divisions and loops are long.

In: a flat `Kernel`. Out: an equal one.

    split:  b0[i] = b1[(i // 64) * 4096 + i % 64]   ->   b0[h * 64 + l] = b1[h * 4096 + l]
    merge:  b0[o0 * 768 + o1] = b1[o0 * 768 + o1]   ->   b0[m0] = b1[m0]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from litz.ir.expr import Expr, axis, extent_of, integer, rebuild, reduce, transform, walk
from litz.ir.index import coefficient, floordiv, modulo, ravel, simplify, simplify_values
from litz.ir.program import Kernel, Phase, exprs_of, loads
from litz.ir.sizes import at_least, count_of, is_polynomial, quotient

Axes = tuple[Expr, ...]


def replace_axes(
    kernel: Kernel, places: Mapping[Expr, Axes], values: Mapping[Expr, Expr]
) -> Kernel:
    """Replace axes by new ones, and express the old ones in terms of them."""
    memo: dict[Expr, Expr] = {}
    phases = tuple(_in_phase(p, places, values, memo) for p in kernel.phases)
    outer = _renamed(kernel.outer, places)
    return Kernel(kernel.name, outer, phases, kernel.scratch, kernel.origins)


def _in_phase(
    phase: Phase, places: Mapping[Expr, Axes], values: Mapping[Expr, Expr], memo: dict[Expr, Expr]
) -> Phase:
    def moved(root: Expr) -> Expr:
        return _substitute(root, values, places, memo)

    stores = tuple(
        replace(
            s,
            index=tuple(simplify(moved(i)) for i in s.index),
            value=simplify_values(moved(s.value)),
        )
        for s in phase.stores
    )
    pattern = phase.pattern and phase.pattern.moved(places)
    return Phase(_renamed(phase.inner, places), phase.is_reduction, stores, pattern=pattern)


def _renamed(axes: Axes, places: Mapping[Expr, Axes]) -> Axes:
    return tuple(new for a in axes for new in places.get(a, (a,)))


def _substitute(
    root: Expr, values: Mapping[Expr, Expr], places: Mapping[Expr, Axes], memo: dict[Expr, Expr]
) -> Expr:
    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        found = values.get(node)
        if found is not None:
            return found
        if node.op == "reduce":
            bound = tuple(new for a in node.attr[1] for new in places.get(a, (a,)))
            return reduce(node.attr[0], bound, args[0])
        return rebuild(node, args)

    return transform(root, change, memo)


def _divided_axis(kernel: Kernel) -> tuple[Expr, Expr, Expr] | None:
    """An axis that is divided by a factor of its extent, the factor, and the quotient."""
    for root in exprs_of(kernel):
        for node in walk(root):
            if node.op not in ("floordiv", "mod") or node.dtype.name != "i64":
                continue
            variable, by = node.args
            # A program may divide an index by a negative number, which is no extent.
            if variable.op != "axis" or not at_least(by, integer(2)):
                continue
            count = quotient(variable.extent, by)
            if count is not None:
                return variable, by, count
    return None


MAX_AXIS_SPLITS = 16


def split_axes(kernel: Kernel) -> Kernel:
    """Split every axis that is divided by a factor of its extent."""
    for _ in range(MAX_AXIS_SPLITS):
        found = _divided_axis(kernel)
        if found is None:
            return kernel
        variable, by, count = found
        if _scanned(kernel, variable):
            return kernel
        high = axis(f"{variable.attr}h", count)
        low = axis(f"{variable.attr}l", by)
        whole = ravel((high, low), (high.extent, low.extent))
        kernel = replace_axes(kernel, {variable: (high, low)}, {variable: whole})
    return kernel


def _scanned(kernel: Kernel, variable: Expr) -> bool:
    """A scan runs along its whole axis, which is therefore not split or merged."""
    nodes = (n for root in exprs_of(kernel) for n in walk(root))
    return any(n.op == "scan" and n.args[1] is variable for n in nodes)


def merge_axes(kernel: Kernel) -> Kernel:
    """Merge adjacent axes that every index walks as one."""
    changed = True
    while changed:
        changed = False
        for axes in [kernel.outer, *(p.inner for p in kernel.phases)]:
            for first, second in pairwise(axes):
                merged = _merged(kernel, first, second)
                if merged is not None:
                    kernel, changed = merged, True
                    break
            if changed:
                break
    return kernel


def _merged(kernel: Kernel, first: Expr, second: Expr) -> Kernel | None:
    """The kernel with two axes merged, unless an index would then need a division."""
    if _scanned(kernel, first) or _scanned(kernel, second):
        return None
    for other in [kernel.outer, *(p.inner for p in kernel.phases)]:
        together = [a for a in other if a is first or a is second]
        if together and together != [first, second]:
            return None
    whole = axis(f"{first.attr}{second.attr}", count_of((first, second)))
    values = {first: floordiv(whole, second.extent), second: modulo(whole, second.extent)}
    places: dict[Expr, Axes] = {first: (whole,), second: ()}
    merged = replace_axes(kernel, places, values)
    nodes = (n for root in exprs_of(merged) for n in walk(root))
    if any(n.op in ("floordiv", "mod") and whole in n.args[0].axes for n in nodes):
        return None
    return merged


def canonical_axes(kernel: Kernel) -> Kernel:
    """Name axes by position: kernels that differ only in names become equal.

    Phase by phase: an axis of several phases may have another position in each.
    """
    outer = {a: (axis(f"o{k}", a.extent),) for k, a in enumerate(kernel.outer)}
    phases = []
    for phase in kernel.phases:
        inner = {a: (axis(f"j{k}", a.extent),) for k, a in enumerate(phase.inner)}
        places = outer | inner
        values = {old: new for old, (new,) in places.items()}
        phases.append(_in_phase(phase, places, values, {}))
    renamed = _renamed(kernel.outer, outer)
    return Kernel(kernel.name, renamed, tuple(phases), kernel.scratch, kernel.origins)


def order_axes(kernel: Kernel) -> Kernel:
    """Put outer axes in the order that walks most bytes forwards, so that neighbours merge.

    outer i0 < 32, i1 < 16: b0[i0 + i1 * 32] = ...   ->   outer i1 < 16, i0 < 32: ...
    """
    if len(kernel.outer) < 2:
        return kernel
    moved = _moved(kernel)
    steps = {index: {a: stride_along(index, a) for a in kernel.outer} for index in moved}
    orders = dict.fromkeys(_falling(strides) for strides in steps.values())

    def forwards(order: Axes) -> int:
        return sum(moved[index] for index, strides in steps.items() if _falls(strides, order))

    return reorder_outer(kernel, max(orders, key=forwards))


def _moved(kernel: Kernel) -> Counter[Expr]:
    """The bytes moved at each index. A store counts twice: its lines are read, then written."""
    moved: Counter[Expr] = Counter()
    for store in kernel.stores:
        accesses = [(store.index[0], store.buffer, 2)]
        accesses += [(n.index[0], n.buffer, 1) for n in loads(store.value)]
        for index, buffer, times in accesses:
            if buffer not in kernel.scratch:
                moved[index] += times * extent_of(index.axes) * buffer.dtype.bytes
    return moved


def _falling(strides: dict[Expr, int]) -> Axes:
    """The axes of an access by its strides, largest first."""
    return tuple(sorted(strides, key=lambda a: -strides[a]))


def _falls(strides: dict[Expr, int], order: Axes) -> bool:
    """Whether strides fall along an order; an axis with stride zero may be anywhere."""
    moving = [strides[a] for a in order if strides[a]]
    return all(big >= small for big, small in pairwise(moving))


def stride_along(index: Expr, variable: Expr) -> int:
    """The stride of an index along an axis, by its hint if symbolic; 0 if it is not constant."""
    found = coefficient(index, variable)
    return found[0].hint if found is not None and is_polynomial(found[0]) else 0


def reorder_outer(kernel: Kernel, outer: Axes) -> Kernel:
    """The same points in another order."""
    assert set(outer) == set(kernel.outer)
    return Kernel(kernel.name, outer, kernel.phases, kernel.scratch, kernel.origins)


def reorder_inner(kernel: Kernel, inner: list[Axes]) -> Kernel:
    """The same points of each phase in another order."""
    phases = tuple(replace(p, inner=axes) for axes, p in zip(inner, kernel.phases, strict=True))
    return Kernel(kernel.name, kernel.outer, phases, kernel.scratch, kernel.origins)
