"""Prepacked convolutions: oneDNN gets packed weights, and its post-ops do the add and activation.

In: `Graph`. Out: the number of convolutions packed. At every call, torch's convolution reorders its
weight into oneDNN's format: a third of the time for a small image. Here the reorder is a step of
its own, which depends on parameters alone and is kept until one changes. The same call adds a
residual and applies an activation while the result is in registers. Convolutions for which Litz has
its own kernels (`litz/ir/convolution.py`) stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from litz.config import Config
from litz.ir.convolution import convolution_of, library_reason
from litz.ir.graph import Graph
from litz.passes.channels_last import MEMORY_FORMATS, has_parameters
from litz.passes.fold_affine_into_weights import parameter_derived_nodes
from litz.passes.layout import is_static
from litz.target import Target

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn

X = object()  # in a pattern: the result of the convolution
Activation = tuple[str, str]  # oneDNN's name, and the variant of its formula

# Activations in the form that the graph has them. oneDNN propagates NaN in all of them but relu. In
# a clamped activation it turns NaN into a bound, so those are not listed.
ACTIVATIONS: list[tuple[Activation, Any]] = [
    # x * 0.5 * (1 + erf(x / sqrt(2)))
    (("gelu", "none"), (aten.mul.Tensor, (aten.mul.Tensor, X, 0.5), (
        aten.add.Tensor, (aten.erf.default, (aten.mul.Tensor, X, 0.7071067811865476)), 1))),
    # x * min(max(x + 3, 0), 6) / 6
    (("hardswish", ""), (aten.div.Tensor, (aten.mul.Tensor, X, (
        aten.clamp.default, (aten.clamp.default, (aten.add.Tensor, X, 3), 0), None, 6)), 6)),
    # x * sigmoid(x)
    (("swish", ""), (aten.mul.Tensor, X, (aten.sigmoid.default, X))),
    (("sigmoid", ""), (aten.sigmoid.default, X)),
    (("tanh", ""), (aten.tanh.default, X)),
    (("relu", ""), (aten.relu.default, X)),
]  # fmt: skip
DEEPEST = 5  # ops along the longest activation


def prepack_convolutions(graph: Graph, target: Target, config: Config) -> int:
    """Prepacks weights of convolutions, and adds and activates in the same call.

    c = aten.convolution(x, w, b, ...)        p = mkldnn._reorder_convolution_weight(w, ...)
    return aten.relu(c + y)             ->    return mkldnn._convolution_pointwise.binary(
                                                  x, y, p, b, ..., "add", 1.0, "relu", [], "")
    """
    if graph.kind != "inference" or not graph.static or not torch.backends.mkldnn.is_available():
        return 0
    known = parameter_derived_nodes(graph)
    wanted = [
        n for n in graph.nodes if _can_pack(n, known) and not _has_own_kernel(n, target, config)
    ]
    packed: dict[tuple[Any, ...], Node] = {}
    for node in wanted:
        _rewrite(graph, node, packed)
    return len(wanted)


def _can_pack(node: Node, known: dict[Node, None]) -> bool:
    if not has_parameters(node, known):
        return False
    value = node.meta["val"]
    # The packed format depends on the size of the image, which must be a number.
    if not is_static(value) or not is_static(node.args[0].meta["val"]):  # type: ignore[union-attr]
        return False
    return bool(value.is_contiguous(memory_format=MEMORY_FORMATS[value.dim()]))


def _has_own_kernel(node: Node, target: Target, config: Config) -> bool:
    image, weight, _, *where = node.args
    shapes = (image.meta["val"].shape, weight.meta["val"].shape)  # type: ignore[union-attr]
    conv = convolution_of(*shapes, node.meta["val"].shape, *where)
    return not library_reason(conv, target.gemm_lanes, config.conv_1x1_as_mm)


def _rewrite(graph: Graph, node: Node, packed: dict[tuple[Any, ...], Node]) -> None:
    image, weight, bias, stride, padding, dilation, transposed, outside, groups = node.args
    assert isinstance(image, Node) and isinstance(weight, Node)
    where = (padding, *([outside] if transposed else []), stride, dilation, groups)
    pack = mkldnn._reorder_convolution_weight
    call = mkldnn._convolution_pointwise
    if transposed:
        pack = mkldnn._reorder_convolution_transpose_weight
        call = mkldnn._convolution_transpose_pointwise
    key = (weight, str(where), transposed, tuple(image.meta["val"].shape))
    nodes = graph.module.graph
    if key not in packed:
        with nodes.inserting_before(node):
            packed[key] = nodes.call_function(
                pack.default, (_unmoved(weight), *where, list(image.meta["val"].shape))
            )
        packed[key].meta = {**node.meta, "val": weight.meta["val"]}
    given = (packed[key], bias, *where)
    other, added = (None, node) if transposed else _addition(node)
    line = _line(node)
    if other is None:
        (name, formula), done = _activation(line or node, ACTIVATIONS) or (("none", ""), [node])
        made = (call.default, (image, *given, name, [], formula))
        line = line if line in done else None
    else:
        found = _activation(added, ACTIVATIONS[-1:])  # after an addition, only relu
        done = found[1] if found else [added]
        made = (call.binary, (image, other, *given, "add", 1.0, "relu" if found else None, [], ""))
    with nodes.inserting_before(done[0]):
        result = nodes.call_function(*made)
        result.meta = {**done[0].meta, "val": node.meta["val"]}
        if line is not None:
            result = nodes.call_function(line.target, (result, *line.args[1:]))  # type: ignore
            result.meta = dict(done[0].meta)
    done[0].replace_all_uses_with(result)
    for gone in dict.fromkeys((*done, node)):
        nodes.erase_node(gone)


def _line(node: Node) -> Node | None:
    """The `squeeze` of an image of height one, if it is the only reader."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target is aten.squeeze.dim else None


