"""Removal of arithmetic that leaves a tensor as it is.

In: `Graph`. Out: the number of nodes removed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from litz.ir.graph import Graph
from litz.passes.aliasing import Aliases
from litz.passes.constants import is_zero, literal
from litz.passes.layout import is_same_tensor_layout

aten = torch.ops.aten


def remove_identities(graph: Graph) -> int:
    """Drops multiplications by one and other identities that keep every bit.

        a = aten.mul(x, 1)
        b = aten.sub(a, 0)           ->
        return aten.exp(b)                    return aten.exp(x)

    `x + 0` stays for floats: it turns -0.0 into 0.0. An identity that the caller gets stays: its
    result is a tensor of its own.
    """
    aliases = Aliases(graph.module.graph)
    removed = 0
    for node in graph.nodes:
        kept = _kept_operand(node)
        if kept is None or not aliases.may_read_instead(node, kept):
            continue
        if is_same_tensor_layout(node.meta["val"], kept.meta["val"]):
            aliases.merge(kept, node)
            node.replace_all_uses_with(kept)
            graph.module.graph.erase_node(node)
            removed += 1
    return removed


def _kept_operand(node: Node) -> Node | None:
    """The operand that an op returns unchanged."""
    value = node.meta.get("val")
    if len(node.args) != 2 or node.kwargs or not isinstance(value, torch.Tensor):
        return None
    if value.dtype.is_complex:
        return None  # (a + bi) * 1 is not a + bi if a is infinite
    left, right = node.args
    if _is_neutral(node.target, right, value.dtype) and isinstance(left, Node):
        return left
    commutes = node.target in (aten.add.Tensor, aten.mul.Tensor)
    if commutes and _is_neutral(node.target, left, value.dtype) and isinstance(right, Node):
        return right
    return None


def _is_neutral(target: Any, operand: Any, dtype: torch.dtype) -> bool:
    """Whether an op with this second operand returns its first."""
    number = literal(operand)
    if number is None:
        return False
    if target in (aten.mul.Tensor, aten.div.Tensor, aten.pow.Tensor_Scalar):
        return number == 1
    if target is aten.sub.Tensor:
        return is_zero(number, negative=False)
    if target is aten.add.Tensor:
        return is_zero(number, negative=dtype.is_floating_point)
    return False
