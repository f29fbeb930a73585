"""Lazy negation: tensors whose memory holds the negative of what they show.

In: `Graph`. Out: the number of tensors resolved. `torch._neg_view(x)` and the imaginary part of a
conjugate negate nothing: they set a bit that each op of ATen looks at. Kernels read memory as it
is, so such a tensor is written out first, by the op that knows the bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Node

from litz.errors import UnsupportedOp
from litz.ir.graph import Graph, origin_of
from litz.passes.aliasing import viewed_operand, written_operands
from litz.passes.hooks import noted, renew

aten = torch.ops.aten


def resolve_negation(graph: Graph) -> int:
    """Writes out what is negated lazily, before anything else reads it.

    # x shows what its memory holds, negated
    return aten.exp(x)                    ->     y = aten.resolve_neg(x)
                                                 return aten.exp(y)
    """
    resolved, before = 0, noted(graph)
    for node in graph.nodes:
        if node.target is aten._neg_view.default:
            _refuse_shared_results(graph, node)
            node.target = aten.neg.default  # the same numbers, without the bit
        elif _is_negated(node) and node.users:
            _refuse_writes(node)
            _refuse_shared_results(graph, node)
            _resolve(graph, node)
            resolved += 1
    if resolved:  # what is written out has no gaps, and so have views of it
        renew(graph, before)
    return resolved


def _is_negated(node: Node) -> bool:
    """Whether a tensor has the bit when the graph runs: a view of one without it has it not."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_neg() or node.op == "output":
        return False
    base = viewed_operand(node)
    if base is not None and not isinstance(base.meta["val"], torch.Tensor):
        base = viewed_operand(base)  # one of the parts of a tensor
    return base is None or base.meta["val"].dtype.is_complex


def _resolve(graph: Graph, node: Node) -> None:
    users = list(node.users)
    with graph.module.graph.inserting_after(node):
        made = graph.module.graph.call_function(aten.resolve_neg.default, (node,))
    value = node.meta["val"]
    made.meta = {**node.meta, "val": torch.empty_like(value)}
    for user in users:
        user.replace_input_with(node, made)


def _refuse_writes(node: Node) -> None:
    """Kernels write memory as it is, too."""
    for user in node.users:
        if node in written_operands(user):
            why = "it writes into a tensor that is negated lazily (Tensor.is_neg)"
            raise UnsupportedOp(str(user.target), origin_of(user), why)


def _refuse_shared_results(graph: Graph, node: Node) -> None:
    """What is written out has memory of its own: a caller who writes into another result of the
    same memory would see it."""
    results = {result: list(_bases(result)) for result in graph.nodes[-1].all_input_nodes}
    root = list(_bases(node))[-1]
    sharing = [node in bases for bases in results.values() if bases[-1] is root]
    if any(sharing) and not all(sharing):
        why = "a result that is negated lazily (Tensor.is_neg) shares memory with another result"
        raise UnsupportedOp(str(node.target), origin_of(node), why)


def _bases(node: Node) -> Iterator[Node]:
    """A tensor, what it is a view of, and so on."""
    base: Node | None = node
    while base is not None:
        yield base
        base = viewed_operand(base)
