"""Flattening of buffers: every index becomes one element offset.

In: a `Kernel`. Out: the same kernel over one-dimensional buffers named by position.

    t[o0, j0] with strides (768, 1)   ->   b0[o0 * 768 + j0]
"""

from __future__ import annotations

from dataclasses import replace

from litz.ir.expr import Expr, load, rebuild, transform
from litz.ir.index import ONE, flat_index
from litz.ir.program import Buffer, Kernel, Store, read, written
from litz.ir.sizes import span


def flatten_buffers(kernel: Kernel) -> tuple[Kernel, tuple[Buffer, ...]]:
    """The flat kernel, and the real buffers in the order of its canonical names b0, b1, ..."""
    arguments = tuple(dict.fromkeys((*written(kernel), *read(kernel))))
    flat: dict[Buffer, Buffer] = {}
    for k, buffer in enumerate(arguments):
        flat[buffer] = _flat(buffer, f"b{k}")
    for k, buffer in enumerate(kernel.scratch):
        flat[buffer] = _flat(buffer, f"s{k}")
    memo: dict[Expr, Expr] = {}

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        node = rebuild(node, args)
        if node.op != "load":
            return node
        return load(flat[node.buffer], (flat_index(node.buffer, node.index),), node.guard)

    def moved(store: Store) -> Store:
        index = tuple(transform(i, change, memo) for i in store.index)
        place = flat_index(store.buffer, index)
        value = transform(store.value, change, memo)
        return Store(flat[store.buffer], (place,), value, store.mode)

    phases = tuple(replace(p, stores=tuple(moved(s) for s in p.stores)) for p in kernel.phases)
    scratch = tuple(flat[b] for b in kernel.scratch)
    return Kernel(kernel.name, kernel.outer, phases, scratch, kernel.origins), arguments


def _flat(buffer: Buffer, name: str) -> Buffer:
    return Buffer(name, buffer.dtype, (span(buffer),), (ONE,), buffer.device)
