"""Values that depend on frozen parameters alone are computed at compile time.

In: `Graph`, after the passes that rewrite computations on parameters. Out: the number of tensors
computed. They become constants; parameters that nothing else reads are released. Kernels pack
weights themselves (`runtime/prepacked.py`), not this pass.
"""

from __future__ import annotations

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from litz.ir.graph import Graph
from litz.passes.aliasing import Aliases, viewed_operand
from litz.passes.constants import evaluated, replace_by_attribute
from litz.passes.fold_affine_into_weights import parameter_derived_nodes
from litz.passes.fold_constants import has_expected_layout

_FOLDED = ("aten", "prims")  # a custom op's result may be no plain tensor


def fold_frozen(graph: Graph) -> int:
    """Computes once the values that are made of frozen parameters.

    s = aten.mul(self._frozen_g, self._frozen_i)        y = aten.mul(x, self._folded0)
    y = aten.mul(x, s)                            ->
    """
    if not graph.frozen:
        return 0
    known = parameter_derived_nodes(graph)
    aliases = Aliases(graph.module.graph)
    wanted = [n for n in known if _is_wanted(n, known, aliases)]
    values: dict[Node, torch.Tensor | None] = {}
    folded = 0
    with unset_fake_temporarily():
        made = {node: evaluated(graph, node, values) for node in wanted}
    for node, value in made.items():
        if value is not None and has_expected_layout(node, value):
            replace_by_attribute(graph, node, value)
            folded += 1
    for node in reversed(graph.nodes):
        if (node in known or node.op == "get_attr") and node.op != "placeholder" and not node.users:
            graph.module.graph.erase_node(node)
    used = {str(n.target) for n in graph.nodes if n.op == "get_attr"}
    for name in [name for name in graph.attributes if name not in used]:
        del graph.attributes[name]
    return folded


def _is_wanted(node: Node, known: dict[Node, None], aliases: Aliases) -> bool:
    """A plain tensor that owns its memory, is read at each call, and is not returned."""
    computed = isinstance(node.target, OpOverload) and node.target.namespace in _FOLDED
    if not computed or viewed_operand(node) is not None or not node.all_input_nodes:
        return False
    return not aliases.escapes(node) and any(_is_read(user, known) for user in node.users)


def _is_read(user: Node, known: dict[Node, None]) -> bool:
    """Whether a user that is not folded itself reads it, directly or through views."""
    if user not in known:
        return True
    computed = isinstance(user.target, OpOverload) and user.target.namespace in _FOLDED
    return not computed or (
        viewed_operand(user) is not None and any(_is_read(u, known) for u in user.users)
    )
