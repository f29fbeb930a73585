"""Channels last: convolutions at inference get the layout that they are fastest in.

In: `Graph`. Out: the number of convolutions changed. A convolution of contiguous images reorders
its operands and its result at every call. Here images are reordered once at the start of the
graph, and weights once for all calls, as everything made of parameters alone. Ops between
convolutions follow: elementwise ops, pools and norms work in any layout. Before an op that depends
on the layout (a view), and before the caller, a value gets eager's strides again. A training step
is laid out before it is cut in two: `channels_last_training` does that with `LayoutPropagator`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node
from torch.utils import _pytree as pytree

from litz.config import Config
from litz.ir.convolution import has_onednn, may_be_packed
from litz.ir.graph import Graph
from litz.passes.aliasing import Aliases, viewed_operand
from litz.passes.fold_affine_into_weights import parameter_derived_nodes
from litz.passes.space_to_depth import HALF_DTYPES, space_to_depth
from litz.target import Target, eager_on

aten = torch.ops.aten

# Besides elementwise ops, ops that compute the same numbers in any layout of their operands.
_LAYOUT_AGNOSTIC = frozenset(
    (
        *(aten.convolution, aten.cat, aten.mean, aten.sum, aten.var_mean, aten.var, aten.amax),
        *(aten.max_pool2d_with_indices, aten.avg_pool2d, aten._adaptive_avg_pool2d),
        *(aten.max_pool3d_with_indices, aten.avg_pool3d, aten._adaptive_avg_pool3d),
        *(aten.upsample_nearest2d, aten.upsample_bilinear2d, aten.upsample_bicubic2d),
        *(aten.upsample_nearest3d, aten.upsample_trilinear3d),
        *(aten.squeeze, aten.unsqueeze),  # of a signal lifted to an image of height one
        *(aten.constant_pad_nd, aten.native_batch_norm, aten.native_group_norm),
        *(aten._native_batch_norm_legit_no_training, aten.convolution_backward),
        *(aten.max_pool2d_with_indices_backward, aten.avg_pool2d_backward),
    )
)
# Likewise, unless called with an explicit memory format: casts and clones.
_LAYOUT_PRESERVING = (aten._to_copy.default, aten.clone.default)
# A convolution of fewer channels (the first of a network) gains nothing alone. A convolution of
# volumes always gains: ATen computes contiguous ones without oneDNN.
MIN_CHANNELS = 8
MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of dimensions


def channels_last(graph: Graph, target: Target, config: Config) -> int:
    """Moves convolutions, and the ops between them, to channels last.

    c = aten.convolution(x, w, ...)   ->   x' = clone(x, channels_last); w' likewise
    return aten.relu(c)                    c = aten.convolution(x', w', ...)
                                           return clone(aten.relu(c), contiguous)
    """
    if graph.kind != "inference":
        return 0
    laid: set[Node] = set()
    if graph.static and config.cpp.weight_prepack and target.panels and has_onednn():
        known = parameter_derived_nodes(graph)
        laid = {n for n in graph.nodes if has_parameters(n, known)}
    wanted = {n: (0, 1) for n in graph.nodes if _gains(n, laid)}
    if not has_channels(n.args[0] for n in wanted):
        return 0
    mover = LayoutPropagator(graph, laid)
    for node in graph.nodes:
        if node in wanted:
            space_to_depth(graph.module.graph, node)
        mover.visit(node, wanted.get(node, ()))
    return len(wanted)


def has_channels(images: Iterable[Any]) -> bool:
    """Whether any image has enough channels."""
    values = [image.meta["val"] for image in images]
    return any(v.shape[1] >= MIN_CHANNELS or v.dim() == 5 for v in values)


def _gains(node: Node, laid: set[Node]) -> bool:
    if node.target is not aten.convolution.default:
        return False
    image, weight = (node.args[k].meta["val"] for k in (0, 1))  # type: ignore[union-attr]
    halves = image.dtype in HALF_DTYPES and eager_on(image.device).channels_last_half_conv
    halves = halves and image.dim() == 4 and not node.args[6]
    is_plain = image.dim() in MEMORY_FORMATS and (image.dtype is torch.float32 or halves)
    if image.dim() == 5:  # ATen returns contiguous volumes; oneDNN and Litz keep the image's layout
        is_plain = is_plain and node in laid
    return bool(is_plain and all(isinstance(s, int) for s in (*image.shape, *weight.shape)))


def has_parameters(node: Node, known: dict[Node, None]) -> bool:
    """Whether a node convolves float32 with parameters: its weights can be prepacked."""
    if node.target is not aten.convolution.default:
        return False
    image, weight, bias, *where = node.args
    plain = node.meta["val"].dim() in MEMORY_FORMATS and node.meta["val"].dtype is torch.float32
    plain = plain and may_be_packed(*where)
    return plain and weight in known and (bias is None or bias in known) and image not in known


class LayoutPropagator:
    """Walks the graph in order. `first` is the value that eager gives a node whose layout changed.
    `laid` are the convolutions whose kernel keeps the layout of the image."""

    def __init__(self, graph: Graph, laid: set[Node]) -> None:
        self.graph, self.nodes, self.laid = graph, graph.module.graph, laid
        self.aliases = Aliases(self.nodes)
        self.first: dict[Node, Any] = {}
        self.moved: dict[Node, Node] = {}  # a node -> its copy in channels last
        self.back: dict[Node, Node] = {}  # a node -> its copy with eager's strides

    def visit(self, node: Node, wanted: Sequence[int]) -> None:
        """Update a node; its operands at the positions `wanted` become channels last."""
        if node.op == "output":
            for operand in node.all_input_nodes:
                node.replace_input_with(operand, self._as_eager(operand, node))
            return
        if node.op != "call_function":
            return
        changed = [n for n in node.all_input_nodes if n in self.first]
        if not wanted and changed and not _follows(node):
            for operand in changed:
                node.replace_input_with(operand, self._as_eager(operand, node))
            return
        if changed and _is_elementwise(node):
            wanted = self._match_layouts(node)
        for k in wanted:
            operand = node.args[k]
            assert isinstance(operand, Node)
            node.update_arg(k, self._channels_last(operand, node))
        if (wanted or changed) and "val" in node.meta:  # a gradient nobody asked for has no value
            self._propagate(node)

    def _match_layouts(self, node: Node) -> Sequence[int]:
        """Where images meet and some are channels last, the positions of all of them."""
        shape = _shape(node)
        nodes = {k: n for k, n in enumerate(node.args) if isinstance(n, Node)}
        images = {k: n for k, n in nodes.items() if _shape(n) == shape}
        order = MEMORY_FORMATS.get(len(shape or ()))
        moved = [n for n in images.values() if n in self.first]
        if not any(order and n.meta["val"].is_contiguous(memory_format=order) for n in moved):
            return ()
        return tuple(images)

    def _propagate(self, node: Node) -> None:
        """Recompute the fake value from the operands' new layouts."""
        before = node.meta["val"]
        node.meta["val"] = _value(node)
        if node in self.laid:
            order = MEMORY_FORMATS[before.dim()]
            node.meta["val"] = node.meta["val"].contiguous(memory_format=order)
        pairs = zip(pytree.tree_leaves(before), pytree.tree_leaves(node.meta["val"]), strict=True)
        differs = any(a is not None and a.stride() != b.stride() for a, b in pairs)
        if differs or self._moved_base(node):
            self.first[node] = before

    def _moved_base(self, node: Node) -> Node | None:
        """The moved tensor behind a view that leaves the graph. The caller may get both, or two
        views of it, and they must still share memory: it is moved back once, for all."""
        if node.target is operator.getitem or not self.aliases.escapes(node):
            return None
        base = viewed_operand(node)
        return base if base in self.first else None

    def _channels_last(self, operand: Node, user: Node) -> Node:
        value = operand.meta["val"]
        order = MEMORY_FORMATS[value.dim()]
        if value.is_contiguous(memory_format=order):
            return operand
        if operand not in self.moved:
            self.moved[operand] = self._clone(operand, user, order)
        return self.moved[operand]

    def _as_eager(self, operand: Node, user: Node) -> Node:
        if operand not in self.first:
            return operand
        if operand not in self.back:
            expected, base = self.first[operand], self._moved_base(operand)
            if base is not None:
                self.back[operand] = self._viewed_again(operand, base, user)
            elif isinstance(expected, torch.Tensor) and expected.is_contiguous():
                self.back[operand] = self._clone(operand, user, torch.contiguous_format)
            elif isinstance(expected, torch.Tensor):
                self.back[operand] = self._restrided(operand, user, expected)
            else:
                return operand  # a tuple: its items are moved one by one
        return self._exactly(self.back[operand], user, self.first[operand])

    def _viewed_again(self, view: Node, base: Node, user: Node) -> Node:
        """The same view of the base with eager's strides."""
        source = self._as_eager(base, user)
        with self.nodes.inserting_before(user):
            made = self.nodes.call_function(view.target, view.args, view.kwargs)  # type: ignore
        made.replace_input_with(base, source)
        return self._filled(made, view)

    def _exactly(self, moved: Node, user: Node, expected: torch.Tensor) -> Node:
        """For the caller, eager's strides even along dimensions of size one."""
        if user.op != "output" or moved.meta["val"].stride() == expected.stride():
            return moved
        layout = (list(expected.shape), list(expected.stride()))
        with self.nodes.inserting_before(user):
            shown = self.nodes.call_function(aten.as_strided.default, (moved, *layout))
        return self._filled(shown, moved)

    def _clone(self, operand: Node, user: Node, order: torch.memory_format) -> Node:
        with self.nodes.inserting_before(user):
            made = self.nodes.call_function(
                aten.clone.default, (operand,), {"memory_format": order}
            )
        return self._filled(made, operand)

    def _restrided(self, operand: Node, user: Node, expected: torch.Tensor) -> Node:
        """A contiguous copy in the order of eager's strides, permuted back."""
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


def _shape(node: Node) -> torch.Size | None:
    """The shape of a tensor; None for a number."""
    value = node.meta.get("val")
    return value.shape if isinstance(value, torch.Tensor) else None


def _follows(node: Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is operator.getitem  # a higher-order op depends on the layout
    if target in _LAYOUT_PRESERVING:
        return node.kwargs.get("memory_format") in (None, torch.preserve_format)
    return _is_elementwise(node) or target.overloadpacket in _LAYOUT_AGNOSTIC


def _is_elementwise(node: Node) -> bool:
    target = node.target
    known = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
    return known and not target._schema.is_mutable  # type: ignore[union-attr]


def _value(node: Node) -> Any:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    return node.target(*args, **kwargs)  # type: ignore[operator]
