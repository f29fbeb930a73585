"""Conv-BN folding: a scale and a shift after a layer go into its weights and bias.

In: `Graph`. Out: the number of ops folded. A per-channel op after a convolution or a linear layer
whose other operand is made of parameters alone (a batch norm at inference, a layer scale) costs
nothing once the weights contain it. The weights are recomputed only when a parameter changes, as
prepacked weights are, so this needs no freezing. Not every number may be folded into a sum:
`litz.is_foldable` checks the parameters whenever they change, and `runtime/prepacked.py` obeys it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from litz.config import Config
from litz.ir.fold_guard_op import RANGE
from litz.ir.graph import Graph
from litz.passes.aliasing import Aliases, viewed_operand
from litz.passes.constants import evaluated
from litz.passes.layout import is_same_tensor_layout
from litz.passes.purity import is_repeatable
from litz.target import Target

aten = torch.ops.aten

_AFFINE = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_ROWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_FOLDED_TYPES = (torch.float32, torch.float64)


def fold_affine_into_weights(graph: Graph, _: Target, config: Config) -> int:
    """Folds per-channel scales and shifts after a layer into its weights and bias.

    c = aten.convolution(x, w, b, ...)          s = i * g;  t = h - m * s
    y = (c - m) * i * g + h               ->    y = aten.convolution(x, w * s, b * s + t, ...)
    """
    if graph.kind != "inference" or not graph.static or not config.cpp.weight_prepack:
        return 0
    known = _persistent_nodes(graph)
    folded = 0
    for node in graph.nodes:
        layer = _layer(node, known)
        chain = _chain(layer, known) if layer is not None else []
        if layer is not None and chain and _Folding(graph, layer).fold(chain, known):
            folded += len(chain)
    return folded


def _persistent_nodes(graph: Graph) -> dict[Node, None]:
    """Nodes that depend on parameters alone, without those that the caller gets and their users."""
    aliases = Aliases(graph.module.graph)
    found: dict[Node, None] = {}
    for node in parameter_derived_nodes(graph):
        fresh = node.op != "call_function" or not aliases.escapes(node)
        if fresh and all(n in found for n in node.all_input_nodes):
            found[node] = None
    return found


def parameter_derived_nodes(graph: Graph) -> dict[Node, None]:
    """The nodes that depend on parameters and constants alone, in order."""
    found: dict[Node, None] = {}
    for node in graph.nodes:
        given = node.op == "placeholder" and node.name in graph.static
        made = node.op == "call_function" and is_repeatable(node)
        known = all(n in found for n in node.all_input_nodes)
        if given or node.op == "get_attr" or (made and known):
            found[node] = None
    return found


@dataclass(frozen=True)
class _Layer:
    """A node whose result has channels: one for each row of a convolution's weight, or each column
    of a matmul's right operand."""

    node: Node
    weight: Node
    bias: Any
    channel: int  # the dimension of the result

    @property
    def channels(self) -> int:
        return int(self.node.meta["val"].shape[self.channel])

    @property
    def factor_shape(self) -> list[int]:
        """The shape of one factor per channel, broadcast against the weight."""
        dims = self.weight.meta["val"].dim()
        return [-1] if self.channel == -1 else [-1, *[1] * (dims - 1)]


def _layer(node: Node, known: dict[Node, None]) -> _Layer | None:
    """A plain convolution or matmul whose weight and bias are parameters and whose other operand is
    not: a result made of parameters alone is kept as a whole."""
    bias: Any = None
    if node in known:
        return None
    if node.target is aten.convolution.default:
        _, weight, bias, _, _, _, transposed, _, _ = node.args
        plain, channel = not transposed, 1
    elif node.target is aten.mm.default:
        weight, plain, channel = node.args[1], _is_parameter(node.args[1]), -1
    elif node.target is aten.addmm.default:
        bias, _, weight = node.args
        by_column = isinstance(bias, Node) and bias.meta["val"].shape == node.meta["val"].shape[-1:]
        plain, channel = by_column and _is_parameter(weight) and not node.kwargs, -1
    else:
        return None
    parameters = weight in known and (bias is None or bias in known)
    if not parameters or not plain or node.meta["val"].dtype not in _FOLDED_TYPES:
        return None
    return _Layer(node, weight, bias, channel)  # type: ignore[arg-type]


