"""Convolutions of signals become convolutions of images of height one.

In: `Graph`. Out: the number of convolutions lifted. oneDNN packs weights for images alone, and the
passes that follow bring images to channels last; a signal is an image of one line.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx import Node

from litz.ir.graph import Graph
from litz.passes.channels_last import FEWEST_CHANNELS
from litz.passes.layout import is_static

aten = torch.ops.aten


def lift_convolutions(graph: Graph) -> int:
    """Writes a convolution of signals as one of images of height one.

    c = aten.convolution(x, w, b, [2], [1], [1], ...)
    ->  y = aten.convolution(unsqueeze(x, 2), unsqueeze(w, 2), b, [1, 2], [0, 1], [1, 1], ...)
        c = squeeze(y, 2)
    """
    if graph.kind != "inference" or not graph.static:
        return 0
    wanted = [n for n in graph.nodes if n.target is aten.convolution.default and _is_signal(n)]
    return sum(_lifted(graph, node) for node in wanted)


def _is_signal(node: Node) -> bool:
    image, weight = (node.args[k].meta["val"] for k in (0, 1))  # type: ignore[union-attr]
    plain = image.dim() == 3 and image.dtype is torch.float32
    plain = plain and image.shape[1] >= FEWEST_CHANNELS
    return bool(plain and is_static(image) and is_static(weight))


def _lifted(graph: Graph, node: Node) -> bool:
    """Whether it was lifted: not, if its result would lie otherwise."""
    given: Any = node.args
    image, weight, bias, stride, padding, dilation, transposed, outside, groups = given
    nodes = graph.module.graph
    made: list[Node] = []

    def call(target: Any, *args: Any) -> Node:
        new = nodes.call_function(target, args)
        plain = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        new.meta = {k: v for k, v in node.meta.items() if k != "val"}
        with node.meta["val"].fake_mode:
            new.meta["val"] = target(*plain)
        made.append(new)
        return new

    with nodes.inserting_before(node):
        wide = [call(aten.unsqueeze.default, n, 2) for n in (image, weight)]
        sides = ([1, *stride], [0, *padding], [1, *dilation], transposed, [0, *outside])
        lines = call(aten.convolution.default, *wide, bias, *sides, groups)
        result = call(aten.squeeze.dim, lines, 2)
    same: bool = result.meta["val"].stride() == node.meta["val"].stride()
    if same:
        node.replace_all_uses_with(result)
        made = [node]
    for gone in reversed(made):
        nodes.erase_node(gone)
    return same
