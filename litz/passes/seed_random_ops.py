"""Random ops that are recomputed become pure functions of a seed that is drawn once.

In: `Graph`, joint. Out: the number of ops replaced. The forward saves eight bytes for each, from
which the backward draws the same numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node, Proxy
from torch.fx.proxy import GraphAppendingTracer
from torch.utils.checkpoint import CheckpointPolicy

from litz.ir import between_op as between_op  # registers the op
from litz.ir import random_op as random_op  # registers the op
from litz.ir.graph import Graph
from litz.passes.hooks import fill_meta
from litz.passes.layout import is_row_major
from litz.passes.recompute import is_marked_recompute

aten, prims = torch.ops.aten, torch.ops.prims
# Bits of a number in [0, 1) that its dtype can represent.
FRACTION_BITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24, torch.float64: 53}
Draw = Callable[[int, torch.dtype], Any]  # (stream of the seed, dtype) -> numbers in [0, 1)


def seed_random_ops(graph: Graph) -> int:
    """Draws a seed, and computes from it the numbers of a random op that is recomputed.

    s = aten.randint(-2**63, 2**63 - 1, [])
    d = aten.native_dropout(x, 0.5)   ->  b = litz.random_bits(s, [8])
    y = d[0]                              m = (b & 0xffffff) * 2**-24 < 0.5
                                          y = x * m * 2.0
    """
    found = [n for n in graph.nodes if n.target in SEEDED and _may_be_seeded(n)]
    for node in found:
        _seed(graph.module.graph, node)
    fill_meta(graph)
    return len(found)


def _may_be_seeded(node: Node) -> bool:
    """Whether a checkpoint recomputes it, and the bits can be drawn in the order of the result.
    Other ops stay: a complex number takes two draws, and ATen refuses an invalid probability."""
    value = node.meta["val"]
    like = value[0] if isinstance(value, tuple) else value
    idle = node.target is aten.native_dropout.default and not node.args[2]
    chance = node.args[1] if node.target is aten.bernoulli.p else 0.0
    plain = not like.dtype.is_complex and isinstance(chance, float) and 0 <= chance <= 1
    return is_marked_recompute(node) and is_row_major(like) and plain and not idle


def _seed(graph: torch.fx.Graph, node: Node) -> None:
    before = {id(n) for n in graph.nodes}
    value = node.meta["val"]
    like = value[0] if isinstance(value, tuple) else value
    tracer = GraphAppendingTracer(graph)
    limits: tuple[Any, ...] = (-(2**63), 2**63 - 1, [])
    with graph.inserting_before(node):
        seed = graph.call_function(
            aten.randint.low, limits, {"dtype": torch.int64, "device": like.device}
        )
        draw = partial(_uniform, Proxy(seed, tracer), _shape(node, like, tracer))
        args = torch.fx.node.map_arg(node.args, lambda n: Proxy(n, tracer))
        made = SEEDED[node.target](draw, like, *args)  # type: ignore[index]
    meta = {key: held for key, held in node.meta.items() if key != "val"}
    for new in graph.nodes:
        if id(new) not in before:
            new.meta = dict(meta)
    seed.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    for old, proxy in _results(node, made):
        old.replace_all_uses_with(proxy.node)
        graph.erase_node(old)
    if isinstance(made, tuple):
        graph.erase_node(node)


def _shape(node: Node, like: torch.Tensor, tracer: GraphAppendingTracer) -> list[Any]:
    """The shape of a result: numbers, and symbolic sizes as nodes or read off the operand."""
    given: Any = node.args[0]
    if not isinstance(given, Node):
        return [Proxy(n, tracer) if isinstance(n, Node) else n for n in given]
    x = Proxy(given, tracer)
    return [n if isinstance(n, int) else aten.sym_size.int(x, d) for d, n in enumerate(like.shape)]


def _results(node: Node, made: Any) -> list[tuple[Node, Proxy]]:
    """Pairs of an old node and its replacement: the result, or each item of several."""
    if not isinstance(made, tuple):
        return [(node, made)]
    return [(user, made[user.args[1]]) for user in node.users if user.target is operator.getitem]


def _uniform(seed: Proxy, shape: Any, stream: int, dtype: torch.dtype) -> Any:
    """Numbers in [0, 1), with all the bits their dtype can represent."""
    count = FRACTION_BITS[dtype]
    bits = torch.ops.litz.random_bits.default(aten.add.Tensor(seed, stream), shape)
    kept = aten.bitwise_and.Scalar(bits, (1 << count) - 1)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return aten.mul.Tensor(prims.convert_element_type.default(kept, wide), 2.0**-count)


def _dropout(draw: Draw, like: Any, x: Any, chance: float, training: bool | None) -> Any:
    mask = aten.lt.Scalar(draw(0, torch.float32), 1.0 - chance)
    kept = aten.mul.Tensor(x, mask)
    return aten.mul.Tensor(kept, 1 / (1 - chance) if chance < 1 else 0.0), mask


def _bernoulli(draw: Draw, like: Any, x: Any, chance: Any = None, generator: Any = None) -> Any:
    uniform = draw(0, torch.float32)
    if chance is None:
        told = "bernoulli expects p to be in [0, 1]"
        below = aten.lt.Tensor(uniform, torch.ops.litz.between.default(x, 0.0, 1.0, told))
    else:
        below = aten.lt.Scalar(uniform, chance)
    return prims.convert_element_type.default(below, like.dtype)


def _rand(draw: Draw, like: Any, *_: Any) -> Any:
    return prims.convert_element_type.default(draw(0, like.dtype), like.dtype)


def _randn(draw: Draw, like: Any, *_: Any) -> Any:
    """Box-Muller: a radius from one number, an angle from another."""
    wide = torch.float64 if like.dtype is torch.float64 else torch.float32
    nonzero = aten.sub.Tensor(aten.mul.Tensor(draw(0, wide), -1.0), -1.0)  # its logarithm is finite
    radius = aten.sqrt.default(aten.mul.Tensor(aten.log.default(nonzero), -2.0))
    angle = aten.cos.default(aten.mul.Tensor(draw(1, wide), 2 * math.pi))
    return prims.convert_element_type.default(aten.mul.Tensor(radius, angle), like.dtype)


SEEDED: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _dropout,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli.default: _bernoulli,
    aten.rand.default: _rand,
    aten.rand_like.default: _rand,
    aten.randn.default: _randn,
    aten.randn_like.default: _randn,
}
