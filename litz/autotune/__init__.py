"""Autotuning: time several ways to compute a kernel, and take the fastest on this machine.

In: the captured graph, after its passes. Out: `Tuning`: choices that `lower`, `fuse` and `schedule`
consult, and the trials behind them. Unless a flag asks for it, nothing is timed and the rules of
those stages decide. With one, a choice is taken only if it is certainly faster than the rule's.
Results are kept in a database. Example: under `max_autotune`, a linear layer of 16 rows may run in
register tiles of 8 x 3 instead of 6 x 4.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from litz.autotune.results import Finding, Ratio, Trial, Tuning
from litz.autotune.tuner import Tuner
from litz.config import Config
from litz.ir.graph import Graph
from litz.ir.program import Decision
from litz.target import Target
from litz.toolchain import Toolchain
from litz.trace import Trace, stage


@stage("autotune", "ways to compute kernels, timed")
def tune(graph: Graph, target: Target, tools: Toolchain, config: Config, trace: Trace) -> Tuning:
    """Run the trials that the flags ask for."""
    gemms = config.max_autotune or config.max_autotune_gemm
    loops = config.max_autotune or config.max_autotune_pointwise or config.coordinate_descent_tuning
    loops |= tools.tuning is not None and tools.tuning.always(config)
    if not gemms and not loops:
        return Tuning()
    reason = _reason_not_to(graph, tools, config)
    if reason is not None:
        refused = Decision("unmet", "max_autotune", f"{graph.kind} graph", reason)
        return Tuning(decisions=(refused,))
    return Tuner(graph, target, tools, config, trace).tuning(gemms, loops)


def _reason_not_to(graph: Graph, tools: Toolchain, config: Config) -> str | None:
    if tools.tuning is None:
        return "nothing is timed on this target"
    if config.deterministic:
        return "no timing may decide about code (deterministic)"
    if any(not isinstance(n, int) for node in graph.nodes for n in _numbers(node)):
        return "sizes are symbolic: what is quickest at one of them need not be so at another"
    return None


def _numbers(node: Node) -> list[Any]:
    """All sizes in a node's value."""
    value = node.meta.get("val")
    tensors = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
    return [value] if isinstance(value, torch.SymInt) else [n for t in tensors for n in t.shape]


__all__ = ["Finding", "Ratio", "Trial", "Tuning", "tune"]
