"""Purity of nodes: whether a node may be removed, and whether it may be computed once or again.

In: an FX node. Out: answers. Example: `aten.rand` is neither removable, since later random numbers
would change, nor repeatable, since each call gives new numbers.
"""

from __future__ import annotations

import operator

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from litz.ir.calls import KNOWN_NAMESPACES

_SCALARS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
# Cached by op, since torch's own answer is slow: whether it writes, draws random numbers, asserts
# or is registered as effectful. Two threads may both compute the same answer.
_EFFECTS: dict[OpOverload, bool] = {}


def _has_effect(node: Node, target: OpOverload) -> bool:
    known = _EFFECTS.get(target)
    if known is None:
        draws = torch.Tag.nondeterministic_seeded in target.tags
        known = draws or target._schema.is_mutable or node.is_impure()
        _EFFECTS[target] = known
    return known


def has_effect(node: Node) -> bool:
    """Whether a call may do more than compute its results."""
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return node.target.namespace not in KNOWN_NAMESPACES or _has_effect(node, node.target)
    return isinstance(node.target, HigherOrderOperator) or node.is_impure()


def is_removable(node: Node) -> bool:
    """Whether an unused node may go: it has no side effect and binds no unbacked size."""
    if node.meta.get("unbacked_bindings"):
        return False  # `lower` decides whether another node has the same size
    return node.op == "get_attr" or (node.op == "call_function" and not has_effect(node))


def is_repeatable(node: Node) -> bool:
    """Whether the same call with the same operands gives the same value, each time, anywhere."""
    if node.op == "get_attr":
        return True
    if not is_removable(node):  # an unbacked size has exactly one node that binds it
        return False
    if isinstance(node.target, OpOverload):
        return True
    return node.target is operator.getitem or isinstance(node.meta.get("val"), _SCALARS)
