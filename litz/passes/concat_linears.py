"""Linears with the same input become one GEMM over their concatenated weights.

In: `Graph`. Out: the number of linears that became part of another. The weights are parameters, so
the concatenated weight is made once and kept, as prepacked weights are. Each result is a slice of
the GEMM's columns; its readers fuse with the copy and read it in place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx import Node

from litz.ir.graph import Graph
from litz.passes.fold_affine_into_weights import move_up, parameter_derived_nodes

aten = torch.ops.aten


def concat_linears(graph: Graph) -> int:
    """Makes one GEMM of the linears that read the same input.

    q = aten.mm(x, v)                     w = aten.cat([v, u], 1);  y = aten.mm(x, w)
    k = aten.mm(x, u)               ->    q = clone(y[:, :768])
                                          k = clone(y[:, 768:])
    """
    if graph.kind != "inference" or not graph.static:
        return 0
    known = parameter_derived_nodes(graph)
    together: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if _is_linear(node, known):
            together.setdefault((_input(node), node.target), []).append(node)
    sets = [nodes for nodes in together.values() if len(nodes) > 1]
    for nodes in sets:
        _joined(graph, nodes, known)
    return sum(len(nodes) - 1 for nodes in sets)


def _input(node: Node) -> Any:
    return node.args[0 if node.target is aten.mm.default else 1]


def _is_linear(node: Node, known: dict[Node, None]) -> bool:
    """A matmul with a parameter matrix whose result only generated loops read: a result that is
    returned or passed on must be contiguous, and would be copied."""
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return False
    *bias, left, right = node.args
    assert isinstance(left, Node)
    rows, columns = node.meta["val"].shape
    plain = all(b in known and b.meta["val"].shape == (columns,) for b in bias)  # type: ignore
    sized = all(isinstance(n, int) for n in (rows, columns, left.meta["val"].shape[1]))
    return right in known and left not in known and plain and sized and not _is_output_alias(node)


def _is_output_alias(node: Node) -> bool:
    """Whether the caller gets this tensor or a view of it."""
    return any(u.op == "output" or (_is_view(u) and _is_output_alias(u)) for u in node.users)


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(a.alias_info is not None for a in schema.arguments)


def _joined(graph: Graph, nodes: list[Node], known: dict[Node, None]) -> None:
    """One node for all, and for each a copy of its columns, which fuses with its readers."""
    first, made = nodes[0], graph.module.graph
    move_up(known, first)
    rows = [list(n.args) for n in nodes]
    with made.inserting_before(first):
        weight = _call(graph, first, aten.cat.default, [r[-1] for r in rows], 1)
        known[weight] = None
        bias = []
        if first.target is aten.addmm.default:
            bias = [_call(graph, first, aten.cat.default, [r[0] for r in rows])]
            known[bias[0]] = None
        whole = _call(graph, first, first.target, *bias, _input(first), weight)
        start = 0
        for node in nodes:
            end = start + node.meta["val"].shape[1]
            part = _call(graph, node, aten.slice.Tensor, whole, 1, start, end)
            alone = _call(graph, node, aten.clone.default, part,
                          memory_format=torch.contiguous_format)  # fmt: skip
            node.replace_all_uses_with(alone)
            start = end
    for node in nodes:
        made.erase_node(node)


def _call(graph: Graph, origin: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    made = graph.module.graph.call_function(target, args, kwargs)
    plain = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
    made.meta = {k: v for k, v in origin.meta.items() if k != "val"}
    with origin.meta["val"].fake_mode:
        made.meta["val"] = target(*plain, **kwargs)
    return made
