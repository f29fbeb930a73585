"""Results that show a mutated input are views of that input, and not of the value written to it.

In: AOTAutograd's inference or forward graph. Out: the same, with such views rebuilt. The wrapper
around a graph makes them anew from the user's tensor. Where a size is symbolic it takes shape,
strides and offset for that from what the graph returns, and a fresh tensor begins at 0:

    def f(x):                       copy_(x, add)
        x.add_(1)                   return view(add)   ->   return view(x)
        return x.flatten()

With any other backend, torch 2.13 then gives the first elements of the memory that x is a slice of.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

COPY = torch.ops.aten.copy_.default


def show_inputs(module: torch.fx.GraphModule) -> None:
    """Rebuild what the wrapper's notes say is a view of an input that the graph writes to."""
    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    if meta is None:
        return
    *nodes, output = module.graph.nodes
    returned, tokens = list(output.args[0]), len(meta.tokens)
    inputs = [n for n in nodes if n.op == "placeholder"][tokens:]
    if len(inputs) != len(meta.input_info):  # a subclass is several tensors in here
        return
    written = {n.args[0]: n.args[1] for n in nodes if n.target is COPY}
    for place, k in enumerate(meta.mutated_inp_runtime_indices, tokens):  # written by the wrapper
        written[inputs[k]] = returned[place]
    first = tokens + meta.num_mutated_inp_runtime_indices
    for place, info in enumerate(meta.output_info, first):
        if info.output_type is not OutputType.alias_of_input:
            continue
        shown = inputs[info.base_idx]
        views = _views(returned[place], written.get(shown))
        with module.graph.inserting_before(output):
            returned[place] = (_rebuilt(shown, views) if views else None) or returned[place]
    output.args = (tuple(returned),)
    module.recompile()


def _views(result: Any, of: Any) -> list[Node]:
    """The views between a value and a result that shows it; none if it does not."""
    found: list[Node] = []
    while isinstance(result, Node) and result is not of:
        if not _is_view(result):
            return []
        found.insert(0, result)
        result = result.args[0]
    return found if result is of else []


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:  # one of several views that an op gives
        return _is_view(node.args[0])  # type: ignore[arg-type]
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or not node.args:
        return False
    info = node.target._schema.arguments[0].alias_info
    return info is not None and not info.is_write


def _rebuilt(shown: Node, views: list[Node]) -> Node | None:
    """The same views of an input, if it lies so that it has them."""
    values, value = [], shown.meta["val"]
    fake_mode = value.fake_mode
    for view in views:
        others, named = map_arg((view.args[1:], view.kwargs), lambda n: n.meta["val"])
        try:
            with fake_mode:
                value = view.target(value, *others, **named)  # type: ignore[operator]
        except RuntimeError:
            return None
        values.append(value)
    for view, value in zip(views, values, strict=True):
        args = (shown, *view.args[1:])
        shown = view.graph.call_function(view.target, args, view.kwargs)  # type: ignore[arg-type]
        shown.meta = {**view.meta, "val": value}
    return shown
