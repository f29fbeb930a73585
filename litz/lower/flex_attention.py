"""flex_attention: the user's score_mod and mask_mod, inlined into the attention loop.

In: the higher-order op with its two graphs. Out: one loop (`lower/attention.py`). Each graph is
lowered into a separate list of steps, over scalars that stand for the score and its position, and
becomes an expression. Example: `lambda s, b, h, i, j: s + slope[h] * (j - i)` is
`s + slope[i1] * cast(r1 - i2)`. The block mask only lists blocks that mask_mod would mask; mask_mod
alone decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from litz.ir.dtypes import F32, F64
from litz.ir.expr import Expr, apply, const
from litz.ir.program import Buffer
from litz.lower.attention import emit_attention, refused
from litz.lower.registry import RULES, FallbackToAten
from litz.lower.score_mod import inline_value
from litz.lower.values import Lowering, View


def _flex_attention(
    low: Lowering, like: Any, q: View, k: View, v: View, score_mod: torch.fx.GraphModule,
    block_mask: tuple[Any, ...], scale: float, options: dict[str, Any],
    score_operands: tuple[Any, ...] = (), mask_operands: tuple[Any, ...] = (),
) -> Any:  # fmt: skip
    if low.used - {0}:
        raise refused(low, "its sums or maxima are asked for")
    if q.dtype not in (F32, F64):
        raise refused(low, "its type is not generated")
    mask_mod = block_mask[-1]

    def score(dot: Expr, row: tuple[Expr, ...], column: Expr) -> Expr:
        at = (*row, column)
        scaled = apply("mul", dot, const(scale, dot.dtype))
        changed = _inline_graph(low, score_mod, (scaled, *at), score_operands)
        if changed.dtype is not dot.dtype:
            raise refused(low, "score_mod changes the type")
        kept = _inline_graph(low, mask_mod, at, mask_operands)
        return apply("where", kept, changed, const(-math.inf, dot.dtype))

    return *emit_attention(low, like[0], (q, k, v), score, safe_softmax=True), None


def _inline_graph(
    low: Lowering, module: torch.fx.GraphModule, scalars: tuple[Expr, ...], operands: Any
) -> Expr:
    """The result of a graph over scalars, for these scalars."""
    known: dict[torch.fx.Node, Any] = {}
    given: dict[Buffer, Callable[[tuple[Expr, ...]], Expr]] = {}
    arguments = iter((*scalars, *operands))
    origin, result = low.origin, None
    if any(node.op == "get_attr" for node in module.graph.nodes):
        raise refused(low, "its functions hold tensors of their own")
    graph = _with_int64_positions(module.graph, len(scalars))
    with low.subgraph_body() as steps:
        for node in graph.nodes:
            if node.op == "placeholder":
                argument = next(arguments)
                known[node] = argument
                # Otherwise it is a size that the function captured: a number.
                if isinstance(argument, Expr) and isinstance(node.meta["val"], torch.Tensor):
                    known[node] = low.whole(low.buffer(node.meta["val"]))
                    given[known[node].buffer] = _constantly(argument)
            elif node.op == "call_function":
                known[node] = low.lower_node(low, node, known)
            else:
                (result,) = node.args if isinstance(node.args[0], torch.fx.Node) else node.args[0]
    low.origin = origin
    if not isinstance(result, torch.fx.Node):
        raise refused(low, "its functions give more than one value")
    try:
        return inline_value(known[result], (), steps, given)
    except FallbackToAten as error:
        raise refused(low, f"its functions hold {error}") from error


def _with_int64_positions(graph: torch.fx.Graph, scalars: int) -> torch.fx.Graph:
    """The graph over positions in int64, as eager has them. Torch traces it over int32, in which
    `i * 100_003 * 100_003` wraps."""
    copied = torch.fx.Graph()
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    for number, node in enumerate(graph.nodes):
        made = known[node] = copied.node_copy(node, known.__getitem__)
        value = node.meta.get("val")
        if node.op == "placeholder" and number < scalars and value.dtype is torch.int32:
            made.meta["val"] = value.to(torch.int64)
        elif node.op == "call_function" and any(
            n.meta.get("val") is not known[n].meta.get("val") for n in node.all_input_nodes
        ):
            given = torch.fx.node.map_arg((made.args, made.kwargs), lambda n: n.meta["val"])
            counted = node.target(*given[0], **given[1])
            made.meta["val"] = value if counted.dtype is value.dtype else counted
    return copied


def _constantly(value: Expr) -> Callable[[tuple[Expr, ...]], Expr]:
    return lambda index: value


RULES[torch.ops.higher_order.flex_attention] = _flex_attention
