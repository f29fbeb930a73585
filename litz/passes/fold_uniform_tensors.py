"""Folding of tensors whose elements are all equal, however large they are.

In: `Graph`. Out: the number of nodes replaced.
"""

from __future__ import annotations

from collections.abc import Container

import torch
from torch._ops import OpOverload
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from litz.ir.calls import STORAGE_OFFSET_ARG
from litz.ir.graph import Graph
from litz.passes.aliasing import Aliases, viewed_operand
from litz.passes.constants import LITERALS, attribute, call, filled, literal, replace_by_full
from litz.passes.layout import is_row_major, is_static
from litz.passes.purity import is_repeatable

aten = torch.ops.aten
# Elementwise, though torch does not tag them as pointwise.
_COPIES = (
    aten._to_copy.default,
    aten.lift_fresh_copy.default,
    torch.ops.prims.convert_element_type.default,
)


def fold_uniform_tensors(graph: Graph) -> int:
    """Replaces a tensor whose elements are all equal by `aten.full`.

        a = aten.full([512, 512], 2)
        b = aten.mul(a, 3)           ->       b = aten.full([512, 512], 6)
        return aten.add(x, b)                 return aten.add(x, b)

    The op itself computes one element. A full tensor is row-major and owns its memory, so a tensor
    with other strides stays as it is. So does a view that the caller gets, or that has views which
    stay: their offsets count from the viewed memory.
    """
    aliases = Aliases(graph.module.graph)
    # Node -> one element, with the tensor's number of dimensions, since promotion depends on it.
    known: dict[Node, torch.Tensor] = {}
    with unset_fake_temporarily():
        for node in graph.nodes:
            element = None if aliases.is_written(node) else _element(graph, node, known)
            if element is not None:
                known[node] = element
    foldable: dict[Node, None] = {}
    for node in reversed(known):  # views before their base
        if node.target not in LITERALS and _may_be_full(node, aliases, foldable):
            foldable[node] = None
    for node in reversed(foldable):
        replace_by_full(graph, node, known[node])
    return len(foldable)


def _element(graph: Graph, node: Node, known: dict[Node, torch.Tensor]) -> torch.Tensor | None:
    """The value of every element of a node; None if it is not known to be uniform."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not is_repeatable(node):
        return None
    if value.device.type == "meta":  # meta tensors have no elements
        return None
    if node.op == "get_attr":
        tensor = attribute(graph, node)
        return tensor.clone() if tensor is not None and tensor.numel() == 1 else None
    shape = [1] * value.ndim
    if (number := literal(node)) is not None:
        return filled(shape, number, value)
    operands = node.all_input_nodes
    if not operands or any(n not in known for n in operands):
        return None
    if (viewed := viewed_operand(node)) is not None:
        return known[viewed].reshape(shape) if _means_the_same(viewed.meta["val"], value) else None
    return call(node, known) if _is_elementwise(node) else None


def _means_the_same(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether an element of a view has the same value as the element it aliases."""
    bits = before.is_neg() == after.is_neg() and before.is_conj() == after.is_conj()
    return bits and before.dtype is after.dtype


def _is_elementwise(node: Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    return torch.Tag.pointwise in node.target.tags or node.target in _COPIES


def _may_be_full(node: Node, aliases: Aliases, folded: Container[Node]) -> bool:
    value = node.meta["val"]
    if value.dtype.is_complex or not is_static(value) or not is_row_major(value):
        return False
    # The caller also sees the stride of a dimension of size one.
    if aliases.escapes(node) and value.stride() != make_contiguous_strides_for(value.shape):
        return False
    if node.op == "call_function" and viewed_operand(node) is None:
        return True  # it has memory of its own
    if any(str(user.target) in STORAGE_OFFSET_ARG for user in node.users):
        return False  # as_strided may reach beyond the view
    views = (user for user in node.users if viewed_operand(user) is node)
    return not aliases.escapes(node) and all(user in folded for user in views)
