"""Half values that forward and backward both read are marked, so that both round them alike.

In: the joint graph. Out: the same graph, with marks. `fuse` keeps the rounding of a value that
several loops of one graph read, but it sees forward and backward separately. Example: the gradient
of `(x * 0.3).amax(1)` looks for elements of `x * 0.3` equal to the maximum, which the forward
rounded and saved. Recomputed without its rounding, no element is equal to it.
"""

from __future__ import annotations

from torch import Tensor, bfloat16, float16
from torch.fx import GraphModule, Node

from litz.ir.graph import ROUNDED, Graph
from litz.passes.recompute import is_view


def mark_half_roundings(graph: Graph) -> int:
    """Mark halves that several ops read; every computation of them then rounds, as eager does."""
    marked = 0
    readers: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        readers[node] = sum(readers[user] if is_view(user) else 1 for user in node.users)
        if readers[node] > 1 and _is_half(node):
            node.meta[ROUNDED] = True
            marked += 1
    return marked


def mark_recomputed_roundings(forward: GraphModule, backward: GraphModule) -> None:
    """Mark, in both graphs, the halves that the backward recomputes, even those with one reader: if
    an operand were rounded in one graph alone, the recomputed value would differ."""
    first = {n.name: n for n in forward.graph.nodes if _is_half(n)}
    for node in backward.graph.nodes:
        if node.name in first and _is_half(node):
            node.meta[ROUNDED] = first[node.name].meta[ROUNDED] = True


def _is_half(node: Node) -> bool:
    """Whether a node computes values of a half type; a view does not."""
    value = node.meta.get("val")
    half = isinstance(value, Tensor) and value.dtype in (float16, bfloat16)
    return half and node.op == "call_function" and not is_view(node)
