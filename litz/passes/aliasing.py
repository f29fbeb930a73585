"""Which nodes share memory, which of them leave the graph, and which are written to.

In: an FX graph. Out: `Aliases`. A pass that replaces one tensor by an equal one asks here whether
a caller could tell. Example: in `y = x.clone(); return y`, y may not become x: whoever writes into
the result would then write into the input.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from litz.ir.calls import KNOWN

_UNANNOTATED_VIEWS = (torch.ops.aten._unsafe_view.default,)


class Aliases:
    """Memory relations of one graph, as they stood when this was made."""

    def __init__(self, graph: Graph, is_joint: bool = False) -> None:
        self._is_joint = is_joint
        nodes = list(graph.nodes)
        self._outputs: set[Node] = set(nodes[-1].all_input_nodes)
        self._roots: dict[Node, Node] = {}
        self._mutated: set[Node] = set()
        viewed = {n: source for n in nodes if (source := viewed_operand(n)) is not None}
        for node in nodes:
            self._roots[node] = self._roots[viewed[node]] if node in viewed else node
            self._mutated.update(self._roots[n] for n in written_operands(node))
        self._leaving: set[Node] = self._outputs.union(*map(kept_operands, nodes))
        for node in reversed(viewed):
            if node in self._leaving:
                self._leaving.add(viewed[node])

    def leaves(self, node: Node) -> bool:
        """Whether the memory of a node is returned, as itself or through views, or given to an op
        that may keep it."""
        return node in self._leaving

    def is_written(self, node: Node) -> bool:
        """Whether the graph writes into the memory of a node."""
        return self._roots.get(node, node) in self._mutated

    def may_merge(self, node: Node, other: Node) -> bool:
        """Whether one of two equal tensors may stand for both: not if a caller gets both. In the
        graph of a training step the other may be kept for the backward, beside a result that the
        caller may write to."""
        leaving = self.leaves(node) + self.leaves(other)
        is_shared = leaving > (0 if self._is_joint else 1)
        return not is_shared and not self.is_written(node) and not self.is_written(other)

    def merge(self, node: Node, gone: Node) -> None:
        """Note that `node` now serves the users of `gone`."""
        if gone in self._leaving:
            self._leaving.add(node)
        if gone in self._outputs:
            self._outputs.add(node)

    def may_read_instead(self, copy: Node, source: Node) -> bool:
        """Whether the source of a copy may be read in its place."""
        return not (self.leaves(copy) or self.is_written(copy) or self.is_written(source))

    def may_return_instead(self, view: Node, source: Node) -> bool:
        """Whether a view that shows its whole source may go: never so that one object is two."""
        if view not in self._outputs:
            return True
        return source.op == "call_function" and source not in self._outputs


def kept_operands(node: Node) -> list[Node]:
    """The operands that may be somewhere else when the op has returned."""
    is_call = node.op == "call_function" and node.target is not operator.getitem
    return node.all_input_nodes if is_call and is_foreign(node.target) else []


def is_foreign(target: Any) -> bool:
    """Whether an op is somebody's code, or runs some."""
    if isinstance(target, HigherOrderOperator):
        return True
    return isinstance(target, OpOverload) and target.namespace not in KNOWN


def viewed_operand(node: Node) -> Node | None:
    """The operand whose memory a node shares, or None if it has memory of its own."""
    if node.op != "call_function" or not node.args:
        return None
    if isinstance(node.target, OpOverload):
        shared = _shared_and_written(node.target)[0]
        return next(_operands(node, shared), None)
    first = node.args[0]
    return first if node.target is operator.getitem and isinstance(first, Node) else None


def written_operands(node: Node) -> list[Node]:
    """The operands that a node writes into."""
    if node.op == "call_function" and isinstance(node.target, OpOverload):
        return list(_operands(node, _shared_and_written(node.target)[1]))
    return []


Place = tuple[int, str]  # of an argument: its position and its name


@cache
def _shared_and_written(target: OpOverload) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
    """The arguments whose memory an op's result shares, and those it writes into."""
    schema = target._schema
    annotated = [
        ((position, argument.name), argument.alias_info)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None
    ]
    written = tuple(place for place, info in annotated if info.is_write)
    if any(r.alias_info is not None for r in schema.returns):
        return tuple(place for place, _ in annotated), written
    unannotated = torch.Tag.maybe_aliasing_or_mutating in target.tags
    if unannotated or target in _UNANNOTATED_VIEWS:
        return ((0, schema.arguments[0].name),), written
    return (), written


def _operands(node: Node, places: tuple[Place, ...]) -> Iterator[Node]:
    for position, name in places:
        given: Any = node.args[position] if position < len(node.args) else node.kwargs.get(name)
        items = given if isinstance(given, (list, tuple)) else [given]
        yield from (item for item in items if isinstance(item, Node))
