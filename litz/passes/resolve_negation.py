"""Lazy negation: tensors with torch's negative bit are resolved before a kernel reads them.

In: `Graph`. Out: the number of tensors resolved. `torch._neg_view(x)` and the imaginary part of a
conjugate negate nothing: they set a bit that each ATen op checks. Kernels read memory as it is, so
an op that knows the bit writes such a tensor out first.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Node

from litz.errors import UnsupportedOp
from litz.ir.graph import Graph, origin_of
from litz.passes.aliasing import Aliases, viewed_operand, written_operands
from litz.passes.hooks import refresh_meta, snapshot_calls

aten = torch.ops.aten


def resolve_negation(graph: Graph) -> int:
    """Negates lazily negated tensors in memory, before anything else reads them.

    # x has the negative bit: its value is the negative of its memory
    return aten.exp(x)                    ->     y = aten.resolve_neg(x)
                                                 return aten.exp(y)
    """
    negated = [n for n in graph.nodes if _is_negation(n) or _is_negated(n)]
    if not negated:
        return 0
    resolved, before, aliases = 0, snapshot_calls(graph), Aliases(graph.module.graph)
    for node in (n for n in negated if n.users):
        if not _is_negation(node):
            _refuse_writes(node)
        of_input = list(_bases(node))[-1].op == "placeholder"
        if not of_input:
            _refuse_shared_results(graph, node)
        if _is_negation(node) and not (of_input and aliases.escapes(node)):
            node.target = aten.neg.default
            before[node] = (node.target, node.args, node.kwargs)  # same layout as the view had
        else:
            _resolve(graph, node, aliases if of_input else None)
            resolved += 1
    if resolved:  # a resolved tensor is dense, and so are its views: strides change
        refresh_meta(graph, before)
    return resolved


def _is_negation(node: Node) -> bool:
    return node.target is aten._neg_view.default


def _is_negated(node: Node) -> bool:
    """Whether a tensor has the bit at run time: a view of a tensor without the bit has none."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_neg() or node.op == "output":
        return False
    base = viewed_operand(node)
    if base is not None and not isinstance(base.meta["val"], torch.Tensor):
        base = viewed_operand(base)  # an item of an op with several results
    return base is None or base.meta["val"].dtype.is_complex


def _resolve(graph: Graph, node: Node, aliases: Aliases | None) -> None:
    """Resolve a tensor for all its readers. With `aliases`, it is a view of an input, and outputs
    that alias that memory stay views of the input.

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
    """Readers of a node get its twin; a view that escapes stays, with a twin for its readers."""
    for user in [u for u in node.users if u is not twin]:
        if aliases is None:
            user.replace_input_with(node, twin)
        elif viewed_operand(user) is node and aliases.escapes(user):
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
    """Kernels ignore the bit when they write, too."""
    for user in node.users:
        if node in written_operands(user):
            why = "it writes into a tensor that is negated lazily (Tensor.is_neg)"
            raise UnsupportedOp(str(user.target), origin_of(user), why)


def _refuse_shared_results(graph: Graph, node: Node) -> None:
    """A resolved tensor has its own memory. If another result aliased the original, a caller who
    writes into one would no longer change the other."""
    results = {result: list(_bases(result)) for result in graph.nodes[-1].all_input_nodes}
    root = list(_bases(node))[-1]
    sharing = [node in bases for bases in results.values() if bases[-1] is root]
    if any(sharing) and not all(sharing):
        why = "a result that is negated lazily (Tensor.is_neg) shares memory with another result"
        raise UnsupportedOp(str(node.target), origin_of(node), why)


def _bases(node: Node) -> Iterator[Node]:
    """A tensor, its view base, the base's base, and so on."""
    base: Node | None = node
    while base is not None:
        yield base
        base = viewed_operand(base)
