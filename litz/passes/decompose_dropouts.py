"""A dropout's result, computed from its mask, so that only the mask need be saved.

In: `Graph`. Out: the number of dropouts split.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from litz.ir.graph import Graph

aten = torch.ops.aten


def decompose_dropouts(graph: Graph) -> int:
    """Writes the result of a dropout as a multiplication by its mask.

    d = aten.native_dropout(x, 0.5)       d = aten.native_dropout(x, 0.5)
    y = d[0]                      ->      m = d[1]
                                          y = aten.mul(aten.mul(x, m), 2.0)
    """
    found = [n for n in graph.nodes if n.target is aten.native_dropout.default]
    return sum(_split(graph.module.graph, node) for node in found)


def _split(graph: torch.fx.Graph, dropout: Node) -> bool:
    x, chance, training = dropout.args
    items = {n.args[1]: n for n in dropout.users if n.target is operator.getitem}
    if not training or not isinstance(chance, float) or not 0 < chance < 1 or 0 not in items:
        return False
    result = items[0]
    with graph.inserting_after(dropout):
        mask = graph.call_function(operator.getitem, (dropout, 1))
    with graph.inserting_before(result):
        kept = graph.call_function(aten.mul.Tensor, (x, mask))
        scaled = graph.call_function(aten.mul.Tensor, (kept, 1 / (1 - chance)))
    mask.meta = {**result.meta, "val": dropout.meta["val"][1]}
    kept.meta, scaled.meta = dict(result.meta), dict(result.meta)
    result.replace_all_uses_with(scaled)
    graph.erase_node(result)
    return True
