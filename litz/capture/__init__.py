"""Stage 1: the functional ATen graph of a program, with fake values and source lines.

In: the FX module that AOTAutograd made. Out: `Graph`. Example: `x.add_(1)` arrives as
`add = aten.add.Tensor(x, 1); aten.copy_.default(x, add)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.fx
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _pytree as pytree

from litz.capture.aot_autograd import COMPILE_LOCK, STATIC, parameters_of, through_aot_autograd
from litz.capture.decompositions import decompositions
from litz.capture.isolated_compile import call_isolated
from litz.capture.masks import simplify_masks
from litz.capture.specialize import (
    forbid_new_guards,
    has_unbacked_sizes,
    is_symbolic,
    specialization_key,
    specialize,
    synthetic_bases_of,
)
from litz.ir.graph import Graph, NamedTensor, at_path
from litz.trace import stage


@stage("capture", "the functional ATen graph")
def capture(
    module: torch.fx.GraphModule, kind: str, parameters: Mapping[int, NamedTensor] | None = None
) -> Graph:
    """Copy the module, since passes rewrite in place, and collect the tensors it holds itself.
    `parameters`, by position, are given if they may become constants."""
    nodes = torch.fx.Graph()
    nodes.output(nodes.graph_copy(module.graph, {}))
    copied = _LazyGraphModule(module, nodes)  # no stage runs it: its Python code is never needed
    attributes: dict[str, Any] = {}
    for node in copied.graph.nodes:
        if node.op == "get_attr":
            attributes[str(node.target)] = at_path(module, str(node.target))
    places = [n for n in copied.graph.nodes if n.op == "placeholder"]
    given = [places[k] for k in module.meta.get(STATIC, ())]
    # An input that the graph itself updates changes at every call.
    static = frozenset(n.name for n in given if not any(_updates(user, n) for user in n.users))
    values = {places[k].name: tensor for k, tensor in (parameters or {}).items()}
    known = {name: tensor for name, tensor in values.items() if name in static}
    return Graph(copied, kind=kind, attributes=attributes, static=static, values=known)


def _updates(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    return user.target is torch.ops.aten.copy_.default and user.args[0] is node


def devices_of(module: torch.fx.GraphModule) -> set[torch.device]:
    """The devices of a graph's tensors."""
    values = (node.meta.get("val") for node in module.graph.nodes)
    tensors = (t for value in values for t in pytree.tree_leaves(value))
    return {t.device for t in tensors if isinstance(t, torch.Tensor)}


__all__ = [
    "COMPILE_LOCK",
    "STATIC",
    "call_isolated",
    "capture",
    "decompositions",
    "has_unbacked_sizes",
    "devices_of",
    "is_symbolic",
    "parameters_of",
    "simplify_masks",
    "synthetic_bases_of",
    "specialization_key",
    "specialize",
    "through_aot_autograd",
    "forbid_new_guards",
]
