"""Operands of custom ops get the strides that the op's tag asks for, whatever other passes did.

In: `Graph`. Out: the number of operands that were copied or restrided. While torch traces, it
records eager's strides for the operands of ops that depend on them. `needs_contiguous_strides` asks
for row-major strides in any case, `flexible_layout` for none. An op without a tag gets eager's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._library.utils import get_layout_constraint_tag
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils import _pytree as pytree

from litz.ir.graph import Graph
from litz.passes.aliasing import is_opaque_op
from litz.passes.layout import is_row_major, is_same_size

aten = torch.ops.aten
with_effects = torch.ops.higher_order.with_effects


def constrain_operand_strides(graph: Graph) -> int:
    """Gives custom ops operands with the strides that their tags ask for.

    y = aten.permute(x, [1, 0])          y = aten.permute(x, [1, 0])
    return lib.contiguous_only(y)   ->   c = aten.clone(y, memory_format=contiguous)
                                         return lib.contiguous_only(c)
    """
    changes = 0
    for node in graph.nodes:
        if node.op != "call_function" or not is_opaque_op(node.target):
            continue
        for operand, wanted in dict(_wanted(node)).items():
            made = _laid_out(graph.module.graph, operand, node, wanted)
            if made is not operand:
                node.replace_input_with(operand, made)
                changes += 1
    return changes


def _wanted(node: Node) -> Iterator[tuple[Node, torch.Tensor | None]]:
    """Operands with the tensor whose strides they need; None asks for row-major."""
    op = node.args[1] if node.target is with_effects else node.target
    tag = get_layout_constraint_tag(op) if isinstance(op, OpOverload) else None
    operands = pytree.arg_tree_leaves(*node.args, **node.kwargs)
    if tag is torch.Tag.needs_contiguous_strides:
        yield from ((n, None) for n in operands if _is_tensor(n))
    elif tag is not torch.Tag.flexible_layout:
        args, kwargs = node.meta.get("eager_input_vals", ((), {}))
        noted = pytree.arg_tree_leaves(*args, **kwargs)
        if len(noted) == len(operands):
            pairs = zip(operands, noted, strict=True)
            yield from ((n, v) for n, v in pairs if _is_tensor(n) and isinstance(v, torch.Tensor))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _laid_out(graph: torch.fx.Graph, operand: Node, user: Node, wanted: Any) -> Node:
    """The operand, or a copy, with the strides of `wanted`; None is row-major."""
    value = operand.meta["val"]
    with graph.inserting_before(user):
        if wanted is None:
            return operand if is_row_major(value) else _copy(graph, operand)
        if _same(value.stride(), wanted.stride()) or not _same(value.shape, wanted.shape):
            return operand  # of another size: it was recorded for another graph
        order = sorted(range(value.dim()), key=lambda d: -_hint(wanted.stride(d)))
        if not _agree(value, wanted):
            turned = _made(graph, aten.permute.default, operand, order)
            back = sorted(range(value.dim()), key=lambda d: order[d])
            operand = _made(graph, aten.permute.default, _copy(graph, turned), back)
        if _same(operand.meta["val"].stride(), wanted.stride()):
            return operand
        layout = (list(wanted.shape), list(wanted.stride()), operand.meta["val"].storage_offset())
        return _made(graph, aten.as_strided.default, operand, *layout)


def _copy(graph: torch.fx.Graph, operand: Node) -> Node:
    return _made(graph, aten.clone.default, operand, memory_format=torch.contiguous_format)


def _made(graph: torch.fx.Graph, op: OpOverload, operand: Node, *args: Any, **kwargs: Any) -> Node:
    node = graph.call_function(op, (operand, *args), kwargs)
    node.meta = {key: held for key, held in operand.meta.items() if key != "val"}
    node.meta["val"] = op(operand.meta["val"], *args, **kwargs)
    return node


def _same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(map(is_same_size, one, other))


def _agree(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether strides are equal along every dimension longer than one."""
    steps = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(is_same_size(a, b) for n, a, b in steps if not (isinstance(n, int) and n == 1))


def _hint(size: Any) -> int:
    return size if isinstance(size, int) else int(size.node.hint or 1)
