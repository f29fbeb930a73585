"""What may be done with a node: whether it may vanish, and whether it may be computed once.

In: an FX node. Out: answers. Example: `aten.rand` is neither removable, since a later random number
would then be another, nor repeatable, since each call gives a new one.
"""

from __future__ import annotations

import operator

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

_SCALARS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
# Ops of other namespaces are somebody's code: it may count its calls or talk to another process.
_KNOWN_NAMESPACES = ("aten", "prims", "litz")


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


def is_removable(node: Node) -> bool:
    """Whether a node that nothing uses has no other effect: it may tell a size."""
    if node.meta.get("unbacked_bindings"):
        return False  # `lower` finds out whether some other node is as large
    if isinstance(node.target, OpOverload):
        return not _has_effect(node, node.target)
    if node.op == "get_attr":
        return True
    is_call = node.op == "call_function" and not isinstance(node.target, HigherOrderOperator)
    return is_call and not node.is_impure()


def is_repeatable(node: Node) -> bool:
    """Whether the same call with the same operands gives the same value, each time, anywhere."""
    if node.op == "get_attr":
        return True
    if not is_removable(node):  # nor where each unbacked size has the one node that tells it
        return False
    if isinstance(node.target, OpOverload):
        return node.target.namespace in _KNOWN_NAMESPACES
    return node.target is operator.getitem or isinstance(node.meta.get("val"), _SCALARS)
