"""Hooks: graph passes that the user supplies.

In: a function that takes the FX graph and changes it in place. Out: the graph, checked, with fake
values for the nodes that the function made or changed, and for their users.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Node
from torch.fx.node import map_arg

from litz.errors import CustomPassFailed
from litz.ir.graph import Graph, at_path
from litz.passes.layout import is_same_tensor_layout

Calls = dict[Node, tuple[Any, ...]]


def run_hook(flag: str, hook: Callable[[torch.fx.Graph], None] | None, graph: Graph) -> None:
    """Call the function that a flag holds; an error it raises is reported as the user's."""
    if hook is None:
        return
    before = snapshot_calls(graph)
    try:
        hook(graph.module.graph)
        graph.module.graph.lint()
        fill_meta(graph)
        refresh_meta(graph, before)
    except Exception as error:
        raise CustomPassFailed(name_of_hook(flag, hook), error) from error


def name_of_hook(flag: str, hook: object) -> str:
    """The name of a user's function in errors: its flag and its own name."""
    return f"{flag}: {getattr(hook, '__qualname__', type(hook).__name__)}"


def fill_meta(graph: Graph) -> None:
    """Fake values for new nodes, and the tensors that new `get_attr` nodes read."""
    mode = _mode(graph)
    for node in graph.nodes:
        if node.op == "get_attr":
            name = str(node.target)
            graph.attributes.setdefault(name, at_path(graph.module, name))
        if "val" not in node.meta and node.op == "call_function":
            node.meta["val"] = _value(node, mode)


def snapshot_calls(graph: Graph) -> Calls:
    """The calls of a graph now, for a later comparison."""
    return {n: (n.target, n.args, n.kwargs) for n in graph.nodes}


def refresh_meta(graph: Graph, before: Calls) -> None:
    """Recompute fake values of changed calls, and of readers of a value that differs."""
    mode = _mode(graph)
    differs: set[Node] = set()
    for node in graph.nodes:
        was, now = before.get(node, ()), (node.target, node.args, node.kwargs)
        same = len(was) == len(now) and all(a is b for a, b in zip(was, now, strict=True))
        if node.op != "call_function" or (same and differs.isdisjoint(node.all_input_nodes)):
            continue
        if any("val" not in each.meta for each in node.all_input_nodes):
            continue  # it calls a subgraph (`torch.cond`), which has no fake value
        known, node.meta["val"] = node.meta["val"], _value(node, mode)
        if not is_same_tensor_layout(known, node.meta["val"]):
            differs.add(node)


def _mode(graph: Graph) -> Any:
    return detect_fake_mode([n.meta["val"] for n in graph.nodes if "val" in n.meta])


def _value(node: Node, mode: Any) -> Any:
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
    assert mode is not None, "the graph has no fake tensor to compute with"
    with mode:
        return node.target(*args, **kwargs)  # type: ignore[operator]
