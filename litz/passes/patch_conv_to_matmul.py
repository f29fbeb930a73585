"""Patch embedding: a convolution whose windows do not overlap is a matmul.

In: `Graph`. Out: the number of convolutions replaced. The first layer of a vision transformer cuts
an image into patches and multiplies each by one matrix. A convolution of three channels leaves
tensor cores idle; a matmul of 768 columns uses them fully. Copying the image into patches is one
kernel, and readers of the result fuse with its permutation to eager's layout. Only on a GPU: on a
CPU, oneDNN's convolutions do this themselves.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from litz.ir.graph import Graph
from litz.target import eager_on

aten = torch.ops.aten

# Windows of fewer elements stay convolutions: a matmul with so short a K gains little.
SHORTEST_SUM = 32


def patch_conv_to_matmul(graph: Graph) -> int:
    """Writes patch-embedding convolutions as matmuls.

    c = aten.convolution(x, w, b,         p = x.view(n, c, h, k, w, k).permute(0, 2, 4, 1, 3, 5)
            stride=[k, k])          ->    y = aten.addmm(b, p.reshape(n * h * w, -1), w'.t())
                                          c = y.view(n, h, w, -1).permute(0, 3, 1, 2).clone()
    """
    wanted = [n for n in graph.nodes if _is_patch_conv(n)]
    for node in wanted:
        _PatchMatmul(graph, node).replace()
    return len(wanted)


def _is_patch_conv(node: Node) -> bool:
    if node.target is not aten.convolution.default:
        return False
    given: tuple[Any, ...] = node.args
    x, w, _, stride, padding, dilation, transposed, _, groups = given
    image, weight = x.meta["val"], w.meta["val"]
    if image.dim() != 4 or transposed or groups != 1:
        return False
    if not eager_on(image.device).channels_last_half_conv:
        return False
    if not all(isinstance(s, int) for s in (*image.shape, *weight.shape)):
        return False
    sides = list(weight.shape[2:])
    plain = list(stride) == sides and not any(padding) and all(d == 1 for d in dilation)
    whole = all(n % k == 0 for n, k in zip(image.shape[2:], sides, strict=True))
    is_sum = math.prod(weight.shape[1:]) >= SHORTEST_SUM and sides != [1, 1]
    return bool(plain and whole and is_sum and image.is_contiguous() and weight.is_contiguous())


class _PatchMatmul:
    """Inserts the matmul before the convolution and replaces it."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.nodes, self.node = graph.module.graph, node

    def replace(self) -> None:
        x, w, bias = self.node.args[:3]
        image, weight = x.meta["val"], w.meta["val"]  # type: ignore[union-attr]
        (n, c, *sizes), (out, _, *sides) = image.shape, weight.shape
        high, wide = (a // b for a, b in zip(sizes, sides, strict=True))
        with self.nodes.inserting_before(self.node):
            split = self._call(aten.view.default, x, [n, c, high, sides[0], wide, sides[1]])
            turned = self._call(aten.permute.default, split, [0, 2, 4, 1, 3, 5])
            order = {"memory_format": torch.contiguous_format}
            laid = self._call(aten.clone.default, turned, **order)
            rows = self._call(
                aten.view.default, laid, [n * high * wide, math.prod(weight.shape[1:])]
            )
            flat = self._call(aten.view.default, w, [out, math.prod(weight.shape[1:])])
            columns = self._call(aten.permute.default, flat, [1, 0])
            if bias is None:
                product = self._call(aten.mm.default, rows, columns)
            else:
                product = self._call(aten.addmm.default, bias, rows, columns)
            shaped = self._call(aten.view.default, product, [n, high, wide, out])
            back = self._call(aten.permute.default, shaped, [0, 3, 1, 2])
            result = self._call(aten.clone.default, back, **order)
        self.node.replace_all_uses_with(result)
        self.nodes.erase_node(self.node)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        made = self.nodes.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in self.node.meta.items() if k != "val"}
        plain = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        made.meta["val"] = target(*plain, **kwargs)
        return made
