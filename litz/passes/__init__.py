"""Stage 2: passes over the captured graph.

In: `Graph`, a functional ATen graph with fake values. Out: the same `Graph` with fewer and cheaper
ops, the same outputs and the same sharing of memory between them. Example:
`x.view(12).view(3, 4) * 1` becomes `x.view(3, 4)`. A pass is a function from a graph to its number
of changes, in a file of its own name; `PASSES` is their order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter

from litz.config import Config
from litz.errors import PassFailed
from litz.ir.graph import Graph
from litz.passes.channels_last import channels_last
from litz.passes.fold_channel_factors import fold_channel_factors
from litz.passes.fold_constants import fold_constants
from litz.passes.fold_uniform_tensors import fold_uniform_tensors
from litz.passes.hooks import run_hook
from litz.passes.merge_common_subexpressions import merge_common_subexpressions
from litz.passes.pack_convolutions import pack_convolutions
from litz.passes.remove_dead_code import remove_dead_code
from litz.passes.remove_identities import remove_identities
from litz.passes.remove_noop_views import remove_noop_views
from litz.target import Target
from litz.trace import IR, Trace, stage


@dataclass(frozen=True)
class Pass:
    """One row of the list: a pass and the flag, if any, that turns it off."""

    run: Callable[[Graph], int]
    flag: str | None = None

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def sentence(self) -> str:
        return (self.run.__doc__ or "").split("\n", 1)[0]

    def is_on(self, config: Config) -> bool:
        return self.flag is None or bool(attrgetter(self.flag)(config))


PASSES = [
    Pass(remove_noop_views),
    Pass(fold_uniform_tensors, "joint_graph_constant_folding"),
    Pass(fold_constants, "joint_graph_constant_folding"),
    Pass(remove_identities),
    Pass(fold_channel_factors, "cpp.weight_prepack"),
    Pass(channels_last, "layout_optimization"),
    Pass(pack_convolutions, "cpp.weight_prepack"),
    Pass(merge_common_subexpressions),
    Pass(remove_dead_code, "use_dce"),
]


@stage("passes", "fewer and cheaper ops with the same results")
def optimize(graph: Graph, target: Target, config: Config, trace: Trace | None = None) -> Graph:
    """Run the user's first pass, ours in order, and the user's last one.

    `graph.module.meta["passes"]` keeps how much each pass changed.
    """
    changes: dict[str, int] = {}
    if not target.holds:
        graph.static = frozenset()
    run_hook("post_grad_custom_pre_pass", config.post_grad_custom_pre_pass, graph)
    for each in PASSES:
        if each.is_on(config):
            changes[each.name] = _run(each, graph, trace)
    run_hook("post_grad_custom_post_pass", config.post_grad_custom_post_pass, graph)
    graph.module.graph.lint()
    graph.module.meta["passes"] = changes
    return graph


def _run(each: Pass, graph: Graph, trace: Trace | None) -> int:
    shown = trace is not None and trace.shows(IR)
    before = str(graph.module.graph) if shown else ""
    try:
        with trace.span(each.name) if trace else nullcontext():
            count = each.run(graph)
    except Exception as error:
        raise PassFailed(each.name, error) from error
    if trace is not None and shown and count:
        trace.show_pass(f"{each.name}: {count} changes", before, str(graph.module.graph))
    return count


__all__ = ["PASSES", "Pass", "optimize"]
