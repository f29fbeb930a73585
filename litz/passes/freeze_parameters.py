"""Freezing: parameters become constants with the values they had at compile time.

In: `Graph` with the values of its parameters. Out: the number of parameters frozen. The graph still
takes them as inputs, so its callers do not change. `runtime/frozen.py` checks that they have not
changed, and copies those that are still needed at the end. `fold_frozen` computes values made of
them alone, after all passes that rewrite those.
"""

from __future__ import annotations

from torch.fx import Node

from litz.ir.graph import Graph, constant_name
from litz.ir.program import Decision
from litz.passes.aliasing import Aliases, viewed_operand


def freeze_parameters(graph: Graph) -> int:
    """Reads parameters of an inference graph from attributes of the graph.

    w = placeholder                          w = placeholder
    y = aten.mul(x, w)             ->        f = self._frozen_w
                                             y = aten.mul(x, f)
    """
    reason = _reason_not_to(graph)
    if reason is not None:
        graph.decisions.append(Decision("unmet", "freezing", f"{graph.kind} graph", reason))
        return 0
    nodes = graph.module.graph
    places = [n for n in graph.nodes if n.op == "placeholder"]
    first = places[-1].next
    names = _counted(graph)
    aliases = Aliases(nodes)
    for place in (p for p in places if p.name in names):
        name = f"_frozen_{constant_name(place.name)}"
        tensor = graph.values[place.name][1].detach()
        graph.module.register_buffer(name, tensor)
        graph.attributes[name] = tensor
        with nodes.inserting_before(first):
            read = nodes.get_attr(name)
        read.meta = dict(place.meta)
        # A parameter that the caller gets, directly or through a view, is returned itself.
        for user in list(place.users):
            if user.op != "output" and not _is_output_alias(user, place, aliases):
                user.replace_input_with(place, read)
        graph.frozen[place.name] = graph.values[place.name]
    return len(graph.frozen)


def _is_output_alias(user: Node, place: Node, aliases: Aliases) -> bool:
    """Whether a node is a view through which the caller gets a parameter."""
    return viewed_operand(user) is place and aliases.escapes(user)


def _counted(graph: Graph) -> list[str]:
    """The parameters whose version torch counts, so that a call can detect changes."""
    rest = [name for name, (_, tensor) in graph.values.items() if tensor.is_inference()]
    if rest:
        labels = ", ".join(graph.values[name][0] for name in rest)
        reason = "made in inference mode, where torch counts no changes: read at each call"
        graph.decisions.append(Decision("unmet", "freezing", labels, reason))
    return [name for name in graph.values if name not in rest]


def _reason_not_to(graph: Graph) -> str | None:
    if graph.kind != "inference":
        return "gradients are wanted, so parameters will change; compile under torch.no_grad()"
    if not graph.static:
        return "it has no parameters, or none are kept on this target"
    if not graph.values:
        return "its parameters are not at hand: sizes are symbolic, or tensors are subclasses"
    return None
