"""A conv1d becomes a conv2d of an image of height one.

In: `Graph`. Out: the number of convolutions lifted. oneDNN packs weights only for images, and later
passes move only images to channels last. Lifting pays for depthwise, pointwise (kernel size 1) and
transposed convolutions. Other convolutions are as fast in one dimension (within 1 % on the layers
of Whisper and a stack of dilated ones), and stay.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx import Node

from litz.ir.convolution import convolution_of
from litz.ir.graph import Graph
from litz.passes.channels_last import MIN_CHANNELS
from litz.passes.layout import is_static

aten = torch.ops.aten


def lift_conv1d_to_conv2d(graph: Graph) -> int:
    """Writes a conv1d as a conv2d of an image of height one.

    c = aten.convolution(x, w, b, [1], [15], [1], ..., 256)
    ->  y = aten.convolution(unsqueeze(x, 2), unsqueeze(w, 2), b, [1, 1], [0, 15], [1, 1], ...)
        c = squeeze(y, 2)
    """
    if graph.kind != "inference" or not graph.static:
        return 0
    wanted = [n for n in graph.nodes if n.target is aten.convolution.default and _is_conv1d(n)]
    return sum(_lifted(graph, node) for node in wanted)


def _is_conv1d(node: Node) -> bool:
    image, weight = (node.args[k].meta["val"] for k in (0, 1))  # type: ignore[union-attr]
    plain = image.dim() == 3 and image.dtype is torch.float32
    if not plain or image.shape[1] < MIN_CHANNELS:
        return False
    if not is_static(image) or not is_static(weight):
        return False
    conv = convolution_of(image.shape, weight.shape, node.meta["val"].shape, *node.args[3:])
    return conv.is_depthwise or conv.taps == 1 or conv.transposed


def _lifted(graph: Graph, node: Node) -> bool:
    """Lift one; False if the result would have other strides."""
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
