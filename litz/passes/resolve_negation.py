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
from litz.passes.aliasing import Aliases, viewed_operand, written_operands
from litz.passes.hooks import noted, renew

aten = torch.ops.aten


def resolve_negation(graph: Graph) -> int:
    """Writes out what is negated lazily, before anything else reads it.

    # x shows what its memory holds, negated
    return aten.exp(x)                    ->     y = aten.resolve_neg(x)
                                                 return aten.exp(y)
    """
    negated = [n for n in graph.nodes if _is_negation(n) or _is_negated(n)]
    if not negated:
        return 0
    resolved, before, aliases = 0, noted(graph), Aliases(graph.module.graph)
    for node in (n for n in negated if n.users):
        if not _is_negation(node):
            _refuse_writes(node)
        of_input = list(_bases(node))[-1].op == "placeholder"
        if not of_input:
            _refuse_shared_results(graph, node)
        if _is_negation(node) and not (of_input and aliases.leaves(node)):
            node.target = aten.neg.default
            before[node] = (node.target, node.args, node.kwargs)  # it lies where the view did
        else:
            _resolve(graph, node, aliases if of_input else None)
            resolved += 1
    if resolved:  # what is written out has no gaps, and so have views of it
        renew(graph, before)
    return resolved


def _is_negation(node: Node) -> bool:
    return node.target is aten._neg_view.default


def _is_negated(node: Node) -> bool:
    """Whether a tensor has the bit when the graph runs: a view of one without it has it not."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_neg() or node.op == "output":
        return False
    base = viewed_operand(node)
    if base is not None and not isinstance(base.meta["val"], torch.Tensor):
        base = viewed_operand(base)  # one of the parts of a tensor
    return base is None or base.meta["val"].dtype.is_complex


def _resolve(graph: Graph, node: Node, aliases: Aliases | None) -> None:
    """Write a tensor out, for all who read it; where aliases are given, it shows an input, and
    results of that memory stay views of the input.

    y = aten._neg_view(x)                ->     y = aten._neg_view(x); z = aten.neg(x)
    return aten.select(y, 0, 1), sin(y)         return aten.select(y, 0, 1), sin(z)
    """
    with graph.module.graph.inserting_after(node):
        if _is_negation(node):
            made = graph.module.graph.call_function(aten.neg.default, node.args)
        else:
            made = graph.module.graph.call_function(aten.resolve_neg.default, (node,))
    made.meta = {**node.meta, "val": torch.empty_like(node.meta["val"])}
    _hand_over(graph, node, made, aliases)


def _hand_over(graph: Graph, node: Node, twin: Node, aliases: Aliases | None) -> None:
    """Who reads a node gets its twin; a view that leaves stays, and has a twin for its readers."""
    for user in [u for u in node.users if u is not twin]:
        if aliases is None:
            user.replace_input_with(node, twin)
        elif viewed_operand(user) is node and aliases.leaves(user):
            with graph.module.graph.inserting_after(user):
                copy = graph.module.graph.node_copy(user, lambda n: twin if n is node else n)
            if _is_negation(copy):
                copy.target = aten.neg.default
            _hand_over(graph, user, copy, aliases)
        elif user.op != "output":
            user.replace_input_with(node, twin)
    if not twin.users:
        graph.module.graph.erase_node(twin)


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
