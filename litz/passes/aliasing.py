"""Which nodes share memory, which of them leave the graph, and which are written to.

In: an FX graph. Out: `Aliases`. A pass that replaces one tensor by an equal one asks here whether
a caller could tell. Example: in `y = x.clone(); return y`, y may not become x: whoever writes into
the result would then write into the input.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

_UNANNOTATED_VIEWS = (torch.ops.aten._unsafe_view.default,)


class Aliases:
    """Memory relations of one graph, as they stood when this was made."""

    def __init__(self, graph: Graph) -> None:
        nodes = list(graph.nodes)
        self._outputs: set[Node] = set(nodes[-1].all_input_nodes)
        self._roots: dict[Node, Node] = {}
        self._mutated: set[Node] = set()
        for node in nodes:
            viewed = viewed_operand(node)
            self._roots[node] = node if viewed is None else self._roots[viewed]
            self._mutated.update(self._roots[n] for n in written_operands(node))
        self._leaving: set[Node] = set(self._outputs)
        for node in reversed(nodes):
            viewed = viewed_operand(node)
            if viewed is not None and node in self._leaving:
                self._leaving.add(viewed)

    def leaves(self, node: Node) -> bool:
        """Whether the memory of a node is returned: as itself or through views."""
        return node in self._leaving

    def is_written(self, node: Node) -> bool:
        """Whether the graph writes into the memory of a node."""
        return self._roots.get(node, node) in self._mutated

    def may_merge(self, node: Node, other: Node) -> bool:
        """Whether one of two equal tensors may stand for both: not if a caller gets both."""
        both_leave = self.leaves(node) and self.leaves(other)
        return not both_leave and not self.is_written(node) and not self.is_written(other)

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


def viewed_operand(node: Node) -> Node | None:
    """The operand whose memory a node shares, or None if it has memory of its own."""
    if node.op != "call_function":
        return None
    first = node.args[0] if node.args else None
    if node.target is operator.getitem or node.target in _UNANNOTATED_VIEWS:
        return first if isinstance(first, Node) else None
    if isinstance(node.target, OpOverload):
        shares = torch.Tag.maybe_aliasing_or_mutating in node.target.tags
        if shares or any(r.alias_info is not None for r in node.target._schema.returns):
            return next(_operands(node, write=None), first if isinstance(first, Node) else None)
    return None


def written_operands(node: Node) -> list[Node]:
    """The operands that a node writes into."""
    if node.op == "call_function" and isinstance(node.target, OpOverload):
        return list(_operands(node, write=True))
    return []


def _operands(node: Node, write: bool | None) -> Iterator[Node]:
    """Tensor operands with an alias annotation in the op's schema."""
    assert isinstance(node.target, OpOverload)
    for position, argument in enumerate(node.target._schema.arguments):
        info = argument.alias_info
        if info is None or (write is not None and info.is_write != write):
            continue
        given: Any = node.kwargs.get(argument.name)
        if position < len(node.args):
            given = node.args[position]
        items = given if isinstance(given, (list, tuple)) else [given]
        yield from (item for item in items if isinstance(item, Node))
