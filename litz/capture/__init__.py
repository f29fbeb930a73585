"""Stage 1: the functional ATen graph of a program, with fake values and source lines.

In: the FX module that AOTAutograd made. Out: `Graph`. Example: `x.add_(1)` arrives as
`add = aten.add.Tensor(x, 1); aten.copy_.default(x, add)`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from litz.capture.autograd import STATIC, through_autograd
from litz.capture.decompositions import decompositions
from litz.capture.specialize import is_symbolic, sizes_of, specialize
from litz.ir.graph import Graph, at_path
from litz.trace import stage


@stage("capture", "the functional ATen graph")
def capture(module: torch.fx.GraphModule, kind: str) -> Graph:
    """Collect the tensors the module itself holds; copy it, since passes rewrite in place."""
    nodes = torch.fx.Graph()
    nodes.output(nodes.graph_copy(module.graph, {}))
    copied = _LazyGraphModule(module, nodes)  # no stage runs it: its Python code is never needed
    attributes: dict[str, Any] = {}
    for node in copied.graph.nodes:
        if node.op == "get_attr":
            attributes[str(node.target)] = at_path(module, str(node.target))
    places = [n.name for n in copied.graph.nodes if n.op == "placeholder"]
    static = frozenset(places[k] for k in module.meta.get(STATIC, ()))
    return Graph(copied, kind=kind, attributes=attributes, static=static)


__all__ = [
    "STATIC",
    "capture",
    "decompositions",
    "is_symbolic",
    "sizes_of",
    "specialize",
    "through_autograd",
]
