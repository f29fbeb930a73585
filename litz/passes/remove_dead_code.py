"""Dead-code elimination.

In: `Graph`. Out: the number of nodes removed.
"""

from __future__ import annotations

from litz.ir.graph import Graph
from litz.passes.purity import is_removable


def remove_dead_code(graph: Graph) -> int:
    """Removes ops whose results nothing uses and that have no side effect.

    a = aten.exp(x)
    b = aten.sin(x)                       b = aten.sin(x)
    r = aten.rand([4])           ->       r = aten.rand([4])
    return b                              return b
    """
    removed = 0
    for node in reversed(graph.nodes):  # users come later: one reverse walk removes whole chains
        if not node.users and is_removable(node):
            graph.module.graph.erase_node(node)
            removed += 1
    return removed
