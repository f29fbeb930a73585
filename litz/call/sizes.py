"""Sizes of a call: those that its inputs show, and unbacked ones, which data tells on the way.

In: a `Plan`, and the numbers that its kernels need. Out: symbols in an order in which they can be
computed; and, behind each call that tells sizes, all that follows from them. Example: behind
`nonzero(x)`, u0 is known; so are `u0 // 2`, the tasks of a kernel over u0 points, and how much
memory an output of u0 rows takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from litz.ir.expr import Expr
from litz.ir.program import Buffer, Extern, Plan, ViewArg, read, written
from litz.ir.sizes import of_buffer, roots, symbols


class Unbacked:
    """Which sizes are unbacked, and which of them are known by now. `buffers` are outputs and
    workspaces that are allocated as soon as their size is known, each with its kind."""

    def __init__(self, bound: frozenset[Expr]) -> None:
        self.bound = bound
        self.known: frozenset[Expr] = frozenset()
        self.made: list[Expr] = []  # sizes that are made of others
        self.numbers: dict[str, Expr] = {}  # of the table
        self.buffers: list[tuple[Buffer, str]] = []

    def wait_for(self, symbols: Iterable[Expr], computed: Mapping[str, Expr]) -> None:
        """Note what follows from unbacked sizes."""
        self.made = [s for s in symbols if s.args and self.concerns(s)]
        self.numbers = {name: value for name, value in computed.items() if self.concerns(value)}

    def concerns(self, *sizes: Expr) -> bool:
        """Whether something follows from unbacked sizes."""
        return bool(self.bound) and bool(self.bound & roots(*sizes))

    def told(self, found: Iterable[Expr]) -> tuple[tuple[Expr, ...], tuple[str, ...]]:
        """Some sizes are known from here on: the sizes and the numbers that follow from them."""
        before, self.known = self.known, self.known.union(found)
        made = tuple(s for s in self.made if self._follows(s, before))
        return made, tuple(n for n, value in self.numbers.items() if self._follows(value, before))

    def _follows(self, value: Expr, before: frozenset[Expr]) -> bool:
        """Whether a number can be computed now, and could not before."""
        needed = self.bound & roots(value)
        return needed <= self.known and not needed <= before

    def ready(self) -> list[tuple[Buffer, str]]:
        """Buffers whose sizes are known by now, once each."""
        found = [one for one in self.buffers if (of_buffer(one[0]) & self.bound) <= self.known]
        self.buffers = [one for one in self.buffers if one not in found]
        return found


def symbols_of(plan: Plan, computed: Iterable[Expr]) -> list[Expr]:
    """Every size that a call has to know, those first that others are made of."""
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
