"""Constants in a graph: calls evaluated at compile time, and the nodes that replace them.

In: a node that depends on constants alone. Out: its value, or the node that replaces it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.node import map_arg

from litz.ir.graph import Graph

aten = torch.ops.aten
LITERALS = (aten.full.default, aten.scalar_tensor.default)


def attribute(graph: Graph, node: Node) -> torch.Tensor | None:
    """The tensor that a `get_attr` node reads, if it has data."""
    found = graph.attributes.get(str(node.target)) if node.op == "get_attr" else None
    if not isinstance(found, torch.Tensor) or isinstance(found, FakeTensor):
        return None
    return None if found.is_meta or found.layout is not torch.strided else found.detach()


def literal(value: Any) -> bool | int | float | None:
    """The number that an operand stands for: a Python number, or a tensor filled with one."""
    if isinstance(value, Node) and value.target in LITERALS:
        position = 0 if value.target is aten.scalar_tensor.default else 1
        value = value.args[position] if position < len(value.args) else None
    return value if isinstance(value, (bool, int, float)) else None


def filled(shape: list[int], number: float, like: torch.Tensor) -> torch.Tensor | None:
    """A tensor filled with one number; None if its dtype cannot represent it."""
    try:
        return torch.full(shape, number, dtype=like.dtype, device=like.device)
    except RuntimeError:
        return None


def call(node: Node, known: Mapping[Node, torch.Tensor]) -> torch.Tensor | None:
    """The result of a node over known operands; None if the call fails, as it will at run time."""
    args, kwargs = map_arg((node.args, dict(node.kwargs)), known.__getitem__)
    try:
        with torch.no_grad():
            result = node.target(*args, **kwargs)  # type: ignore[operator]
    except RuntimeError:
        return None
    is_expected = isinstance(result, torch.Tensor) and result.dtype is node.meta["val"].dtype
    return result if is_expected else None


def evaluated(
    graph: Graph, root: Node, values: dict[Node, torch.Tensor | None]
) -> torch.Tensor | None:
    """The value of a node, from the values of its operands; None if one of them has none. `values`
    keeps intermediate results."""
    stack = [root]
    while stack:
        node = stack[-1]
        missing = [n for n in node.all_input_nodes if n not in values]
        if missing:
            stack += missing
            continue
        if node not in values:
            operands = {n: values[n] for n in node.all_input_nodes}
            if node.op == "get_attr":
                values[node] = attribute(graph, node)
            elif node.op != "call_function" or any(v is None for v in operands.values()):
                values[node] = None
            else:
                values[node] = call(node, operands)  # type: ignore[arg-type]
        stack.pop()
    return values[root]


def replace_by_full(graph: Graph, node: Node, element: torch.Tensor) -> None:
    """Replace a node by `aten.full` with the value of a one-element tensor."""
    value = node.meta["val"]
    kwargs = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    with graph.module.graph.inserting_before(node):
        full = graph.module.graph.call_function(
            aten.full.default, (list(value.shape), element.item()), kwargs
        )
    _replace(graph, node, full)
    full.meta["val"] = value.new_empty(value.shape)  # row-major with offset 0; a view had another


def replace_by_attribute(graph: Graph, node: Node, tensor: torch.Tensor) -> None:
    """Replace a node by a tensor that the module holds under a new name."""
    number = len(graph.attributes)
    while hasattr(graph.module, f"_folded{number}"):
        number += 1
    name = f"_folded{number}"
    if (
        tensor._is_zerotensor()
    ):  # a zero tensor of forward-mode AD: no kernel can read it, and torch cannot copy it
        tensor = tensor.clone()
    graph.module.register_buffer(name, tensor)
    graph.attributes[name] = tensor
    with graph.module.graph.inserting_before(node):
        kept = graph.module.graph.get_attr(name)
    _replace(graph, node, kept)


def _replace(graph: Graph, node: Node, new: Node) -> None:
    new.meta = dict(node.meta)  # the same value from the same source line
    node.replace_all_uses_with(new)
    graph.module.graph.erase_node(node)


def is_zero(number: bool | int | float, negative: bool) -> bool:
    """Whether a number is 0.0 or, if `negative`, -0.0; integers have only one zero."""
    return number == 0 and (math.copysign(1, number) < 0) == negative
