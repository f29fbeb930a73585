"""Removal of views and copies that change nothing, and shortening of chains of them.

In: `Graph`. Out: the number of nodes removed or shortened.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from litz.ir import dtypes
from litz.ir.graph import Graph
from litz.passes.aliasing import Aliases, viewed_operand
from litz.passes.layout import is_row_major, is_same_tensor_layout
from litz.passes.purity import is_removable
from litz.rewrite.cast_rules import is_detour

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
_COPIES = (*_CASTS, aten.clone.default, aten.lift_fresh_copy.default)
_DTYPES = {
    torch.float64: dtypes.F64,
    torch.float32: dtypes.F32,
    torch.float16: dtypes.F16,
    torch.bfloat16: dtypes.BF16,
    torch.float8_e4m3fn: dtypes.E4M3,
    torch.float8_e5m2: dtypes.E5M2,
    torch.int64: dtypes.I64,
    torch.int32: dtypes.I32,
    torch.int16: dtypes.I16,
    torch.int8: dtypes.I8,
    torch.uint8: dtypes.U8,
    torch.bool: dtypes.BOOL,
}


def remove_noop_views(graph: Graph) -> int:
    """Reads through views and copies that change nothing, and merges two in a row into one.

        a = aten.view(x, [12])
        b = aten.view(a, [3, 4])              b = aten.view(x, [3, 4])
        c = aten.permute(b, [0, 1])  ->
        d = aten.clone(c)
        return aten.exp(d)                    return aten.exp(b)

    A copy stays if the caller gets its memory, if anything writes to it or to its source, or if it
    changes strides or offset. A view stays if the caller would get one object twice, or an input.
    """
    aliases = Aliases(graph.module.graph)
    changes = 0
    for node in graph.nodes:
        source = node.args[0] if node.op == "call_function" and node.args else None
        if not isinstance(source, Node):
            continue
        if _shorten(node, source, aliases):
            changes += 1
            source = node.args[0]
            assert isinstance(source, Node)
        if _is_noop(node, source, aliases):
            aliases.merge(source, node)
            node.replace_all_uses_with(source)
            graph.module.graph.erase_node(node)
            changes += 1
    return changes


def _is_noop(node: Node, source: Node, aliases: Aliases) -> bool:
    value, before = node.meta.get("val"), source.meta.get("val")
    if not is_same_tensor_layout(value, before):
        return False
    if node.target in _COPIES:
        return not node.kwargs.get("pin_memory") and aliases.may_read_instead(node, source)
    # Views of the same memory with the same layout and offset have the same elements. An op that
    # writes (`copy_`) returns the memory it wrote to, but is no view.
    return (
        viewed_operand(node) is source
        and is_removable(node)
        and aliases.may_return_instead(node, source)
    )


def _shorten(node: Node, source: Node, aliases: Aliases) -> bool:
    """Let a node read its source's operand directly, where that gives the same result."""
    origin = source.args[0] if source.op == "call_function" and source.args else None
    if not isinstance(origin, Node):
        return False
    if node.target in _VIEWS and source.target in _VIEWS:
        # Any row-major tensor can be viewed in any shape; chains of other tensors stay.
        if not is_row_major(origin.meta["val"]):
            return False
        node.update_arg(0, origin)
        return True
    if node.target is source.target is aten.permute.default:
        inner: Any = source.args[1]
        outer: Any = node.args[1]
        node.args = (origin, [inner[d] for d in outer])
        return True
    if _is_cast(node) and _is_cast(source):
        types = [n.meta["val"].dtype for n in (origin, source, node)]
        if not all(t in _DTYPES for t in types) or aliases.is_written(origin):
            return False
        if not is_detour(*(_DTYPES[t] for t in types)):
            return False
        node.update_arg(0, origin)
        return True
    return False


def _is_cast(node: Node) -> bool:
    """Whether a node converts the element type and nothing else."""
    if node.target is aten._to_copy.default:
        return set(node.kwargs) == {"dtype"}
    return node.target in _CASTS
