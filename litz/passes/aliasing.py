"""Aliasing: which nodes share memory, which of them leave the graph, and which are written to.

In: an FX graph. Out: `Aliases`. A pass that replaces one tensor by an equal one asks here whether
a caller could notice. Example: in `y = x.clone(); return y`, y may not become x: a caller who
writes into the result would then write into the input.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Graph, Node

from litz.ir.calls import KNOWN_NAMESPACES

_UNANNOTATED_VIEWS = (torch.ops.aten._unsafe_view.default,)


class Aliases:
    """Memory relations of one graph at the time this object was made."""

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
        self._leaving: set[Node] = self._outputs.union(*map(escaping_operands, nodes))
        for node in reversed(viewed):
            if node in self._leaving:
                self._leaving.add(viewed[node])

    def escapes(self, node: Node) -> bool:
        """Whether the memory of a node is returned, itself or through views, or passed to an op
        that may keep it."""
        return node in self._leaving

    def is_written(self, node: Node) -> bool:
        """Whether the graph writes into the memory of a node."""
        return self._roots.get(node, node) in self._mutated

    def may_merge(self, node: Node, other: Node) -> bool:
        """Whether one of two equal tensors may replace both: not if a caller gets both. In a joint
        graph not even if a caller gets one, since it may write to its result while the other is
        saved for the backward."""
        leaving = self.escapes(node) + self.escapes(other)
        is_shared = leaving > (0 if self._is_joint else 1)
        return not is_shared and not self.is_written(node) and not self.is_written(other)

    def merge(self, node: Node, gone: Node) -> None:
        """Note that `node` now serves the users of `gone`."""
        if gone in self._leaving:
            self._leaving.add(node)
        if gone in self._outputs:
            self._outputs.add(node)

    def may_read_instead(self, copy: Node, source: Node) -> bool:
        """Whether readers of a copy may read its source instead."""
        return not (self.escapes(copy) or self.is_written(copy) or self.is_written(source))

    def may_return_instead(self, view: Node, source: Node) -> bool:
        """Whether a view of its whole source may go: not if one object would be returned twice."""
        if view not in self._outputs:
            return True
        return source.op == "call_function" and source not in self._outputs


def escaping_operands(node: Node) -> list[Node]:
    """The operands that may still be referenced after the op has returned."""
    is_call = node.op == "call_function" and node.target is not operator.getitem
    return node.all_input_nodes if is_call and is_opaque_op(node.target) else []


def is_opaque_op(target: Any) -> bool:
    """Whether an op is a custom op, or runs a subgraph."""
    if isinstance(target, HigherOrderOperator):
        return True
    return isinstance(target, OpOverload) and target.namespace not in KNOWN_NAMESPACES


def viewed_operand(node: Node) -> Node | None:
    """The operand whose memory a node shares, or None if it owns its memory."""
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


Place = tuple[int, str]  # the position and the name of an argument


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
