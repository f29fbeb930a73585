"""Attention masks that the program builds from constants, simplified before tracing.

In: Dynamo's module, before an attention kernel is chosen. Out: the same module, and how many masks
changed. Models build masks from positions inside the graph; under `torch.compile` even masks that
are all true, or causal. Either costs an attention kernel half its speed. A mask expanded along a
row rules the kernel out: ATen then writes the scores to memory, in float32. A mask that depends on
constants alone is therefore computed here, once. Example:

    mask = arange(9)[:, None] >= arange(9)
    sdpa(q, k, v, attn_mask=mask)            ->   sdpa(q, k, v, attn_mask=None, is_causal=True)
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node

from litz.target import eager_on, names_device

ATTENTION = torch.nn.functional.scaled_dot_product_attention
PARAMETERS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
# Where the functions of the lists below are found: a user's op may have the same name.
NAMESPACES = (operator, torch, torch.nn.functional, torch.Tensor)
# Functions, methods and operators without side effects that masks are built from, by name.
_PURE = """arange ones zeros full full_like ones_like zeros_like new_ones new_zeros new_full tensor
add sub mul neg abs floordiv floor_divide remainder mod diff cumsum sum minimum maximum clamp eq ne
lt le gt ge and_ or_ invert not_ logical_and logical_or logical_not logical_xor bitwise_and
bitwise_or bitwise_not where masked_fill tril triu isin any all repeat clone size"""
# ... and those whose result may alias their operand.
_VIEWS = """getitem to bool int long float type expand expand_as view reshape flatten unsqueeze
squeeze transpose permute contiguous detach"""
PURE = frozenset(_PURE.split() + _VIEWS.split())
# Readers of positions and masks: they neither write to their operands nor return aliases of them.
_READS = """scaled_dot_product_attention embedding linear matmul bmm cat stack truediv pow exp log
sin cos softmax dim numel argmax amax amin max min mean one_hot index_select gather"""
READS = frozenset(_PURE.split() + _READS.split())
# In-place shifts of positions (`kv_positions += offset`), with their functional counterparts.
SHIFTS = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
}
# Elements of the largest tensor that is folded: some milliseconds.
MAX_FOLDED_NUMEL = 1 << 24


def simplify_masks(module: torch.fx.GraphModule) -> int:
    """Drop masks that are all true, replace causal ones by a flag, make the others contiguous."""
    wanted = [n for n in module.graph.nodes if n.target is ATTENTION and _mask(n) is not None]
    if not wanted:
        return 0
    values = _constants(module.graph)
    changes = 0
    for node in wanted:
        changes += _simplified(module.graph, node, values)
    if changes:
        module.recompile()
    return changes


def _mask(node: Node) -> Node | None:
    """The mask of an attention call that has one and is not causal as well."""
    given = dict(zip(PARAMETERS, node.args, strict=False)) | node.kwargs
    mask = given.get("attn_mask")
    return mask if isinstance(mask, Node) and given.get("is_causal", False) is False else None


def _simplified(graph: torch.fx.Graph, node: Node, values: dict[Node, Any]) -> bool:
    mask = _mask(node)
    assert mask is not None
    known = values.get(mask)
    shown = known if isinstance(known, torch.Tensor) else None
    causal = shown is not None and _is_causal(shown)
    if causal or (shown is not None and bool(_passes(shown).all())):
        _set(node, "attn_mask", None)
        _set(node, "is_causal", causal)
        return True
    value = mask.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or not value.dim():
        return False
    if not eager_on(value.device).reads_masks_by_row:
        return False
    if value.stride(-1) == 1 or value.shape[-1] == 1:
        return False
    with graph.inserting_before(node):  # ATen's kernel reads a mask along its rows
        laid = graph.call_method("contiguous", (mask,))
    laid.meta = {k: v for k, v in mask.meta.items() if k != "example_value"}
    laid.meta["example_value"] = value.contiguous()
    _set(node, "attn_mask", laid)
    return True


def _set(node: Node, name: str, value: Any) -> None:
    place = PARAMETERS.index(name)
    if place < len(node.args):
        node.update_arg(place, value)
    else:
        node.update_kwarg(name, value)


def _passes(mask: torch.Tensor) -> torch.Tensor:
    """Where a mask changes no score."""
    return mask if mask.dtype is torch.bool else mask == 0


def _is_causal(mask: torch.Tensor) -> bool:
    """Whether a mask of n x n is causal: each row sees itself and the columns before it alone."""
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2:
        return False
    passes = _passes(mask)
    if not torch.equal(passes, torch.ones_like(passes).tril()):
        return False
    if mask.dtype is torch.bool:
        return True
    hidden = mask[~passes]
    return bool((hidden <= torch.finfo(mask.dtype).min).all())


# -- values ----------------------------------------------------------------------------------


def _constants(graph: torch.fx.Graph) -> dict[Node, Any]:
    """The values that depend on constants alone, by node, computed on the CPU."""
    values: dict[Node, Any] = {}
    attended = False
    for node in graph.nodes:
        attended |= node.target is ATTENTION
        if _calls(node, PURE) and all(n in values for n in node.all_input_nodes):
            if _is_small(node) and _is_computed(node, values):
                continue
        elif not attended and _shifted(node, values):
            continue
        if not _only_reads(node):
            _forget(node, values)
    return values


def _is_computed(node: Node, values: dict[Node, Any]) -> bool:
    try:
        values[node] = _computed(node, values)
    except Exception:  # it will fail at run time, where the user can see it
        return False
    return True


def _calls(node: Node, names: frozenset[str]) -> bool:
    """Whether it calls one of torch's own functions or methods with these names."""
    if node.op == "call_method":
        written = str(node.target)
        if operator_written := re.fullmatch("__(.+)__", written):  # as Dynamo may: __eq__, __and__
            return not {operator_written[1], f"{operator_written[1]}_"}.isdisjoint(names)
        return written in names
    name = str(getattr(node.target, "__name__", ""))
    if name not in names or "out" in node.kwargs or _renormalises(node):
        return False
    return any(getattr(place, name, None) is node.target for place in NAMESPACES)


