"""Common subexpression elimination.

In: `Graph`. Out: the number of nodes merged into an earlier one.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import Node

from litz.ir.graph import Graph
from litz.passes.aliasing import Aliases, written_operands
from litz.passes.purity import is_repeatable


def merge_common_subexpressions(graph: Graph) -> int:
    """Computes once what the graph computes twice from the same operands.

        a = aten.exp(x)                       a = aten.exp(x)
        b = aten.exp(x)              ->
        return aten.add(a, b)                 return aten.add(a, a)

    Not merged: random ops; two tensors that the caller gets both of, since a write to one would
    change the other (in a joint graph even one of them: the backward may read the other); reads
    before and after a write.
    """
    aliases = Aliases(graph.module.graph, graph.kind == "joint")
    first: dict[Hashable, Node] = {}
    merged = 0
    for node in graph.nodes:
        if written_operands(node):
            first.clear()  # a read after the write differs from one before it
        if not is_repeatable(node):
            continue
        key = (node.target, key_of(node.args), key_of(node.kwargs))
        earlier = first.setdefault(key, node)
        if earlier is not node and aliases.may_merge(earlier, node):
            aliases.merge(earlier, node)
            node.replace_all_uses_with(earlier)
            graph.module.graph.erase_node(node)
            merged += 1
    return merged


def key_of(value: Any) -> Any:
    """An operand as a dictionary key: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if value is None or isinstance(value, (Node, str)):
        return value
    if isinstance(value, (bool, int, float, complex)):
        return type(value), repr(value)
    if isinstance(value, (list, tuple)):
        return tuple(key_of(v) for v in value)
    if isinstance(value, dict):
        return tuple((name, key_of(v)) for name, v in sorted(value.items()))
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return value
    return object()  # equal to nothing: an operand of unknown kind is never merged
