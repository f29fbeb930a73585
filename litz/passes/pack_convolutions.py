"""Packed convolutions: oneDNN gets its weights as it wants them, and what follows, in one call.

In: `Graph`. Out: the number of convolutions packed. A convolution of torch brings its weight into
oneDNN's own order at every call: a third of the time of a small image. Here that is a step of its
own, which depends on parameters alone and is kept until one changes. A residual that is added and a
ReLU behind it are done by the same call, while the result is in registers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx import Node

from litz.ir.graph import Graph
from litz.passes.fold_channel_factors import of_parameters

aten = torch.ops.aten


def pack_convolutions(graph: Graph) -> int:
    """Packs the weights of convolutions once, and adds and clips in the same call.

    c = aten.convolution(x, w, b, ...)        p = mkldnn._reorder_convolution_weight(w, ...)
    return aten.relu(c + y)             ->    return mkldnn._convolution_pointwise.binary(
                                                  x, y, p, b, ..., "add", 1.0, "relu", [], "")
    """
    if graph.kind != "inference" or not graph.static or not torch.backends.mkldnn.is_available():
        return 0
    known = of_parameters(graph)
    wanted = [n for n in graph.nodes if _can_pack(n, known)]
    packed: dict[tuple[Any, ...], Node] = {}
    for node in wanted:
        _rewrite(graph, node, packed)
    return len(wanted)


def _can_pack(node: Node, known: dict[Node, None]) -> bool:
    if node.target is not aten.convolution.default:
        return False
    image, weight, bias, *_ = node.args
    _, _, _, _, _, _, transposed, _, groups = node.args
    value = node.meta["val"]
    plain = value.dim() == 4 and value.dtype is torch.float32 and not transposed
    last = value.is_contiguous(memory_format=torch.channels_last)
    parameters = weight in known and (bias is None or bias in known)
    # A convolution of each channel by itself has next to no weight to bring anywhere.
    deep = plain and groups < value.shape[1]  # type: ignore[operator]
    return bool(deep and last and parameters and isinstance(image, Node))


def _rewrite(graph: Graph, node: Node, packed: dict[tuple[Any, ...], Node]) -> None:
    image, weight, bias, stride, padding, dilation, _, _, groups = node.args
    assert isinstance(image, Node) and isinstance(weight, Node)
    where = (padding, stride, dilation, groups)
    other, last, unary = _epilogue(node)
    key = (weight, str(where), tuple(image.meta["val"].shape))
    nodes = graph.module.graph
    if key not in packed:
        with nodes.inserting_before(node):
            packed[key] = nodes.call_function(
                torch.ops.mkldnn._reorder_convolution_weight.default,
                (_unmoved(weight), *where, list(image.meta["val"].shape)),
            )
        packed[key].meta = {**node.meta, "val": weight.meta["val"]}
    pointwise = torch.ops.mkldnn._convolution_pointwise
    call: tuple[Any, tuple[Any, ...]]
    if other is None:
        call = pointwise.default, (image, packed[key], bias, *where, unary or "none", [], "")
    else:
        given = (image, other, packed[key], bias, *where)
        call = pointwise.binary, (*given, "add", 1.0, unary, [], "")
    with nodes.inserting_before(last):
        made = nodes.call_function(*call)
    made.meta = dict(last.meta)
    last.replace_all_uses_with(made)
    for done in dict.fromkeys((last, *_between(node, last), node)):
        nodes.erase_node(done)


def _epilogue(node: Node) -> tuple[Node | None, Node, str | None]:
    """What is added to the convolution, the last op that is done with it, and a ReLU or none."""
    other: Node | None = None
    last = node
    added = _only_user(last, aten.add.Tensor)
    if added is not None and not added.kwargs:
        operands = [a for a in added.args if a is not last]
        if len(operands) == 1 and _like(operands[0], node):
            other, last = operands[0], added  # type: ignore[assignment]
    clipped = _only_user(last, aten.relu.default)
    return (other, last, None) if clipped is None else (other, clipped, "relu")


def _only_user(node: Node, target: Any) -> Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is target else None


def _like(operand: Any, node: Node) -> bool:
    """Whether an operand lies exactly as the result, so that it is added where it stands."""
    if not isinstance(operand, Node) or not isinstance(operand.meta.get("val"), torch.Tensor):
        return False
    mine, value = operand.meta["val"], node.meta["val"]
    return (mine.shape, mine.stride(), mine.dtype) == (value.shape, value.stride(), value.dtype)


def _between(node: Node, last: Node) -> list[Node]:
    """The addition, where a ReLU follows it."""
    return [n for n in last.all_input_nodes if node in n.all_input_nodes and n is not node]


def _unmoved(weight: Node) -> Node:
    """A weight before it was brought to channels last: packing starts from any order."""
    is_clone = weight.target is aten.clone.default
    return weight.all_input_nodes[0] if is_clone else weight
