"""The partitioner: cuts the joint graph of a training step into a forward and a backward.

In: AOTAutograd's joint graph. Out: two modules. Each value that the backward needs is saved, or
recomputed from saved ones, whichever is cheaper. The cheapest choice is a minimum cut. Each value
is a pair of vertices:

    source --again--> in --keep--> out --> in of its users, or the sink if the backward uses it

An edge is cut if it runs from the source's side to the sink's: `keep` if the value is saved,
`again` if it is recomputed in the backward. Matmuls are never recomputed, except where
`torch.utils.checkpoint` asks for it or `activation_memory_budget` is below 1. Random numbers never
are (`seed_random_ops` makes those that a checkpoint recomputes functions of a seed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch import config as functorch
from torch._functorch.partitioners import (
    _extract_fwd_bwd_modules,
    reordering_to_mimic_autograd_engine,
)
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from litz.passes.aliasing import viewed_operand, written_operands
from litz.passes.mark_half_roundings import mark_recomputed_roundings
from litz.passes.min_cut import INFINITE, Network
from litz.passes.purity import has_effect, is_repeatable
from litz.passes.recompute import (
    bytes_of,
    fused_recompute_cost,
    is_loop,
    is_marked_recompute,
    is_random,
    is_view,
    policy,
    recompute_cost,
)

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
# More bytes than any program moves: saved only if there is no other cut.
LAST_RESORT = 1e15
# Trial cuts in the search for one that fits a memory budget.
TRIALS = 16


def cut_joint_graph(
    joint: GraphModule, forward_outputs: int, static: Iterable[int] = ()
) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward module; `static` are the inputs that outlive the step anyway."""
    graph = _Joint(joint, forward_outputs, static)
    _keep_between_checkpoints(graph.nodes)
    graph.settle_effects()
    saved = graph.choose(_budget(graph.nodes))
    sizes = [n for n in saved if isinstance(n.meta.get("val"), SYMBOLIC)]
    tensors = [n for n in saved if not isinstance(n.meta.get("val"), SYMBOLIC)]
    forward, backward = _extract_fwd_bwd_modules(
        joint, tensors, saved_sym_nodes=sizes, num_fwd_outputs=forward_outputs
    )
    mark_recomputed_roundings(forward, backward)
    # A recomputed value comes right before its first use, not at the start.
    return forward, reordering_to_mimic_autograd_engine(backward)


@dataclass(frozen=True)
class _Cost:
    keep: float
    again: float


