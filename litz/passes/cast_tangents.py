"""Incoming gradients get the dtype of the result that they belong to.

In: `Graph`, joint. Out: the number of tangents changed. AOTAutograd takes the dtype of a result
from torch's meta function of the op, which for a few ops differs from the real dtype: the loss of
float32 numbers and a float64 target is float32, but traced as float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from litz.ir.graph import Graph

CAST = torch.ops.prims.convert_element_type.default


def cast_tangents(graph: Graph) -> int:
    """Takes a gradient in the dtype of its result, and casts it to the dtype it was traced in.

    t = placeholder: float64                       t = placeholder: float32
    g = aten.mul(t, x)                       ->    c = prims.convert_element_type(t, float64)
                                                   g = aten.mul(c, x)
    """
    nodes = graph.nodes
    descriptions, given = nodes[-1].meta.get("desc") or (), nodes[-1].args[0]
    described = zip(descriptions, given if descriptions else (), strict=True)  # type: ignore
    results = {desc: result for desc, result in described if isinstance(result, Node)}
    places = [n for n in nodes if n.op == "placeholder"]
    wrong = [n for n in places if _differs(n, results.get(_result_of(n)))]
    for node in wrong:
        _cast(graph, node, results[_result_of(node)], places[-1].next)
    return len(wrong)


def _result_of(tangent: Node) -> Any:
    """AOTAutograd's descriptor of the result that a tangent is the gradient of."""
    return getattr(tangent.meta.get("desc"), "output", None)


def _differs(tangent: Node, result: Node | None) -> bool:
    if result is None:
        return False
    mine, other = tangent.meta.get("val"), result.meta.get("val")
    if not isinstance(mine, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return mine.dtype is not other.dtype


def _cast(graph: Graph, tangent: Node, result: Node, first: Node) -> None:
    traced = tangent.meta["val"]
    with graph.module.graph.inserting_before(first):
        cast = graph.module.graph.call_function(CAST, (tangent, traced.dtype))
    tangent.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
    cast.meta = dict(tangent.meta)
    cast.meta.pop("desc", None)
    with traced.fake_mode:
        tangent.meta["val"] = traced.to(result.meta["val"].dtype)
