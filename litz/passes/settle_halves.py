"""Values of half types that forward and backward both read: marked, so that both round them alike.

In: the joint graph. Out: the same graph, with marks. `fuse` keeps the rounding of what several
loops of one graph read, but it sees the forward and the backward apart. Example: the gradient of
`(x * 0.3).amax(1)` looks for the elements of `x * 0.3` that are equal to the maximum, which the
forward rounded and saved; computed again without its rounding, no element is equal to it.
"""

from __future__ import annotations

from torch import Tensor, bfloat16, float16
from torch.fx import GraphModule, Node

from litz.ir.graph import ROUNDED, Graph
from litz.passes.recompute import is_view


def settle_halves(graph: Graph) -> int:
    """Mark halves that more than one op reads; all that compute them round them, as eager does."""
    marked = 0
    readers: dict[Node, int] = {}
    for node in reversed(graph.nodes):
        readers[node] = sum(readers[user] if is_view(user) else 1 for user in node.users)
        if readers[node] > 1 and _is_half(node):
            node.meta[ROUNDED] = True
            marked += 1
    return marked


def settle_recomputed(forward: GraphModule, backward: GraphModule) -> None:
    """Mark the halves that the backward computes again, in both. One reader is enough: a value that
    is rounded alike is still another one if what it is made of was rounded in one of them alone."""
    first = {n.name: n for n in forward.graph.nodes if _is_half(n)}
    for node in backward.graph.nodes:
        if node.name in first and _is_half(node):
            node.meta[ROUNDED] = first[node.name].meta[ROUNDED] = True


def _is_half(node: Node) -> bool:
    """Whether a node makes numbers of a half type; a view shows its operand's."""
    value = node.meta.get("val")
    half = isinstance(value, Tensor) and value.dtype in (float16, bfloat16)
    return half and node.op == "call_function" and not is_view(node)