class _Joint:
    """The joint graph, and which side each node belongs to."""

    def __init__(self, joint: GraphModule, forward_outputs: int, static: Iterable[int]) -> None:
        *self.nodes, output = joint.graph.nodes
        results: Sequence[Any] = output.args[0]  # type: ignore[assignment]
        primals = [n for n in self.nodes if n.op == "placeholder" and "tangents" not in n.name]
        self.static = {primals[k] for k in static}
        self.written = {w for n in self.nodes for w in written_operands(n)}
        self.written.update(_written_behind(primals, output))
        for node in self.nodes:
            if viewed_operand(node) in self.written:  # a view of written memory
                self.written.add(node)
        self.wanted = {n for n in results[forward_outputs:] if isinstance(n, Node)}
        shown = {n for n in results[:forward_outputs] if isinstance(n, Node)}
        self.forward = _ancestors(shown, self.nodes)
        self.backward: set[Node] = set()
        for node in self.nodes:
            if _starts_backward(node) or self.backward.intersection(node.all_input_nodes):
                self.backward.add(node)
        self.compared = set(_compared(self.nodes))
        self.read_in_forward = shown | self._materialized(lambda user: user in self.forward)
        self.read_in_backward = self._materialized(lambda user: user in self.backward)

    def settle_effects(self) -> None:
        """An op with a side effect runs once, on the side where eager runs it. The ops of a
        checkpointed region run again, as in eager."""
        for node in filter(has_effect, self.nodes):
            again = is_marked_recompute(node) and not is_random(node)
            if not again and not str(node.meta.get("partitioner_tag")).startswith("must_be_in_"):
                side = "backward" if node in self.backward else "forward"
                node.meta["partitioner_tag"] = f"must_be_in_{side}"

    def _materialized(self, among: Callable[[Node], bool]) -> set[Node]:
        """Nodes that an op other than a loop reads, directly or through views."""
        found: set[Node] = set()
        for node in reversed(self.nodes):
            for user in node.users:
                seen = user in found if is_view(user) else among(user) and not is_loop(user)
                if seen and user.op != "output":
                    found.add(node)
        return found

    def choose(self, budget: float) -> list[Node]:
        """The values to save, in order: the cheapest cut that fits the budget."""
        best = self._cut(fused_recompute_cost, 1.0)
        if budget >= 1 or self._size(best) == 0:
            return best
        most, low, high = budget * self._size(best), 0.0, 20.0
        best = self._cut(recompute_cost, 2.0**high)
        for _ in range(TRIALS):
            weight = (low + high) / 2
            trial = self._cut(recompute_cost, 2.0**weight)
            if self._size(trial) <= most:
                best, high = trial, weight
            else:
                low = weight
        return best

    def _size(self, saved: list[Node]) -> int:
        kept = (n for n in saved if n.op != "placeholder")
        return sum(bytes_of(n.meta.get("val")) for n in kept)

    def _cut(self, effort_of: Callable[[Node], float], weight: float) -> list[Node]:
        """The cheapest cut if each saved byte counts `weight` times."""
        network = Network()
        source, sink = network.add_vertex(), network.add_vertex()
        middle = [n for n in self.nodes if n not in self.backward]
        enter = {n: network.add_vertex() for n in middle}
        leave = {n: network.add_vertex() for n in middle}
        for node in middle:
            cost = self._cost(node, effort_of)
            network.add_edge(source, enter[node], cost.again)
            network.add_edge(enter[node], leave[node], cost.keep * weight)
            if node in self.wanted or self.backward.intersection(node.users):
                network.add_edge(leave[node], sink, INFINITE)
            for user in node.users:
                if user in enter:
                    network.add_edge(leave[node], enter[user], INFINITE)
        later = network.sink_side(source, sink)
        return [n for n in middle if enter[n] not in later and leave[n] in later]

    def _cost(self, node: Node, effort_of: Callable[[Node], float]) -> _Cost:
        value = node.meta.get("val")
        if node.op == "get_attr":  # both graphs hold it
            return _Cost(INFINITE, 0)
        if node.op == "placeholder":
            if node in self.written:  # the backward would see the value after the write
                return _Cost(LAST_RESORT, INFINITE)
            return _Cost(0 if node in self.static else max(bytes_of(value), 1), INFINITE)
        if node in self.written and isinstance(value, torch.Tensor):
            return _Cost(LAST_RESORT, INFINITE)
        if is_marked_recompute(node) and not is_random(node):  # a second draw gives other numbers
            return _Cost(INFINITE, 0)
        again = self._again(node, effort_of)
        if policy(node) is CheckpointPolicy.MUST_SAVE and isinstance(value, torch.Tensor):
            return _Cost(0, again)
        if isinstance(value, torch.SymInt) or (isinstance(value, SYMBOLIC) and again == INFINITE):
            return _Cost(bytes_of(value), again)
        if not isinstance(value, torch.Tensor) or (is_view(node) and again == 0):
            return _Cost(INFINITE, again)  # its items, its numbers or its base are saved instead
        # A value made by an op that is no loop, or read by one in the forward, is in memory anyway.
        moves = 1 if node in self.read_in_forward or not is_loop(node) else 2
        return _Cost(moves * bytes_of(value), again)

    def _again(self, node: Node, effort_of: Callable[[Node], float]) -> float:
        """The cost of recomputing a value; 0 if only the backward needs it."""
        if policy(node) in (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE):
            return INFINITE
        if not is_repeatable(node) or self.written.intersection(node.all_input_nodes):
            return INFINITE
        if node in self.compared:
            return INFINITE
        if node not in self.forward:
            return 0.0
        extra = 2 * bytes_of(node.meta.get("val")) if node in self.read_in_backward else 0
        return effort_of(node) + (0 if is_view(node) else extra)


def _compared(nodes: list[Node]) -> Iterable[Node]:
    """Floats that are compared for equality, as in the gradient of a maximum. Both sides must have
    the same bits: a second computation may round differently."""
    for node in nodes:
        if getattr(node.target, "overloadpacket", None) in (torch.ops.aten.eq, torch.ops.aten.ne):
            floats = [n for n in node.all_input_nodes if _is_float(n)]
            for side in floats if len(floats) > 1 else ():
                while is_view(side):
                    side = side.all_input_nodes[0]
                yield side


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _written_behind(primals: list[Node], output: Node) -> Iterable[Node]:
    """The inputs that AOTAutograd writes after the forward, by the results' descriptors."""
    results = (getattr(d, "mutated_input", None) for d in output.meta.get("desc", ()))
    names = [result for result in results if result is not None]
    return [n for n in primals if n.meta.get("desc") in names]


def _starts_backward(node: Node) -> bool:
    tag = node.meta.get("partitioner_tag")
    if tag == "must_be_in_backward" or (node.op == "placeholder" and "tangents" in node.name):
        return True
    return tag == "is_backward" and node.op == "call_function" and not is_repeatable(node)


def _ancestors(ends: set[Node], nodes: list[Node]) -> set[Node]:
    """The nodes that `ends` are computed from, and forward ops that write into memory."""
    found = set(ends)
    for node in reversed(nodes):
        if node in found or (written_operands(node) and not _starts_backward(node)):
            found.update((node, *node.all_input_nodes))
    return found


def _keep_between_checkpoints(nodes: list[Node]) -> None:
    """Where one checkpointed region follows another, the value between them is saved.

    So is a region's result with a gradient hook: the hook runs before the region is recomputed.
    """
    for node in filter(is_marked_recompute, nodes):
        region = node.meta.get("ac_graph_id", 0)
        again = [user for user in node.users if is_marked_recompute(user)]
        hooked = node.meta.get("has_backward_hook", False) and not again
        if hooked or any(user.meta.get("ac_graph_id", 0) > region for user in again):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _budget(nodes: list[Node]) -> float:
    """Torch's setting, from 0 (save only the inputs) to 1 (save what pays)."""
    marked = (n.meta["memory_budget"] for n in nodes if "memory_budget" in n.meta)
    return float(next(marked, functorch.activation_memory_budget))