def _is_parameter(weight: Any) -> bool:
    """A parameter or a view of one: a computed weight (dequantized, say) has its own scale."""
    while isinstance(weight, Node) and weight.op == "call_function":
        weight = viewed_operand(weight)
    return isinstance(weight, Node)


@dataclass(frozen=True)
class _Link:
    """One op of the chain: `node` is (the value before it) op `other`, or the other way round."""

    node: Node
    other: Any
    first: bool  # the chain's value is the first operand


def _chain(layer: _Layer, known: dict[Node, None]) -> list[_Link]:
    """The per-channel ops after a layer, as long as each value has a single reader."""
    links: list[_Link] = []
    node = layer.node
    while len(node.users) == 1:
        (user,) = node.users
        if layer.channel == -1 and _keeps_columns(user, layer.channels):
            node = user
            continue
        link = _link(user, node)
        if link is None or not _by_channel(link.other, layer, user, known):
            break
        links.append(link)
        node = user
    return links


def _keeps_columns(node: Node, columns: int) -> bool:
    """Whether a node only reshapes the rows of a matrix."""
    return node.target in _ROWS and node.meta["val"].shape[-1:] == (columns,)


def _link(user: Node, value: Node) -> _Link | None:
    if user.target not in _AFFINE or user.kwargs or len(user.args) != 2:
        return None
    first, second = user.args
    # The layer's result replaces the op, so both need the same shape, dtype and strides.
    if first is second or not is_same_tensor_layout(user.meta["val"], value.meta["val"]):
        return None
    other = second if first is value else first
    if not _is_carried(user, other, first is value):
        return None
    return _Link(user, other, first is value)


def _is_carried(user: Node, other: Any, first: bool) -> bool:
    """Whether weights can absorb an op. A parameter is checked later, a number here. A divisor must
    be a number, since its inverse is rounded."""
    if isinstance(other, Node):
        return user.target is not aten.div.Tensor
    if not isinstance(other, int | float):
        return False
    if user.target in (aten.add.Tensor, aten.sub.Tensor):
        return bool(abs(other) <= torch.finfo(user.meta["val"].dtype).max)
    scales = first or user.target is aten.mul.Tensor  # other / c does not scale c
    return scales and 2.0**-RANGE <= abs(other) <= 2.0**RANGE


def _by_channel(other: Any, layer: _Layer, user: Node, known: dict[Node, None]) -> bool:
    """Whether an operand is one number, or one per channel in the dtype of the result."""
    if not isinstance(other, Node):
        return True
    value = other.meta.get("val")
    if other not in known or not isinstance(value, torch.Tensor):
        return False
    result = user.meta["val"]
    shape, ones = (1,) * (result.dim() - value.dim()) + tuple(value.shape), [1] * result.dim()
    by_channel = list(ones)
    by_channel[layer.channel] = layer.channels
    return list(shape) in (by_channel, ones) and value.dtype == result.dtype


