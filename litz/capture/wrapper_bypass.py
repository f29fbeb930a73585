"""The bypass of AOTAutograd's runtime wrapper, where that wrapper has nothing to do.

In: AOTAutograd's inference graph, its metadata and the inputs Dynamo gave. Out: a reason why the
wrapper is needed, or None. The wrapper handles gradients, aliases and mutations around a call,
which costs as much as the rest of a small graph. A call may skip it if the graph returns only fresh
tensors and none of its ops depends on the modes that the wrapper switches off. Dynamo guards
everything that this depends on: layouts, requires_grad, grad mode, autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch._guards import TracingContext
from torch.autograd import forward_ad


def reason_in_modes(inputs: Sequence[Any]) -> str | None:
    """A mode around the call, or a kind of input, that the wrapper must hide from the ops."""
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) and not _is_fake(t) for t in tensors):
        return "a tensor subclass"
    if torch._C._is_any_autocast_enabled():
        return "autocast"
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return "an input that requires grad, without a gradient"
    return None


def reason_to_wrap(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> str | None:
    """The work that the wrapper does for this graph."""
    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    if meta is None:
        return "no metadata"
    return _changes(meta) or _shape_of_call(module, inputs, meta)


def _is_fake(value: Any) -> bool:
    return isinstance(value, torch._subclasses.FakeTensor)


def _changes(meta: ViewAndMutationMeta) -> str | None:
    """The work that the wrapper does after a call."""
    if any(i.mutates_data or i.mutates_metadata for i in meta.input_info):
        return "a mutated input"
    if any(o.output_type is not OutputType.non_alias for o in meta.output_info):
        return "an output that shares memory"
    if meta.num_intermediate_bases or meta.tokens or meta.grad_enabled_mutation is not None:
        return "an intermediate base, an effect or a change of grad mode"
    if meta.num_graphsafe_rng_states or meta.is_rng_op_functionalized:
        return "states of random generators"
    return None


def _shape_of_call(
    module: torch.fx.GraphModule, inputs: Sequence[Any], meta: ViewAndMutationMeta
) -> str | None:
    """Arguments or results that the wrapper would add or remove, and ops that it watches."""
    nodes = list(module.graph.nodes)
    places = sum(n.op == "placeholder" for n in nodes)
    (returned,) = (n.args[0] for n in nodes if n.op == "output")
    if places != len(inputs) or len(returned) != len(meta.output_info):
        return "arguments or results of its own"
    called = [n.target for n in nodes if n.op == "call_function"]
    if any(getattr(t, "namespace", "aten") not in ("aten", "prims") for t in called):
        return "a custom op"
    return None


def direct_call(call: Callable[[list[Any]], Any], eager: Callable[..., Any]) -> Callable[..., Any]:
    """A graph's call with Dynamo's signature: one argument per input."""

    def run(*args: Any) -> Any:
        if forward_ad._current_level >= 0 and _has_tangent(args):
            return eager(*args)
        return call(list(args))

    return run


def wrapped_call(call: Callable[..., Any], eager: Callable[..., Any]) -> Callable[..., Any]:
    """The same through AOTAutograd's wrapper."""

    def run(*args: Any) -> Any:
        if forward_ad._current_level >= 0 and _has_tangent(args):
            return eager(*args)
        return call(*args)

    return run


def _has_tangent(args: Sequence[Any]) -> bool:
    """Whether an argument is a dual tensor of forward-mode differentiation. A kernel would lose its
    tangent, and Dynamo, which does not guard on it, may have compiled the graph without one."""
    tensors = (a for a in args if isinstance(a, torch.Tensor))
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def eager_for_fakes(
    call: Callable[..., Any], eager: Callable[..., Any], inputs: Sequence[Any]
) -> Callable[..., Any]:
    """A graph compiled for fake tensors may be called with fake tensors, which only torch can run,
    or with real ones, as torch does with the graphs it splits for distributed training."""
    if not any(_is_fake(t) for t in inputs):
        return call
    return lambda *args: (eager if any(map(_is_fake, args)) else call)(*args)