def _addition(node: Node) -> tuple[Node | None, Node]:
    """The operand that is added to a convolution, and the node that adds it."""
    users = list(node.users)
    if len(users) == 1 and users[0].target is aten.add.Tensor and not users[0].kwargs:
        operands = [a for a in users[0].args if a is not node]
        if len(operands) == 1 and isinstance(operands[0], Node) and _like(operands[0], node):
            return operands[0], users[0]
    return None, node


def _like(operand: Node, node: Node) -> bool:
    """Whether an operand has the result's layout, so that oneDNN can add it in place."""
    mine, value = operand.meta.get("val"), node.meta["val"]
    if not isinstance(mine, torch.Tensor):
        return False
    return (mine.shape, mine.stride(), mine.dtype) == (value.shape, value.stride(), value.dtype)


# -- activations -------------------------------------------------------------------------------


def _activation(
    node: Node, table: list[tuple[Activation, Any]]
) -> tuple[Activation, list[Node]] | None:
    """The activation after a node, and its nodes, the last first, if nothing else reads any of
    them."""
    roots = list(_below(node, DEEPEST))
    for name, pattern in table:
        for root in roots:
            matched = _matched(root, pattern, node)
            if matched is not None and _only_inside(node, matched):
                return name, [*sorted(matched, reverse=True), node]
    return None


def _below(node: Node, depth: int) -> Iterator[Node]:
    for user in node.users if depth else ():
        yield user
        yield from _below(user, depth - 1)


def _matched(root: Any, pattern: Any, x: Node) -> set[Node] | None:
    """The nodes of an expression that a pattern describes."""
    if pattern is X:
        return set() if root is x else None
    if not isinstance(pattern, tuple):
        return set() if not isinstance(root, Node) and root == pattern else None
    target, *operands = pattern
    if not isinstance(root, Node) or root.target is not target or root.kwargs:
        return None
    orders = [list(root.args)]
    if target in (aten.mul.Tensor, aten.add.Tensor):
        orders.append(list(reversed(root.args)))
    for args in orders:
        if len(args) == len(operands):
            found = [_matched(a, p, x) for a, p in zip(args, operands, strict=True)]
            if None not in found:
                return {root}.union(*(f for f in found if f is not None))
    return None


def _only_inside(node: Node, matched: set[Node]) -> bool:
    """Whether only the expression itself reads the convolution and its inner nodes."""
    end = max(matched)
    return all(set(n.users) <= matched for n in (node, *(matched - {end})))


def _unmoved(weight: Node) -> Node:
    """A weight before its clone to channels last: packing accepts any layout."""
    is_clone = weight.target is aten.clone.default
    return weight.all_input_nodes[0] if is_clone else weight
