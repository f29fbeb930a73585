"""Factors of channels: a scale and a shift behind a convolution go into its weights.

In: `Graph`. Out: the number of ops folded. What follows a convolution channel by channel, made of
parameters alone (a batch norm at inference, a layer's scale), costs nothing if the weights carry
it. They are made anew only when a parameter changes, as packed weights are; so nothing is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from litz.ir.graph import Graph
from litz.passes.purity import is_repeatable

aten = torch.ops.aten

_AFFINE = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_FOLDED_TYPES = (torch.float32, torch.float64)


def fold_channel_factors(graph: Graph) -> int:
    """Puts what scales and shifts the channels of a convolution into its weights and bias.

    c = aten.convolution(x, w, b, ...)          s = i * g;  t = h - m * s
    y = (c - m) * i * g + h               ->    y = aten.convolution(x, w * s, b * s + t, ...)
    """
    if graph.kind != "inference" or not graph.static:
        return 0
    known = of_parameters(graph)
    folded = 0
    for node in graph.nodes:
        if node.target is aten.convolution.default and _is_foldable(node, known):
            chain = _chain(node, known)
            if chain:
                _Folding(graph, node).fold(chain, known)
                folded += len(chain)
    return folded


def of_parameters(graph: Graph) -> dict[Node, None]:
    """The nodes that depend on parameters and constants alone, in order."""
    found: dict[Node, None] = {}
    for node in graph.nodes:
        given = node.op == "placeholder" and node.name in graph.static
        made = node.op == "call_function" and is_repeatable(node)
        known = all(n in found for n in node.all_input_nodes)
        if given or node.op == "get_attr" or (made and known):
            found[node] = None
    return found


def _is_foldable(node: Node, known: dict[Node, None]) -> bool:
    """A plain convolution whose weight and bias are parameters."""
    _, weight, bias, _, _, _, transposed, _, _ = node.args
    dtype = node.meta["val"].dtype
    parameters = weight in known and (bias is None or bias in known)
    return parameters and not transposed and dtype in _FOLDED_TYPES


@dataclass(frozen=True)
class _Link:
    """One op of the chain: `node` is (what came before) op `other`, or the other way round."""

    node: Node
    other: Any
    first: bool  # the chain's value is the first operand


def _chain(node: Node, known: dict[Node, None]) -> list[_Link]:
    """The ops behind a convolution that work channel by channel, as far as nothing else looks."""
    links: list[_Link] = []
    channels = node.meta["val"].shape[1]
    while len(node.users) == 1:
        (user,) = node.users
        link = _link(user, node)
        if link is None or not _by_channel(link.other, channels, user, known):
            break
        links.append(link)
        node = user
    return links


def _link(user: Node, value: Node) -> _Link | None:
    if user.target not in _AFFINE or user.kwargs or len(user.args) != 2:
        return None
    first, second = user.args
    if first is second or user.meta["val"].dtype != value.meta["val"].dtype:
        return None
    if first is value:
        return _Link(user, second, True)
    reciprocal = user.target is aten.div.Tensor
    return None if reciprocal else _Link(user, first, False)


def _by_channel(other: Any, channels: int, user: Node, known: dict[Node, None]) -> bool:
    """Whether an operand is a number, or one for each channel, of the type of the result."""
    if not isinstance(other, Node):
        return isinstance(other, int | float)
    value = other.meta.get("val")
    if other not in known or not isinstance(value, torch.Tensor):
        return False
    result = user.meta["val"]
    shape, ones = (1,) * (result.dim() - value.dim()) + tuple(value.shape), [1] * result.dim()
    by_channel = [1, channels, *ones[2:]]
    return list(shape) in (by_channel, ones) and value.dtype == result.dtype


@dataclass
class _Folding:
    """y = c * scale + shift, gathered along a chain; None is 1 and 0."""

    graph: Graph
    node: Node
    scale: Any = None
    shift: Any = None
    made: list[Node] = field(default_factory=list)

    def fold(self, chain: list[_Link], known: dict[Node, None]) -> None:
        nodes = self.graph.module.graph
        move_up(self.graph, known, self.node)
        with nodes.inserting_before(self.node):
            for link in chain:
                self._add(link)
            self._into_weights()
        known.update(dict.fromkeys(self.made))
        for link in reversed(chain):
            before = link.node.args[0 if link.first else 1]
            link.node.replace_all_uses_with(before)  # type: ignore[arg-type]
            nodes.erase_node(link.node)

    def _add(self, link: _Link) -> None:
        target, other = link.node.target, self._flat(link.other)
        if target in (aten.mul.Tensor, aten.div.Tensor):
            self.scale = other if self.scale is None and target is aten.mul.Tensor else self._call(
                target, 1.0 if self.scale is None else self.scale, other
            )  # fmt: skip
            if self.shift is not None:
                self.shift = self._call(target, self.shift, other)
        elif target is aten.add.Tensor:
            self.shift = other if self.shift is None else self._call(target, self.shift, other)
        elif link.first:  # c - other
            start = 0.0 if self.shift is None else self.shift
            self.shift = self._call(target, start, other)
        else:  # other - c
            self.scale = self._call(aten.mul.Tensor, -1.0 if self.scale is None else self.scale,
                                    1.0 if self.scale is None else -1.0)  # fmt: skip
            self.shift = other if self.shift is None else self._call(target, other, self.shift)

    def _flat(self, other: Any) -> Any:
        """One number, or a vector of one for each channel."""
        if not isinstance(other, Node):
            return float(other)
        return self._op(aten.reshape.default, other, [-1])

    def _call(self, target: Any, x: Any, y: Any) -> Any:
        if isinstance(x, Node) or isinstance(y, Node):
            if not isinstance(x, Node):
                x = self._op(aten.full.default, [1], x, dtype=self.node.meta["val"].dtype)
            return self._op(target, x, y)
        return float(target(torch.tensor(x, dtype=torch.float64), y))

    def _op(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        made = self.graph.module.graph.call_function(target, args, kwargs)
        plain = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        made.meta = {k: v for k, v in self.node.meta.items() if k != "val"}
        mode = self.node.meta["val"].fake_mode
        with mode:
            made.meta["val"] = target(*plain, **kwargs)
        self.made.append(made)
        return made

    def _into_weights(self) -> None:
        value = self.node.meta["val"]
        channels, rest = value.shape[1], [1] * (value.dim() - 1)
        _, weight, bias, *_ = self.node.args
        scale, shift = self.scale, self.shift
        if scale is not None:
            by_row = scale
            if isinstance(scale, Node):
                by_row = self._op(aten.reshape.default, scale, [-1, *rest])
            self.node.update_arg(1, self._call(aten.mul.Tensor, weight, by_row))
            bias = None if bias is None else self._call(aten.mul.Tensor, bias, scale)
        if shift is not None:
            bias = shift if bias is None else self._call(aten.add.Tensor, bias, shift)
        if bias is not None and not isinstance(bias, Node):
            bias = self._op(aten.full.default, [1], bias, dtype=self.node.meta["val"].dtype)
        if isinstance(bias, Node) and bias.meta["val"].shape != (channels,):
            bias = self._op(aten.expand.default, bias, [channels])
        self.node.update_arg(2, bias)


def move_up(graph: Graph, known: dict[Node, None], before: Node) -> None:
    """What is made of parameters stands before the convolution that is to carry it."""
    for node in known:
        if node.op == "call_function" and node > before:
            before.prepend(node)