def _renormalises(node: Node) -> bool:
    """Whether it is an embedding with `max_norm`, which writes to its table."""
    if node.target is not torch.nn.functional.embedding:
        return False
    given = dict(zip(("input", "weight", "padding_idx", "max_norm"), node.args, strict=False))
    return (given | node.kwargs).get("max_norm") is not None


def _only_reads(node: Node) -> bool:
    """Whether it leaves its operands unchanged, and no later call can write to them through its
    result."""
    if isinstance(node.target, torch._ops.OpOverload):
        schema = node.target._schema
        return not schema.is_mutable and all(r.alias_info is None for r in schema.returns)
    return node.op == "output" or _calls(node, READS)


def _forget(node: Node, values: dict[Node, Any]) -> None:
    """Drop values that share memory with an operand: the node, or a user of its result, may write
    to that memory."""
    given = [values.get(n) for n in node.all_input_nodes]
    places = {v.untyped_storage().data_ptr() for v in given if isinstance(v, torch.Tensor)}
    for other, value in list(values.items()) if places else ():
        if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in places:
            del values[other]


def _shifted(node: Node, values: dict[Node, Any]) -> bool:
    """Evaluate `x += y` if only the names of x itself see the change: no view of x is known."""
    compute = SHIFTS.get(node.target)
    if compute is None or any(n not in values for n in node.all_input_nodes):
        return False
    first = node.args[0]
    old = values[first] if isinstance(first, Node) else None
    if not isinstance(old, torch.Tensor):
        return False
    names = [n for n, value in values.items() if value is old]
    place = old.untyped_storage().data_ptr()
    tensors = [(n, v) for n, v in values.items() if isinstance(v, torch.Tensor)]
    if any(v.untyped_storage().data_ptr() == place and n not in names for n, v in tensors):
        return False
    args = torch.fx.node.map_aggregate(node.args, lambda x: _on_cpu(x, values))
    with torch.no_grad(), unset_fake_temporarily():
        new = compute(*args)
    if new.dtype is not old.dtype or new.shape != old.shape:
        return False
    values.update(dict.fromkeys([*names, node], new))
    return True


def _is_small(node: Node) -> bool:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return isinstance(value, int | float | bool | torch.Size)
    return all(isinstance(n, int) for n in value.shape) and value.numel() <= MAX_FOLDED_NUMEL


def _computed(node: Node, values: dict[Node, Any]) -> Any:
    args, kwargs = torch.fx.node.map_aggregate(
        (node.args, node.kwargs), lambda x: _on_cpu(x, values)
    )
    with torch.no_grad(), torch.device("cpu"), unset_fake_temporarily():
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _on_cpu(value: Any, values: dict[Node, Any]) -> Any:
    """An argument as it is used here: a device becomes the CPU."""
    if isinstance(value, Node):
        return values[value]
    return torch.device("cpu") if names_device(value) else value
