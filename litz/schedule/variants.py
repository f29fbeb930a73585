"""Size variants of a kernel with symbolic sizes: the same loops, scheduled for other size hints.

In: a `Kernel`, and a hint for its symbolic sizes. Out: the kernel with that hint. A schedule made
for it is correct for every size, as all are, and good for sizes near the hint. A call picks a
variant by one measure of its sizes: of two, the nearer by ratio. Example: with the hints 8 and 512,
a softmax over rows of s0 takes the first up to 64 and the second beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from litz.ir.expr import Expr, load, rebuild, reduce, size, transform
from litz.ir.program import Buffer, Kernel, Phase, Store
from litz.ir.scheduled import ScheduledKernel, SizeVariant
from litz.ir.sizes import count_of

Hinted = Callable[[Expr], Expr]
Schedule = Callable[[Kernel], ScheduledKernel]


def measure_of(kernel: Kernel) -> Expr:
    """The size that choices depend on most: the length of rows or, if known, their number."""
    inner = max((count_of(p.inner) for p in kernel.phases), key=lambda n: n.hint)
    return count_of(kernel.outer) if inner.is_const else inner


def hinted(kernel: Kernel, hint: int) -> Kernel:
    """The kernel as if each of its symbolic sizes had this value at tracing."""
    changed = _changer(lambda name, low, high: min(max(hint, low), hint if high is None else high))
    return _rewritten(kernel, changed)


def with_variants(
    main: ScheduledKernel, kernel: Kernel, hints: Sequence[int], scheduled: Schedule
) -> ScheduledKernel:
    """The schedule with variants for other sizes, each from some measure on."""
    measure = measure_of(kernel)
    if measure.is_const or not hints:
        return main
    real = {b.name: b for b in main.arguments}
    schedules = {measure.hint: main}
    for hint in hints:
        count = measured(measure, hint)
        if count < 1:
            continue  # not all symbols can have this value: a window as long as its row
        schedule = scheduled(hinted(kernel, hint))
        arguments = tuple(real[b.name] for b in schedule.arguments)
        schedules[count] = replace(schedule, arguments=arguments)
    if len(schedules) == 1:
        return main
    counts = sorted(schedules)
    begins = [0, *(math.isqrt(a * b) + 1 for a, b in pairwise(counts))]
    found = [
        SizeVariant(begin, schedules[count]) for begin, count in zip(begins, counts, strict=True)
    ]
    return replace(main, variants=tuple(found), measure=measure)


def measured(measure: Expr, hint: int) -> int:
    """The measure if each symbolic size has this value."""
    return _changer(lambda *_: hint)(measure).hint


def _changer(value: Callable[[str, int, int | None], int]) -> Hinted:
    """Give each size another hint; sizes computed from others follow."""
    memo: dict[Expr, Expr] = {}

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op != "size":
            return rebuild(node, args)
        name, low, high, seen = node.attr
        if node.dtype.is_float:  # no choice depends on it
            return size(name, low, high, seen, args[0], node.dtype) if args else node
        if args:
            return size(name, low, high, args[0].hint, args[0])
        return size(name, low, high, value(name, low, high))

    return lambda root: transform(root, change, memo)


def _rewritten(kernel: Kernel, changed: Hinted) -> Kernel:
    """A kernel with every size changed, in axes, values and buffers."""
    memo: dict[Expr, Expr] = {}
    buffers: dict[Buffer, Buffer] = {}

    def buffer(old: Buffer) -> Buffer:
        if old not in buffers:
            shape, strides = tuple(map(changed, old.shape)), tuple(map(changed, old.strides))
            buffers[old] = Buffer(old.name, old.dtype, shape, strides, old.device)
        return buffers[old]

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op == "size":
            return changed(node)
        if node.op == "load":
            guarded = node.guard is not None
            index = args[:-1] if guarded else args
            return load(buffer(node.buffer), index, args[-1] if guarded else None)
        if node.op == "reduce":
            return reduce(node.attr[0], tuple(map(moved, node.attr[1])), args[0])
        return rebuild(node, args)

    def moved(root: Expr) -> Expr:
        return transform(root, change, memo)

    def store(old: Store) -> Store:
        index = tuple(map(moved, old.index))
        return Store(buffer(old.buffer), index, moved(old.value), old.mode)

    def phase(old: Phase) -> Phase:
        axes = {a: (moved(a),) for a in (*kernel.outer, *old.inner, *old.summed)}
        inner, summed = (tuple(map(moved, each)) for each in (old.inner, old.summed))
        pattern = old.pattern and old.pattern.moved(axes)
        return Phase(inner, old.is_reduction, tuple(map(store, old.stores)), summed, pattern)

    phases = tuple(map(phase, kernel.phases))
    outer, scratch = tuple(map(moved, kernel.outer)), tuple(map(buffer, kernel.scratch))
    return Kernel(kernel.name, outer, phases, scratch, kernel.origins)
