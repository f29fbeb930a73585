"""Constant folding: small tensors that depend on constants alone are computed at compile time.

In: `Graph`. Out: the number of tensors computed. They become attributes of the module.
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from litz.ir.graph import Graph
from litz.passes.aliasing import Aliases, viewed_operand
from litz.passes.constants import attribute, call, replace_by_attribute, replace_by_full
from litz.passes.layout import is_static
from litz.passes.purity import is_repeatable

aten = torch.ops.aten

# A folded tensor is read from memory in every call and is part of the cache entry: 256 KiB of
# floats fit beside other data into the second-level cache of a core.
LARGEST = 1 << 16

# Index ranges and arithmetic on them are cheaper to compute in registers than to load, and the
# index algebra can reason about them. A constant made of these ops alone stays in the loops.
_CHEAP = frozenset(
    (
        *(aten.full, aten.scalar_tensor, aten.arange, torch.ops.prims.iota),
        *(aten.add, aten.sub, aten.mul, aten.neg, aten.abs, aten.minimum, aten.maximum, aten.where),
        *(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge),
        *(aten.logical_and, aten.logical_or, aten.logical_not),
        *(aten.bitwise_and, aten.bitwise_or, aten.bitwise_not),
        *(aten.clone, aten._to_copy, torch.ops.prims.convert_element_type),
    )
)


def fold_constants(graph: Graph) -> int:
    """Computes once small constant tensors that take more than cheap arithmetic.

        a = aten.arange(4)
        b = aten.cos(a)              ->       b = self._folded0
        return aten.mul(x, b)                 return aten.mul(x, b)

    A constant that the caller gets is computed in every call, since the caller may write into it.
    """
    aliases = Aliases(graph.module.graph)
    constants = _constants(graph, aliases)
    wanted = _wanted(graph, constants, aliases)
    with unset_fake_temporarily():
        values = _evaluated(graph, constants, wanted)
    folded = [n for n in graph.nodes if n in wanted and has_expected_layout(n, values.get(n))]
    for node in folded:
        if values[node].numel() == 1:
            replace_by_full(graph, node, values[node])
        else:
            replace_by_attribute(graph, node, values[node])
    return len(folded)


def _constants(graph: Graph, aliases: Aliases) -> dict[Node, bool]:
    """Small nodes that depend on constants alone -> whether they are worth storing."""
    found: dict[Node, bool] = {}
    in_memory: set[Node] = set()  # attributes and views of them
    for node in graph.nodes:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not is_static(value) or value.numel() > LARGEST:
            continue
        operands = node.all_input_nodes
        if node.op == "get_attr":
            is_constant = attribute(graph, node) is not None
        else:
            is_constant = isinstance(node.target, OpOverload) and is_repeatable(node)
        if not is_constant or aliases.is_written(node) or any(n not in found for n in operands):
            continue
        viewed = viewed_operand(node)
        if node.op == "get_attr" or viewed in in_memory:
            in_memory.add(node)
        is_costly = node.op == "call_function" and viewed is None and not _is_cheap(node)
        reads = viewed is None and any(n in in_memory for n in operands)
        found[node] = is_costly or reads or any(found[n] for n in operands)
    return found


def _is_cheap(node: Node) -> bool:
    assert isinstance(node.target, OpOverload)
    return node.target.overloadpacket in _CHEAP


def _wanted(graph: Graph, constants: dict[Node, bool], aliases: Aliases) -> set[Node]:
    """Costly constants that a non-constant node reads, directly or through a view."""
    read: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in constants and any(
            user not in constants or (user in read and viewed_operand(user) is node)
            for user in node.users
        ):
            read.add(node)
    return {
        node
        for node in read
        if constants[node] and viewed_operand(node) is None and not aliases.escapes(node)
    }


def _evaluated(
    graph: Graph, constants: dict[Node, bool], wanted: set[Node]
) -> dict[Node, torch.Tensor]:
    """The values of the wanted nodes and of everything they depend on."""
    needed = set(wanted)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    values: dict[Node, torch.Tensor] = {}
    for node in constants:
        if node in needed and all(n in values for n in node.all_input_nodes):
            value = attribute(graph, node) if node.op == "get_attr" else call(node, values)
            if value is not None:
                values[node] = value
    return values


def has_expected_layout(node: Node, value: torch.Tensor | None) -> bool:
    """Whether a value has the shape, strides and device that the graph expects of its node."""
    expected = node.meta["val"]
    return (
        value is not None
        and value.shape == expected.shape
        and value.stride() == expected.stride()
        and value.device == expected.device
    )
