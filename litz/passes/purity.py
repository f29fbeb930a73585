"""What may be done with a node: whether it may vanish, and whether it may be computed once.

In: an FX node. Out: answers. Example: `aten.rand` is neither removable, since a later random number
would then be another, nor repeatable, since each call gives a new one.
"""

from __future__ import annotations

import operator

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from litz.ir.calls import KNOWN

_SCALARS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
# By op, since torch's own answer takes a while: whether it writes, draws random numbers, asserts
# or is registered as having an effect. Two threads may both find out, the same.
_EFFECTS: dict[OpOverload, bool] = {}


def _has_effect(node: Node, target: OpOverload) -> bool:
    known = _EFFECTS.get(target)
    if known is None:
        draws = torch.Tag.nondeterministic_seeded in target.tags
        known = draws or target._schema.is_mutable or node.is_impure()
        _EFFECTS[target] = known
    return known


def has_effect(node: Node) -> bool:
    """Whether a call may do more than make its results."""
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return node.target.namespace not in KNOWN or _has_effect(node, node.target)
    return isinstance(node.target, HigherOrderOperator) or node.is_impure()


def is_removable(node: Node) -> bool:
    """Whether a node that nothing uses has no other effect: it may tell a size."""
    if node.meta.get("unbacked_bindings"):
        return False  # `lower` finds out whether some other node is as large
    return node.op == "get_attr" or (node.op == "call_function" and not has_effect(node))


def is_repeatable(node: Node) -> bool:
    """Whether the same call with the same operands gives the same value, each time, anywhere."""
    if node.op == "get_attr":
        return True
    if not is_removable(node):  # nor where each unbacked size has the one node that tells it
        return False
    if isinstance(node.target, OpOverload):
        return True
    return node.target is operator.getitem or isinstance(node.meta.get("val"), _SCALARS)
