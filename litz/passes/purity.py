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
_KNOWN_NAMESPACES = ("aten", "prims")


def is_removable(node: Node) -> bool:
    """Whether a node that nothing uses has no other effect."""
    if node.op == "get_attr":
        return True
    return (
        node.op == "call_function"
        and not node.is_impure()
        and not isinstance(node.target, HigherOrderOperator)
    )


def is_repeatable(node: Node) -> bool:
    """Whether the same call with the same operands gives the same value, each time, anywhere."""
    if node.op == "get_attr":
        return True
    if not is_removable(node) or node.meta.get("unbacked_bindings"):
        return False  # each unbacked size is defined by the one node that reads it from data
    if isinstance(node.target, OpOverload):
        return node.target.namespace in _KNOWN_NAMESPACES
    return node.target is operator.getitem or isinstance(node.meta.get("val"), _SCALARS)
