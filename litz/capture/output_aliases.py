"""Outputs that alias an input are the program's own views of that input.

In: AOTAutograd's inference or forward graph. Out: the same, with such views rebuilt. The wrapper
around a graph makes these outputs anew from the user's tensor. Where a size is symbolic, it takes
their shape, strides and offset from the graph's outputs, and a fresh tensor has offset 0:

    def f(x):                       copy_(x, add)
        x.add_(1)                   return view(add)   ->   return view(x)
        return x.flatten()

If x is a slice, torch 2.13 with any other backend returns the first elements of its storage. The
wrapper also replays the view that autograd sees behind an output. `as_strided`, by which a compiled
graph makes its views, has another gradient for an input whose elements share memory than `expand`:
so a forward graph of symbolic sizes returns the views that the program's own ops make.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType
from torch._guards import TracingContext
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

COPY = torch.ops.aten.copy_.default


def rebuild_output_aliases(module: torch.fx.GraphModule) -> None:
    """Rebuild the outputs that AOTAutograd's metadata calls views of an input the graph mutates."""
    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    aliases = _aliases(module)
    if meta is None or not aliases:
        return
    *nodes, output = module.graph.nodes
    returned, tokens = list(output.args[0]), len(meta.tokens)
    inputs = [n for n in nodes if n.op == "placeholder"][tokens:]
    written = {n.args[0]: n.args[1] for n in nodes if n.target is COPY}
    for place, k in enumerate(meta.mutated_inp_runtime_indices, tokens):  # written by the wrapper
        written[inputs[k]] = returned[place]
    for place, aliased_input in aliases.items():
        views = _views(returned[place], written.get(aliased_input))
        with module.graph.inserting_before(output):
            returned[place] = (_rebuilt(aliased_input, views) if views else None) or returned[place]
    output.args = (tuple(returned),)
    module.recompile()


def _aliases(module: torch.fx.GraphModule) -> dict[int, Node]:
    """The places of outputs that alias an input, by AOTAutograd's metadata, and those inputs."""
    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    if meta is None:
        return {}
    places = [n for n in module.graph.nodes if n.op == "placeholder"]
    inputs, tokens = places[len(meta.tokens) :], len(meta.tokens)
    if len(inputs) != len(meta.input_info):  # a tensor subclass is several tensors here
        return {}
    first = tokens + meta.num_mutated_inp_runtime_indices
    found = enumerate(meta.output_info, first)
    alias = OutputType.alias_of_input
    return {k: inputs[info.base_idx] for k, info in found if info.output_type is alias}


def replay_views(
    module: torch.fx.GraphModule, compiled: Callable[..., Any]
) -> Callable[[list[Any]], Any]:
    """A compiled forward graph that returns the program's own views of its inputs, if its sizes are
    symbolic: of others AOTAutograd replays the views itself."""
    *nodes, output = module.graph.nodes
    symbolic = any(n.op == "placeholder" and type(n.meta["val"]) is torch.SymInt for n in nodes)
    returned = output.args[0]
    chains = {k: _views(returned[k], of) for k, of in _aliases(module).items()} if symbolic else {}
    places = [k for k, views in chains.items() if views and _is_made_of_sizes(views)]
    if not places:
        return compiled
    views = _extracted(module, [returned[k] for k in places])

    def run(args: list[Any]) -> Any:
        replayed = views(*args)
        results = list(compiled(args))
        for place, view in zip(places, replayed, strict=True):
            results[place] = view
        return results

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _is_made_of_sizes(views: list[Node]) -> bool:
    """Whether views need their input and sizes alone, and no other tensor."""
    others = {n for view in views for n in view.all_input_nodes if n is not view.args[0]}
    waiting, seen = list(others), set(others)
    while waiting:
        node = waiting.pop()
        if isinstance(node.meta.get("val"), torch.Tensor):
            return False
        fresh = [n for n in node.all_input_nodes if n not in seen and n.op != "placeholder"]
        seen.update(fresh)
        waiting += fresh
    return True


def _extracted(module: torch.fx.GraphModule, results: list[Node]) -> torch.fx.GraphModule:
    """The part of a graph that some of its results need, over all its inputs."""
    needed, waiting = set(results), list(results)
    while waiting:
        fresh = [n for n in waiting.pop().all_input_nodes if n not in needed]
        needed.update(fresh)
        waiting += fresh
    part = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" or node in needed:
            copies[node] = part.node_copy(node, copies.__getitem__)
    part.output(tuple(copies[n] for n in results))
    return torch.fx.GraphModule(module, part)


def _views(result: Any, of: Any) -> list[Node]:
    """The chain of views that leads from a value to a result; empty if there is none."""
    found: list[Node] = []
    while isinstance(result, Node) and result is not of:
        if not _is_view(result):
            return []
        found.insert(0, result)
        result = result.args[0]
    return found if result is of else []


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:  # one of several views that an op returns
        return _is_view(node.args[0])  # type: ignore[arg-type]
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or not node.args:
        return False
    info = node.target._schema.arguments[0].alias_info
    return info is not None and not info.is_write


def _rebuilt(aliased_input: Node, views: list[Node]) -> Node | None:
    """The same views of an input, or None if its strides do not allow them."""
    values, value = [], aliased_input.meta["val"]
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
        args: Any = (aliased_input, *view.args[1:])
        target: Any = view.target
        aliased_input = view.graph.call_function(target, args, view.kwargs)
        aliased_input.meta = {**view.meta, "val": value}
    return aliased_input
