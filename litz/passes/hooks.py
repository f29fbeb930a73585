"""Graph passes of the user's own.

In: a function that takes the FX graph and changes it in place. Out: the graph, checked, with fake
values for the nodes that the function made.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch._guards import detect_fake_mode
from torch.fx.node import map_arg

from litz.errors import CustomPassFailed
from litz.ir.graph import Graph, at_path


def run_hook(flag: str, hook: Callable[[torch.fx.Graph], None] | None, graph: Graph) -> None:
    """Call the function that a flag holds; whatever it raises is the user's to mend."""
    if hook is None:
        return
    try:
        hook(graph.module.graph)
        graph.module.graph.lint()
        complete(graph)
    except Exception as error:
        raise CustomPassFailed(name_of_hook(flag, hook), error) from error


def name_of_hook(flag: str, hook: object) -> str:
    """How errors call a function of the user's: by its flag and its own name."""
    return f"{flag}: {getattr(hook, '__qualname__', type(hook).__name__)}"


def complete(graph: Graph) -> None:
    """Fake values for new nodes, and the tensors that new `get_attr` nodes read."""
    nodes = graph.nodes
    mode = detect_fake_mode([n.meta["val"] for n in nodes if "val" in n.meta])
    for node in nodes:
        if node.op == "get_attr":
            name = str(node.target)
            graph.attributes.setdefault(name, at_path(graph.module, name))
        if "val" in node.meta or node.op != "call_function":
            continue
        args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
        assert mode is not None, "the graph has no fake tensor to compute with"
        with mode:
            node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