@dataclass
class _Folding:
    """y = c * scale + shift, accumulated along a chain; None stands for 1 and 0."""

    graph: Graph
    layer: _Layer
    scale: Any = None
    shift: Any = None
    scales: list[Any] = field(default_factory=list)  # the accumulated product after each factor
    shifts: list[Any] = field(default_factory=list)  # each as it is, before they are added up
    made: list[Node] = field(default_factory=list)

    @property
    def node(self) -> Node:
        return self.layer.node

    def fold(self, chain: list[_Link], known: dict[Node, None]) -> bool:
        """Fold the chain; False if its numbers are constants and do not allow it."""
        nodes = self.graph.module.graph
        move_up(known, self.node)
        with nodes.inserting_before(self.node):
            for link in chain:
                self._add(link)
                if self.scale is not None:
                    self.scales.append(self.scale)
            weight, bias = self._weights()
            allowed = self._look(bias, chain[-1].node.target is aten.add.Tensor)
        if not allowed:
            for made in reversed(self.made):
                nodes.erase_node(made)
            return False
        self._replace(weight, bias)
        known.update(dict.fromkeys(self.made))
        for link in reversed(chain):
            before = link.node.args[0 if link.first else 1]
            link.node.replace_all_uses_with(before)  # type: ignore[arg-type]
            nodes.erase_node(link.node)
        return True

    def _look(self, bias: Any, ends_in_sum: bool) -> bool:
        """Whether the numbers allow it: checked now if constant, else at each parameter change."""
        given = [self.layer.bias, *self.shifts] if self.layer.bias is not None else self.shifts
        shifts = [self._vector(each) for each in given]
        scales = [self._vector(each) for each in self.scales]
        operands = (self.layer.weight, scales, shifts, bias, ends_in_sum)
        asked = self._op(torch.ops.litz.is_foldable.default, *operands)
        self.made.remove(asked)  # a check, not a value that other nodes use
        with unset_fake_temporarily():
            answer = evaluated(self.graph, asked, {})
        if answer is not None:
            self.graph.module.graph.erase_node(asked)
        return answer is None or bool(answer)

    def _vector(self, value: Any) -> Node:
        if isinstance(value, Node):
            return value
        like = self.node.meta["val"]
        return self._op(aten.full.default, [1], value, dtype=like.dtype, device=like.device)

    def _add(self, link: _Link) -> None:
        target, other = link.node.target, self._flat(link.other)
        if target in (aten.add.Tensor, aten.sub.Tensor):
            self.shifts.append(other)
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
        """One number, or a vector of one number per channel."""
        if not isinstance(other, Node):
            return float(other)
        return self._op(aten.reshape.default, other, [-1])

    def _call(self, target: Any, x: Any, y: Any) -> Any:
        if isinstance(x, Node) or isinstance(y, Node):
            return self._op(target, self._vector(x), y)
        return float(target(torch.tensor(x, dtype=torch.float64, device="cpu"), y))

    def _op(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        made = self.graph.module.graph.call_function(target, args, kwargs)
        plain = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
        made.meta = {k: v for k, v in self.node.meta.items() if k != "val"}
        mode = self.node.meta["val"].fake_mode
        with mode:
            made.meta["val"] = target(*plain, **kwargs)
        self.made.append(made)
        return made

    def _weights(self) -> tuple[Any, Any]:
        """The weight and the bias that contain the chain."""
        weight, bias, channels = self.layer.weight, self.layer.bias, self.layer.channels
        scale, shift = self.scale, self.shift
        if scale is not None:
            factor = scale
            if isinstance(scale, Node):
                factor = self._op(aten.reshape.default, scale, self.layer.factor_shape)
            weight = self._call(aten.mul.Tensor, weight, factor)
            bias = None if bias is None else self._call(aten.mul.Tensor, bias, scale)
        if shift is not None:
            bias = shift if bias is None else self._call(aten.add.Tensor, bias, shift)
        bias = None if bias is None else self._vector(bias)
        if isinstance(bias, Node) and bias.meta["val"].shape != (channels,):
            bias = self._op(aten.expand.default, bias, [channels])
        return weight, bias

    def _replace(self, weight: Any, bias: Any) -> None:
        """Set them on the layer; a matmul without a bias may become an addmm."""
        if self.node.target is aten.convolution.default:
            self.node.update_arg(1, weight)
            self.node.update_arg(2, bias)
            return
        left = self.node.args[0 if self.node.target is aten.mm.default else 1]
        if bias is None:
            self.node.args = (left, weight)
        else:
            self.node.target, self.node.args = aten.addmm.default, (bias, left, weight)


def move_up(known: dict[Node, None], before: Node) -> None:
    """Move nodes made of parameters before the layer that will use them."""
    for node in known:
        if node.op != "placeholder" and node > before:
            before.prepend(node)
