"""The cost of saving a value for the backward, and the cost of recomputing it there.

In: a node of the joint graph. Out: bytes. A saved value is written and read. Recomputing takes
time, given as the bytes that could be moved meanwhile. Example: saving `exp(x)` of a million floats
costs 8 MB, recomputing it 3 MB: cheaper, if x is available.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy
from torch.utils.flop_counter import flop_registry

from litz.passes.aliasing import viewed_operand
from litz.passes.purity import is_repeatable

aten, prims = torch.ops.aten, torch.ops.prims
NEVER = float("inf")
# Bytes that move in the time of computing one element: by an addition, by an exponential.
CHEAP_OP_BYTES, EXPENSIVE_OP_BYTES = 0.25, 3.0
# Floating-point operations of a matmul that take as long as moving one byte.
FLOPS_PER_BYTE = 16
# Stands in for an unbacked size where costs are compared.
UNKNOWN_SIZE = 4096

_EXPENSIVE_NAMES = """
    acos acosh asin asinh atan atan2 atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 gelu
    lgamma log log10 log1p log2 mish pow sigmoid silu sin sinh softplus tan tanh fmod remainder
"""
_EXPENSIVE = frozenset(getattr(aten, name) for name in _EXPENSIVE_NAMES.split())
# Ops that become loops, or part of their reader's loop, though torch does not tag them pointwise.
_LOOPS = frozenset(
    (
        *(aten.full, aten.full_like, aten.scalar_tensor, aten.arange, prims.iota, aten.empty),
        *(aten.clone, aten._to_copy, prims.convert_element_type, aten.where, aten.cat),
        *(aten.constant_pad_nd, aten.index, aten._unsafe_index, aten.gather, aten.embedding),
        *(aten.index_select, aten.slice_scatter, aten.select_scatter, aten.flip, aten.repeat),
        *(aten.zeros_like, aten.ones_like, aten.empty_like, aten.new_zeros, aten.new_full),
        *(aten.lift_fresh_copy, aten.masked_fill),
    )
)
_REDUCTIONS = frozenset(
    (
        *(aten.sum, aten.mean, aten.amax, aten.amin, aten.var, aten.var_mean, aten.prod),
        *(aten.any, aten.all, aten.argmax, aten.argmin),
    )
)


def bytes_of(value: Any) -> int:
    """The memory of a tensor, or of several."""
    if isinstance(value, (tuple, list)):
        return sum(map(bytes_of, value))
    if not isinstance(value, torch.Tensor):
        return 8
    return _number(value.numel()) * int(value.dtype.itemsize)


def _number(size: Any) -> int:
    if isinstance(size, int):
        return size
    hint = size.node.hint if size.node.has_hint() else None
    return UNKNOWN_SIZE if hint is None else int(hint)


def policy(node: Node) -> CheckpointPolicy | None:
    """What `torch.utils.checkpoint` asks of a node; an item of a tuple follows the whole op."""
    return _whole(node).meta.get("recompute")  # type: ignore[no-any-return]


def is_random(node: Node) -> bool:
    """Whether recomputing it would draw other numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(_whole(node).target, "tags", ())


def _whole(node: Node) -> Node:
    """The op itself, if a node is an item of its results."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return node.args[0]
    return node


def is_marked_recompute(node: Node) -> bool:
    return policy(node) in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def is_view(node: Node) -> bool:
    """Whether a node aliases another node's memory."""
    return node.target is not operator.getitem and viewed_operand(node) is not None


def is_loop(node: Node) -> bool:
    """Whether an op becomes a loop that fuses, so that its operands need no memory."""
    if not isinstance(node.target, OpOverload) or not is_repeatable(node):
        return False
    packet = node.target.overloadpacket
    known = packet in _LOOPS or packet in _REDUCTIONS
    return known or torch.Tag.pointwise in node.target.tags or is_view(node)


def fused_recompute_cost(node: Node) -> float:
    """The time of an op in bytes, if its operands are available; NEVER if it is no loop."""
    value = node.meta.get("val")
    if is_view(node) or not isinstance(value, torch.Tensor):
        return 0.0 if is_repeatable(node) else NEVER
    if not is_loop(node):
        return NEVER
    assert isinstance(node.target, OpOverload)
    packet = node.target.overloadpacket
    if packet in _REDUCTIONS:
        return float(sum(bytes_of(n.meta.get("val")) for n in node.all_input_nodes))
    return _number(value.numel()) * (EXPENSIVE_OP_BYTES if packet in _EXPENSIVE else CHEAP_OP_BYTES)


def recompute_cost(node: Node) -> float:
    """The same, and for matmuls and other repeatable ops too: used when memory is short. With
    several results the op itself counts, and taking an item costs nothing."""
    if not is_repeatable(node):
        return NEVER
    if node.target is operator.getitem:
        return 0.0
    several = isinstance(node.meta.get("val"), (tuple, list)) and not is_view(node)
    known = NEVER if several else fused_recompute_cost(node)
    if known < NEVER or not isinstance(node.target, OpOverload):
        return known
    moved = bytes_of(node.meta.get("val")) + sum(
        bytes_of(n.meta.get("val")) for n in node.all_input_nodes
    )
    return moved + _flops(node) / FLOPS_PER_BYTE


def _flops(node: Node) -> float:
    count = flop_registry.get(node.target.overloadpacket)  # type: ignore[union-attr]
    if count is None:
        return 0.0
    args, kwargs = torch.fx.node.map_arg(
        (node.args, dict(node.kwargs)), lambda n: n.meta.get("val")
    )
    return float(_number(count(*args, **kwargs, out_val=node.meta.get("val"))))
