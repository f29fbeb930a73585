"""The hooks into torch: Dynamo hands us a module, AOTAutograd makes it functional.

In: Dynamo's FX module and its inputs. Out: a callable, built from the graphs that AOTAutograd
hands to `compile_graph`: one inference graph, or a forward and, later, a backward one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import compile_lock as COMPILE_LOCK
from torch._functorch.partitioners import default_partition
from torch._guards import TracingContext

from litz.capture.decompositions import decompositions
from litz.capture.effects import keep_effects
from litz.capture.output_aliases import rebuild_output_aliases, replay_views
from litz.capture.wrapper_bypass import (
    direct_call,
    eager_for_fakes,
    reason_in_modes,
    reason_to_wrap,
    wrapped_call,
)
from litz.ir.graph import NamedTensor

# One thread compiles at a time: the tables that stages share (nodes by their content, sizes by
# their symbol, LLVM's state) have no locks of their own. Dynamo holds this lock when it calls us. A
# backward graph, or a graph for one more size, is compiled outside of Dynamo and takes it here.
# With a second lock, two threads that take both in different orders would deadlock.
__all__ = ["COMPILE_LOCK", "STATIC", "parameters_of", "through_aot_autograd"]
# In a module's meta: the positions of inputs that are parameters or buffers of the user's module.
STATIC = "litz_static"
# (module, inputs, kind) -> a function over the list of inputs, which it may clear
CompileGraph = Callable[[torch.fx.GraphModule, Sequence[Any], str], Callable[..., Any]]
# (joint module, inputs, torch's keywords) -> a forward and a backward module
Partition = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]


def _unlock() -> None:
    """In a forked process: any other thread that was compiling does not exist."""
    if not COMPILE_LOCK._is_owned():  # owned by the forking thread: it forked during a compile
        COMPILE_LOCK._at_fork_reinit()


os.register_at_fork(after_in_child=_unlock)


def through_aot_autograd(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compile_graph: CompileGraph,
    partition: Partition = default_partition,
    keep_random: bool = False,
    eager: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Functionalise, decompose and (for training) split into forward and backward. Unused random
    ops are dropped unless `keep_random`. `eager` runs the calls that no compiled graph can."""

    _keep_asserts(module)
    eager = eager or module.forward
    plain: list[Callable[..., Any]] = []  # the compiled graph, if it needs no wrapper
    modes = reason_in_modes(inputs)  # asked here: AOTAutograd traces in modes of its own

    def forward(gm: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        _clear_donated_buffers()
        rebuild_output_aliases(gm)
        return replay_views(gm, compile_graph(gm, args, "forward"))

    def backward(gm: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(gm, args, "backward")

    def inference(gm: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        gm.meta[STATIC] = _parameters()
        rebuild_output_aliases(gm)
        compiled = compile_graph(gm, args, "inference")
        if modes is None and reason_to_wrap(gm, inputs) is None:
            plain.append(compiled)
        return compiled

    hook = aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        partition_fn=partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )
    with keep_effects(keep_random):
        whole = hook(module, inputs)
    run = direct_call(plain[0], eager) if plain else wrapped_call(whole, eager)
    return eager_for_fakes(run, eager, inputs)


def _clear_donated_buffers() -> None:
    """Torch lets a backward with donated buffers run only once, since it may overwrite them. Our
    backward overwrites none, and may run as often as eager's."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _keep_asserts(module: torch.fx.GraphModule) -> None:
    """AOTAutograd drops an assertion without a message, and keeps one with a message as an effect.
    Each assertion without one therefore gets the message that eager would raise."""
    for node in module.graph.nodes:
        if node.target is torch._assert_async and len(node.args) == 1 and not node.kwargs:
            node.args = (*node.args, "Expected Tensor with single nonzero value, but got zero")


def parameters_of(
    module: torch.fx.GraphModule, inputs: Sequence[Any], names: Sequence[str]
) -> dict[int, NamedTensor]:
    """The parameter tensors of an inference graph, by position. `inputs` and `names` are Dynamo's.
    None if these inputs are not the graph's, one by one, or hold no data. The graph's effect
    tokens come before its inputs."""
    places = [n for n in module.graph.nodes if n.op == "placeholder"]
    first = len(places) - len(inputs)
    static = module.meta.get(STATIC, ())
    if len(inputs) != len(names) or not static or min(static) < first:
        return {}
    known = {k: (_label(names[k - first]), inputs[k - first]) for k in static}
    plain = all(_is_plain(t, places[k].meta["val"]) for k, (_, t) in known.items())
    return known if plain else {}


def _is_plain(tensor: Any, like: torch.Tensor) -> bool:
    """Whether it is a tensor with data, of the shape and dtype that the graph expects there."""
    kind = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return kind and tensor.shape == like.shape and tensor.dtype == like.dtype


def _label(name: str) -> str:
    """l_self_modules_0_parameters_weight_ -> 0.weight, the user's own name for it."""
    parts = re.split("_(?:modules|parameters|buffers)_", name.strip("_"))
    return ".".join(parts[1:]) or name


def _parameters() -> tuple[int, ...]:
    """The positions of the inputs that are parameters or buffers of the user's module."""
    context = TracingContext.try_get()
    meta = context.fw_metadata if context is not None else None
    return () if meta is None else tuple(meta.static_input_indices)
