"""Scratch on a GPU, where a program has no private memory that it can index.

In: a flat `Kernel` with one row axis per phase, and how much of a row is taken at a time. Out: an
equal kernel whose scratch fits registers, and the buffers that had to go to memory. Scratch that is
written and read at the same index, a whole row at once, is a register of each point. Other scratch
is recomputed where it is read. If it cannot be (a running sum), it becomes an argument.

    s0[r] = exp(b1[x * 9 + r]);  b0[x * 9 + r] = s0[8 - r]   ->   b0[...] = exp(b1[x * 9 + 8 - r])
"""

from __future__ import annotations

from dataclasses import replace

from litz.ir.expr import (
    Expr,
    apply,
    const,
    load,
    rebuild,
    substitute,
    transform,
    walk,
)
from litz.ir.index import ONE, ravel, simplify, simplify_indices, size_product
from litz.ir.program import Buffer, Kernel, Store, exprs_of, loads
from litz.ir.store_forwarding import guarded


def place_scratch(kernel: Kernel, row: int, first: int) -> tuple[Kernel, tuple[Buffer, ...]]:
    """The kernel without scratch that does not fit registers, and the buffers that went to memory,
    its arguments from number `first` on. A recomputed value reads other scratch at new indices, so
    all scratch is examined again after each change."""
    placed: list[Buffer] = []
    while buffer := next((b for b in kernel.scratch if not _in_registers(kernel, b, row)), None):
        value = _definition(kernel, buffer)
        if value is not None:
            kernel = _computed_again(kernel, buffer, value)
        else:
            span = size_product((buffer.shape[0], *(a.extent for a in kernel.outer)))
            name = f"b{first + len(placed)}"
            placed.append(Buffer(name, buffer.dtype, (span,), (ONE,), buffer.device))
            kernel = _in_memory(kernel, buffer, placed[-1])
    return kernel, tuple(placed)


def _stores(kernel: Kernel, buffer: Buffer) -> list[Store]:
    return [s for s in kernel.stores if s.buffer == buffer]


def _in_registers(kernel: Kernel, buffer: Buffer, row: int) -> bool:
    """One store, and every load at its index: a number per row, or per point of a row that is taken
    whole."""
    stores = _stores(kernel, buffer)
    reads = [n for n in loads(*exprs_of(kernel)) if n.buffer == buffer]
    if len(stores) != 1 or any(n.index != stores[0].index for n in reads):
        return False
    inner = stores[0].index[0].axes - set(kernel.outer)
    return all(a.extent.is_const and a.extent.number <= row for a in inner)


def _definition(kernel: Kernel, buffer: Buffer) -> tuple[Expr, Expr] | None:
    """The row axis and the value at each of its points, if it can be recomputed anywhere."""
    stores = _stores(kernel, buffer)
    if len(stores) != 1 or stores[0].scatters or stores[0].index[0].op != "axis":
        return None
    value, written = stores[0].value, {s.buffer for s in kernel.stores}
    if any(n.op in ("scan", "reduce") for n in walk(value)):
        return None
    if any(n.buffer in written - set(kernel.scratch) for n in loads(value)):
        return None  # another phase may have overwritten it by then
    return stores[0].index[0], value


def _rewritten(kernel: Kernel, change: object, drop: Buffer | None) -> Kernel:
    """Every expression changed; stores to `drop` are removed, and phases left empty by that."""
    memo: dict[Expr, Expr] = {}

    def changed(root: Expr) -> Expr:
        return simplify_indices(transform(root, change, memo))  # type: ignore[arg-type]

    phases = []
    for phase in kernel.phases:
        stores = tuple(
            replace(s, index=tuple(map(changed, s.index)), value=changed(s.value))
            for s in phase.stores
            if s.buffer != drop
        )
        if stores:
            phases.append(replace(phase, stores=stores))
    return replace(kernel, phases=tuple(phases))


def _computed_again(kernel: Kernel, buffer: Buffer, made: tuple[Expr, Expr]) -> Kernel:
    variable, value = made

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        if node.op != "load" or node.buffer != buffer:
            return node
        here = substitute(value, {variable: node.index[0]})
        if node.guard is None:
            return here
        return apply("where", node.guard, guarded(here, node.guard), const(0, here.dtype))

    scratch = tuple(b for b in kernel.scratch if b != buffer)
    return replace(_rewritten(kernel, change, buffer), scratch=scratch)


def _in_memory(kernel: Kernel, buffer: Buffer, whole: Buffer) -> Kernel:
    """A row of the buffer for each outer point, one after the other."""
    row = ravel(kernel.outer, tuple(a.extent for a in kernel.outer))
    start = apply("mul", row, buffer.shape[0])

    def place(index: Expr) -> tuple[Expr, ...]:
        return (simplify(apply("add", start, index)),)

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        if node.op != "load" or node.buffer != buffer:
            return node
        return load(whole, place(node.index[0]), node.guard)

    moved = _rewritten(kernel, change, None)
    phases = tuple(
        replace(p, stores=tuple(
            replace(s, buffer=whole, index=place(s.index[0])) if s.buffer == buffer else s
            for s in p.stores
        ))
        for p in moved.phases
    )  # fmt: skip
    scratch = tuple(b for b in kernel.scratch if b != buffer)
    return replace(moved, phases=phases, scratch=scratch)
