"""Stage 2: passes over the captured graph.

In: `Graph`, a functional ATen graph with fake values. Out: the same `Graph` with fewer and cheaper
ops, the same outputs and the same sharing of memory between them. Example:
`x.view(12).view(3, 4) * 1` becomes `x.view(3, 4)`. A pass is a function that changes a graph and
returns its number of changes; its file has its name; `PASSES` is their order. `partition` runs
earlier: on the joint graph of a training step it runs `JOINT_PASSES`, then cuts it into forward and
backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule

from litz.config import Config
from litz.errors import CustomPassFailed, PassFailed, UnsupportedOp
from litz.ir.graph import Graph, at_path
from litz.ir.program import Decision
from litz.passes.cast_tangents import cast_tangents
from litz.passes.channels_last import channels_last
from litz.passes.channels_last_training import channels_last_training
from litz.passes.concat_linears import concat_linears
from litz.passes.constrain_operand_strides import constrain_operand_strides
from litz.passes.decompose_dropouts import decompose_dropouts
from litz.passes.fold_affine_into_weights import fold_affine_into_weights
from litz.passes.fold_constants import fold_constants
from litz.passes.fold_frozen import fold_frozen
from litz.passes.fold_uniform_tensors import fold_uniform_tensors
from litz.passes.freeze_parameters import freeze_parameters
from litz.passes.hooks import name_of_hook, run_hook
from litz.passes.lift_conv1d_to_conv2d import lift_conv1d_to_conv2d
from litz.passes.mark_half_roundings import mark_half_roundings
from litz.passes.merge_common_subexpressions import merge_common_subexpressions
from litz.passes.partition import cut_joint_graph
from litz.passes.patch_conv_to_matmul import patch_conv_to_matmul
from litz.passes.prepack_convolutions import prepack_convolutions
from litz.passes.remove_dead_code import remove_dead_code
from litz.passes.remove_identities import remove_identities
from litz.passes.remove_noop_views import remove_noop_views
from litz.passes.resolve_negation import resolve_negation
from litz.passes.seed_random_ops import seed_random_ops
from litz.passes.verify import GraphInvariants
from litz.target import Target
from litz.trace import IR, Trace, stage


@dataclass(frozen=True)
class Pass:
    """One row of the list: a pass and the flags, if any, that turn it off."""

    run: Callable[..., int]  # takes the graph
    flag: str | None = None
    unless: str | None = None  # the flag that turns it off if it is set
    takes_target: bool = False  # whether it takes the target and the config as well

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def sentence(self) -> str:
        return (self.run.__doc__ or "").split("\n", 1)[0]

    def is_on(self, config: Config) -> bool:
        is_asked = self.flag is None or bool(attrgetter(self.flag)(config))
        return is_asked and not (self.unless and getattr(config, self.unless))


PASSES = [
    Pass(resolve_negation),
    Pass(freeze_parameters, "freezing"),
    Pass(remove_noop_views),
    Pass(fold_uniform_tensors, "joint_graph_constant_folding"),
    Pass(fold_constants, "joint_graph_constant_folding"),
    Pass(remove_identities),
    Pass(fold_affine_into_weights, "cpp.fold_affine_into_weights", takes_target=True),
    Pass(lift_conv1d_to_conv2d, "layout_optimization"),
    Pass(patch_conv_to_matmul, "layout_optimization"),
    Pass(channels_last, "layout_optimization", takes_target=True),
    Pass(prepack_convolutions, "cpp.weight_prepack", takes_target=True),
    Pass(fold_frozen, "freezing"),
    Pass(merge_common_subexpressions),
    Pass(concat_linears, "cpp.enable_concat_linear"),
    Pass(constrain_operand_strides),
    Pass(remove_dead_code, "use_dce"),
]
# Over forward and backward at once: a value that both compute is merged, then saved or recomputed.
JOINT_PASSES = [
    Pass(cast_tangents),
    Pass(fold_uniform_tensors, "joint_graph_constant_folding"),
    Pass(fold_constants, "joint_graph_constant_folding"),
    Pass(seed_random_ops, unless="fallback_random"),
    Pass(decompose_dropouts),
    Pass(merge_common_subexpressions),
    Pass(channels_last_training, "layout_optimization"),
    Pass(remove_dead_code, "use_dce"),
    Pass(mark_half_roundings),
]

Modules = tuple[GraphModule, GraphModule]


@stage("partition", "a forward and a backward graph with few bytes between them")
def partition(
    joint: GraphModule, inputs: Sequence[Any], config: Config, trace: Trace | None = None, *,
    num_fwd_outputs: int, static_lifetime_input_indices: Iterable[int] | None = None,
    passes: Sequence[Pass] | None = None,
) -> Modules:  # fmt: skip
    """Run the joint passes (all, unless `passes` is given), then cut the graph with the user's
    partitioner or ours."""
    named = [str(n.target) for n in joint.graph.nodes if n.op == "get_attr"]
    graph = Graph(joint, "joint", attributes={name: at_path(joint, name) for name in named})
    run_hook("joint_custom_pre_pass", config.joint_custom_pre_pass, graph)
    invariants = GraphInvariants(graph) if config.verify else None
    with unset_fake_temporarily():  # torch traces with fake tensors; passes compute with real ones
        for each in JOINT_PASSES if passes is None else passes:
            if each.is_on(config):
                _run(each, graph, trace, invariants)
    run_hook("joint_custom_post_pass", config.joint_custom_post_pass, graph)
    static = tuple(static_lifetime_input_indices or ())
    if config.custom_partitioner_fn is None:
        return cut_joint_graph(joint, num_fwd_outputs, static)
    try:
        cut = config.custom_partitioner_fn
        joint.recompile()
        given = {"num_fwd_outputs": num_fwd_outputs, "static_lifetime_input_indices": static}
        forward, backward = cut(joint, inputs, **given)
    except Exception as error:
        raise CustomPassFailed(name_of_hook("custom_partitioner_fn", cut), error) from error
    return forward, backward


@stage("passes", "fewer and cheaper ops with the same results")
def optimize(
    graph: Graph, target: Target, config: Config, trace: Trace | None = None,
    passes: Sequence[Pass] | None = None,
) -> Graph:  # fmt: skip
    """Run the user's first pass, our passes in order (all, unless `passes` is given), then the
    user's last pass.

    `graph.module.meta["passes"]` records the number of changes of each pass.
    """
    changes: dict[str, int] = {}
    if not target.prepacks:
        graph.static = frozenset()
    if config.freezing_discard_parameters and not config.freezing:
        asked, reason = "freezing_discard_parameters", "only what is frozen is discarded: freezing"
        graph.decisions.append(Decision("unmet", asked, f"{graph.kind} graph", reason))
    if graph.kind == "inference":  # it is its own joint graph
        run_hook("joint_custom_pre_pass", config.joint_custom_pre_pass, graph)
        run_hook("joint_custom_post_pass", config.joint_custom_post_pass, graph)
    run_hook("post_grad_custom_pre_pass", config.post_grad_custom_pre_pass, graph)
    invariants = GraphInvariants(graph) if config.verify else None
    for each in PASSES if passes is None else passes:
        if each.is_on(config):
            given = (target, config) if each.takes_target else ()
            changes[each.name] = _run(each, graph, trace, invariants, *given)
    run_hook("post_grad_custom_post_pass", config.post_grad_custom_post_pass, graph)
    graph.module.graph.lint()
    graph.module.meta["passes"] = changes
    return graph


def _run(
    each: Pass, graph: Graph, trace: Trace | None, invariants: GraphInvariants | None, *given: Any
) -> int:
    shown = trace is not None and trace.shows(IR)
    before = str(graph.module.graph) if shown else ""
    try:
        with trace.span(each.name) if trace else nullcontext():
            count = each.run(graph, *given)
        if invariants is not None:
            with trace.span("verify") if trace else nullcontext():
                invariants.check(graph)
    except UnsupportedOp:
        raise
    except Exception as error:
        raise PassFailed(each.name, error) from error
    if trace is not None and shown and count:
        trace.show_pass(f"{each.name}: {count} changes", before, str(graph.module.graph))
    return count


__all__ = ["JOINT_PASSES", "PASSES", "Pass", "optimize", "partition"]
