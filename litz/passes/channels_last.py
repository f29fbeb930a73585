"""Channels last inside: convolutions get the layout that they are fastest in.

In: `Graph`. Out: the number of convolutions changed. A convolution of images in the usual order
moves its operands to another one and its result back, at every call. Here the images are moved once
at the front, the weights are (as anything made of parameters alone) kept, and what lies between
convolutions follows: an elementwise op, a pool or a norm works in any order. Where an op looks at
the order (a view) or the caller does, the value is moved back to where eager has it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx import Node
from torch.utils import _pytree as pytree

from litz.config import Config
from litz.ir.convolution import has_onednn
from litz.ir.graph import Graph
from litz.passes.fold_channel_factors import of_parameters
from litz.passes.fold_strides import HALVES, fold_strides
from litz.target import Target

aten = torch.ops.aten

# Besides elementwise ops, what gives the same numbers in whatever order its operands lie.
_FOLLOWS = frozenset(
    (
        *(aten.convolution, aten.cat, aten.mean, aten.sum, aten.var_mean, aten.var, aten.amax),
        *(aten.max_pool2d_with_indices, aten.avg_pool2d, aten._adaptive_avg_pool2d),
        *(aten.max_pool3d_with_indices, aten.avg_pool3d, aten._adaptive_avg_pool3d),
        *(aten.upsample_nearest2d, aten.upsample_bilinear2d, aten.upsample_bicubic2d),
        *(aten.upsample_nearest3d, aten.upsample_trilinear3d),
        *(aten.squeeze, aten.unsqueeze),  # of a signal that is an image of one line
        *(aten.constant_pad_nd, aten.native_batch_norm, aten.native_group_norm),
        aten._native_batch_norm_legit_no_training,
    )
)
# These, too, unless they are told to give another order: a cast is one of them.
_KEEPING = (aten._to_copy.default, aten.clone.default)
# A convolution over fewer channels than this (the first of a network) gains nothing by itself; of
# volumes each does, which ATen convolves without oneDNN.
FEWEST_CHANNELS = 8
ORDERS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


def channels_last(graph: Graph, target: Target, config: Config) -> int:
    """Moves convolutions of images, and what lies between them, to the order they are fastest in.

    c = aten.convolution(x, w, ...)   ->   x' = clone(x, channels_last); w' likewise
    return aten.relu(c)                    c = aten.convolution(x', w', ...)
                                           return clone(aten.relu(c), contiguous)
    """
    laid: set[Node] = set()
    inferred = graph.kind == "inference" and graph.static
    if inferred and config.cpp.weight_prepack and target.panels and has_onednn():
        known = of_parameters(graph)
        laid = {n for n in graph.nodes if has_parameters(n, known)}
    wanted = [n for n in graph.nodes if _gains(n, laid, graph.kind)]
    images = [n.args[0].meta["val"] for n in wanted]
    if not any(image.shape[1] >= FEWEST_CHANNELS or image.dim() == 5 for image in images):
        return 0
    mover = _Mover(graph, laid)
    for node in graph.nodes:
        mover.visit(node, node in wanted)
    return len(wanted)


def _gains(node: Node, laid: set[Node], kind: str) -> bool:
    if node.target is not aten.convolution.default:
        return False
    image, weight = (node.args[k].meta["val"] for k in (0, 1))  # type: ignore[union-attr]
    # What a forward graph keeps for the backward one would have to be moved back at once.
    halves = image.dtype in HALVES and image.device.type != "cpu" and kind == "inference"
    halves = halves and image.dim() == 4 and not node.args[6]
    is_plain = image.dim() in ORDERS and (image.dtype is torch.float32 or halves)
    if image.dim() == 5:  # ATen gives volumes in the usual order, oneDNN and Litz as they come
        is_plain = is_plain and node in laid
    return bool(is_plain and all(isinstance(s, int) for s in (*image.shape, *weight.shape)))


def has_parameters(node: Node, known: dict[Node, None]) -> bool:
    """Whether a node convolves with parameters, in float32: its weights can be packed once."""
    if node.target is not aten.convolution.default:
        return False
    image, weight, bias, *_ = node.args
    plain = node.meta["val"].dim() in ORDERS and node.meta["val"].dtype is torch.float32
    return plain and weight in known and (bias is None or bias in known) and image not in known


class _Mover:
    """Walks the graph in order. `first` is the layout that eager gives each value, by node; what
    is `laid` will be convolved by who keeps the order of the image."""

    def __init__(self, graph: Graph, laid: set[Node]) -> None:
        self.graph, self.nodes, self.laid = graph, graph.module.graph, laid
        self.first: dict[Node, Any] = {}
        self.moved: dict[Node, Node] = {}  # a node -> the same in channels last
        self.back: dict[Node, Node] = {}  # a node -> the same where eager has it

    def visit(self, node: Node, is_wanted: bool) -> None:
        if node.op == "output":
            for operand in node.all_input_nodes:
                node.replace_input_with(operand, self._as_eager(operand, node))
            return
        if node.op != "call_function":
            return
        changed = [n for n in node.all_input_nodes if n in self.first]
        if is_wanted:
            fold_strides(self.nodes, node)
            for k in (0, 1):
                operand = node.args[k]
                assert isinstance(operand, Node)
                node.update_arg(k, self._channels_last(operand, node))
        elif changed and not _follows(node):
            for operand in changed:
                node.replace_input_with(operand, self._as_eager(operand, node))
        if is_wanted or (changed and _follows(node)):
            self._propagate(node)

    def _propagate(self, node: Node) -> None:
        """The value again, from operands where they now lie."""
        before = node.meta["val"]
        node.meta["val"] = _value(node)
        if node in self.laid:
            order = ORDERS[before.dim()]
            node.meta["val"] = node.meta["val"].contiguous(memory_format=order)
        old, new = pytree.tree_leaves(before), pytree.tree_leaves(node.meta["val"])
        if any(a.stride() != b.stride() for a, b in zip(old, new, strict=True)):
            self.first[node] = before

    def _channels_last(self, operand: Node, user: Node) -> Node:
        value = operand.meta["val"]
        order = ORDERS[value.dim()]
        if value.is_contiguous(memory_format=order):
            return operand
        if operand not in self.moved:
            self.moved[operand] = self._clone(operand, user, order)
        return self.moved[operand]

    def _as_eager(self, operand: Node, user: Node) -> Node:
        if operand not in self.first:
            return operand
        if operand not in self.back:
            expected = self.first[operand]
            if isinstance(expected, torch.Tensor) and expected.is_contiguous():
                self.back[operand] = self._clone(operand, user, torch.contiguous_format)
            elif isinstance(expected, torch.Tensor):
                self.back[operand] = self._restrided(operand, user, expected)
            else:
                return operand  # a tuple: its items are moved, each for itself
        return self.back[operand]

    def _clone(self, operand: Node, user: Node, order: torch.memory_format) -> Node:
        with self.nodes.inserting_before(user):
            made = self.nodes.call_function(
                aten.clone.default, (operand,), {"memory_format": order}
            )
        return self._filled(made, operand)

    def _restrided(self, operand: Node, user: Node, expected: torch.Tensor) -> Node:
        """Dimensions in the order of eager's strides are contiguous; a permutation shows them."""
        order = sorted(range(expected.dim()), key=lambda d: -expected.stride(d))
        with self.nodes.inserting_before(user):
            turned = self.nodes.call_function(aten.permute.default, (operand, order))
            self._filled(turned, operand)
            format = {"memory_format": torch.contiguous_format}
            made = self.nodes.call_function(aten.clone.default, (turned,), format)
            self._filled(made, operand)
            undone = sorted(range(expected.dim()), key=lambda d: order[d])
            shown = self.nodes.call_function(aten.permute.default, (made, undone))
        return self._filled(shown, operand)

    def _filled(self, made: Node, operand: Node) -> Node:
        made.meta = {k: v for k, v in operand.meta.items() if k != "val"}
        made.meta["val"] = _value(made)
        return made


def _follows(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True  # an item of a tuple
    if target in _KEEPING:
        return node.kwargs.get("memory_format") in (None, torch.preserve_format)
    pointwise = torch.Tag.pointwise in target.tags
    return (pointwise and not target._schema.is_mutable) or target.overloadpacket in _FOLLOWS


def _value(node: Node) -> Any:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return node.target(*args, **kwargs)  # type: ignore[operator]
