"""Sizes of a call: those read off its inputs, and unbacked ones, known only after some step.

In: a `Plan`, and the numbers that its kernels need. Out: symbols in an order in which they can be
computed; and, after each call that gives unbacked sizes, all that follows from them. Example: after
`nonzero(x)`, u0 is known; so are `u0 // 2`, the tasks of a kernel over u0 points, and the memory
of an output of u0 rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from litz.ir.expr import Expr
from litz.ir.program import Buffer, Extern, Plan, ViewArg, read, written
from litz.ir.sizes import of_buffer, roots, symbols


class Unbacked:
    """The unbacked sizes of a graph, and which of them are known so far. `buffers` are outputs and
    workspaces that wait for their size before they are allocated, each with its kind."""

    def __init__(self, bound: frozenset[Expr]) -> None:
        self.bound = bound
        self.known: frozenset[Expr] = frozenset()
        self.made: list[Expr] = []  # sizes that are made of others
        self.numbers: dict[str, Expr] = {}  # of the table, that follow from unbacked sizes
        self.buffers: list[tuple[Buffer, str]] = []

    def wait_for(self, symbols: Iterable[Expr], computed: Mapping[str, Expr]) -> None:
        """Note the sizes and numbers that depend on unbacked sizes."""
        self.made = [s for s in symbols if s.args and self.concerns(s)]
        self.numbers = {name: value for name, value in computed.items() if self.concerns(value)}

    def concerns(self, *sizes: Expr) -> bool:
        """Whether any of these depends on unbacked sizes."""
        return bool(self.bound) and bool(self.bound & roots(*sizes))

    def known_after(self, found: Iterable[Expr]) -> tuple[tuple[Expr, ...], tuple[str, ...]]:
        """Note that some sizes are known; returns the sizes and numbers that now follow."""
        before, self.known = self.known, self.known.union(found)
        made = tuple(s for s in self.made if self._follows(s, before))
        return made, tuple(n for n, value in self.numbers.items() if self._follows(value, before))

    def _follows(self, value: Expr, before: frozenset[Expr]) -> bool:
        """Whether a number can be computed now, and could not before."""
        needed = self.bound & roots(value)
        return needed <= self.known and not needed <= before

    def ready(self) -> list[tuple[Buffer, str]]:
        """Take out the waiting buffers whose sizes are known."""
        found = [one for one in self.buffers if (of_buffer(one[0]) & self.bound) <= self.known]
        self.buffers = [one for one in self.buffers if one not in found]
        return found


def symbols_of(plan: Plan, computed: Iterable[Expr]) -> list[Expr]:
    """Every size that a call needs, each after the sizes that it is made of."""
    found: dict[Expr, None] = {}

    def add(symbol: Expr) -> None:
        for below in symbols(*symbol.args):
            add(below)
        found[symbol] = None

    for symbol in symbols(*computed, *_sizes_of(plan)):
        add(symbol)
    return list(found)


def _sizes_of(plan: Plan) -> Iterator[Expr]:
    graph = plan.graph
    yield from (unit for unit, _ in plan.regions)
    for item in graph.inputs:
        yield from _leaves(item)
    for step in graph.body:
        yield from _leaves((*read(step), *written(step)))
        if isinstance(step, Extern):
            yield from _leaves((step.args, tuple(v for _, v in step.kwargs)))
            yield from (b.symbol for b in step.binds)
    yield from _leaves(tuple(o.value for o in graph.outputs))


def _leaves(value: Any) -> Iterator[Expr]:
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, Buffer):
        yield from (*value.shape, *value.strides)
    elif isinstance(value, ViewArg):
        yield from (*_leaves(value.buffer), *value.shape, *value.strides, value.offset)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
