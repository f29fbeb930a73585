"""Regions: each GEMM of a graph with the rest of its kernel, as a graph of its own.

In: a captured graph and the kernels it becomes. Out: a `Region` for each GEMM. Values read from
outside are inputs of the region. Nodes computed from parameters alone are part of it, so that they
are prepacked as in the whole graph. Equal layers have equal `program_key`s. Example: in a BERT
layer, `addmm` with its GELU is one region with the parameters x1 and x2 and the input x0.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass

import torch
import torch.fx
from torch import Tensor
from torch.fx import Node
from torch.utils import _pytree as pytree

from litz.autotune.fingerprint import digest
from litz.config import Config
from litz.ir.convolution import convolution_of
from litz.ir.gemm import SIDES, gemm_of, gemm_phase, is_direct_mma_operand, is_gemm
from litz.ir.graph import Graph
from litz.ir.program import Extern, Kernel, KernelGraph
from litz.passes.aliasing import viewed_operand
from litz.passes.fold_affine_into_weights import parameter_derived_nodes
from litz.target import Target

aten = torch.ops.aten
# The positions of the two matrices among the operands.
GEMMS = {
    aten.mm.default: (0, 1),
    aten._int_mm.default: (0, 1),
    aten._scaled_mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1),
}

# Ops that select a part of a tensor.
SLICE_OPS = (aten.select.int, aten.slice.Tensor, operator.getitem)


@dataclass(frozen=True)
class GemmSize:
    """`batches` GEMMs of `rows` x `depth` by `depth` x `columns`. `has_epilogue`: its kernel
    computes more. `static_weight`: the right operand comes from parameters. `has_prologue`: the
    kernel could compute its left operand, or either one on a GPU. `has_row_epilogue`: it could
    finish whole rows."""

    batches: int
    rows: int
    depth: int
    columns: int
    dtype: str
    bytes: int
    has_epilogue: bool
    static_weight: bool
    has_prologue: bool = False
    has_row_epilogue: bool = False
    is_convolution: bool = False  # a 1x1 convolution

    def __str__(self) -> str:
        many = f"{self.batches} of " if self.batches > 1 else ""
        size = f"{self.rows} x {self.depth} x {self.columns}"
        what = "convolution" if self.is_convolution else "gemm"
        return f"{what}, {many}{size}, {self.dtype}" + (
            ", with epilogue" if self.has_epilogue else ""
        )

    @property
    def accumulator_copies(self) -> int:
        """How many copies of its sums a GPU's registers hold: with fp8, those of the tensor cores
        and those in f32."""
        return 2 if self.dtype.startswith("float8") else 1

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.rows * self.depth * self.columns


@dataclass(frozen=True)
class Region:
    """`node` is the GEMM's name in the graph that the region was cut out of."""

    node: str
    size: GemmSize
    graph: Graph
    program_key: str  # equal for equal regions


Steps = dict[str, list[Kernel | Extern]]


def regions(
    graph: Graph, kernels: KernelGraph, target: Target, config: Config,
    ours: KernelGraph | None = None,
) -> list[Region]:  # fmt: skip
    """The regions of all GEMMs that are kernels or calls of their own. Where the rules leave GEMMs
    to a library, `ours` are the kernels as they would be without it. The region then has all nodes
    of our kernel, and of the kernels that compute them beside the library's call."""
    steps = _steps_by_node(kernels)
    known = parameter_derived_nodes(graph)
    # The convolutions of a CPU have rules of their own.
    asked = GEMMS.keys() - ({aten.convolution.default} if target.panels else set())
    gemms = {n.name for n in graph.nodes if n.target in asked}
    others = steps if ours is None else _steps_by_node(ours)
    found = []
    for node in graph.nodes:
        own = others[node.name] if node.target in asked else []
        gemm = next((s for s in own if _is_gemm(s, node)), None)
        if gemm is not None:
            # Other steps may contain a part of the node: its bias, added by each reader. And this
            # step may contain a part of another GEMM.
            having = [gemm] if ours is None else own
            names = {o.node for step in having for o in step.origins}
            names -= gemms - {node.name}
            if ours is not None:
                names |= _unfused_nodes(names, steps, gemms - {node.name})
            cut = _Cut(graph, known, steps.keys(), names).graph()
            around = _around(gemm) if target.panels else (_computes(gemm), False)
            size = _size(node, known, len(names) > 1, around)
            if cut is not None and size is not None:
                found.append(Region(node.name, size, cut, f"{_program_key(cut)} {size!r}"))
    return found


def _program_key(graph: Graph) -> str:
    """The ops, their arguments, and the layouts of their results. Which slice of a tensor is read
    does not count: all steps of a recurrence are one task."""
    lines = []
    order = {node: f"%{k}" for k, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        tensors = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
        lies = [(str(t.dtype), tuple(t.shape), t.stride(), str(t.device)) for t in tensors]
        given = torch.fx.node.map_arg((node.args, node.kwargs), order.__getitem__)
        told = str(given[0][0] if node.target in SLICE_OPS else given)
        what = node.target if node.op == "call_function" else node.op
        lines.append(f"{what} {told} {lies} {node.name in graph.static}")
    return digest(*lines)


def _steps_by_node(kernels: KernelGraph) -> Steps:
    """The steps that compute each node."""
    steps: Steps = defaultdict(list)
    for step in kernels.body[kernels.prepack_steps :]:
        for name in dict.fromkeys(o.node for o in step.origins):
            steps[name].append(step)
    return steps


def _unfused_nodes(names: set[str], steps: Steps, gemms: set[str]) -> set[str]:
    """Nodes of the kernels that compute some of these and no other GEMM."""
    beside = [step for name in names for step in steps[name] if isinstance(step, Kernel)]
    nodes = [{o.node for o in step.origins} for step in beside]
    return set[str]().union(*(n for n in nodes if not n & gemms))


def _is_gemm(step: Kernel | Extern, node: Node) -> bool:
    if isinstance(step, Extern):
        return step.target == str(node.target)
    return is_gemm(step)


def _around(step: Kernel | Extern) -> tuple[bool, bool]:
    """Whether row phases come before the GEMM, and after it."""
    place = gemm_phase(step) if isinstance(step, Kernel) else None
    if place is None or not isinstance(step, Kernel):
        return False, False
    return place > 0, place < len(step.phases) - 1


def _computes(step: Kernel | Extern) -> bool:
    """Whether a GEMM on a GPU computes an operand as it loads it."""
    gemm = gemm_of(step) if isinstance(step, Kernel) else None
    return gemm is not None and not all(is_direct_mma_operand(gemm, side) for side in SIDES)


def _size(
    node: Node, known: dict[Node, None], has_epilogue: bool, around: tuple[bool, bool]
) -> GemmSize | None:  # fmt: skip
    """The size, if it is known."""
    left, right = (node.args[k] for k in GEMMS[node.target])
    assert isinstance(left, Node) and isinstance(right, Node)
    dtype = left.meta["val"].dtype
    if node.target is aten.convolution.default:
        shapes = (left.meta["val"].shape, right.meta["val"].shape, node.meta["val"].shape)
        if not all(isinstance(n, int) for shape in shapes for n in shape):
            return None
        conv = convolution_of(*shapes, *node.args[3:])
        if not conv.is_pointwise:
            return None
        batch, rows, depth, columns = [], conv.places, conv.channels, conv.results
    else:
        *batch, rows, depth = left.meta["val"].shape
        columns = right.meta["val"].shape[-1]
    if not all(isinstance(n, int) for n in (*batch, rows, depth, columns)):
        return None
    name = str(dtype).removeprefix("torch.")
    return GemmSize(batch[0] if batch else 1, rows, depth, columns, name, dtype.itemsize,
    has_epilogue,
                right in known, *around, node.target is aten.convolution.default)  # fmt: skip


def _holds_tensors(node: Node) -> bool:
    """Whether the value is a tensor, or several, as of var_mean."""
    value = node.meta.get("val")
    several = value if isinstance(value, (tuple, list)) else (value,)
    return all(isinstance(v, torch.Tensor) for v in several)


class _Cut:
    """Copies some nodes of a graph, and those they need, into a graph of their own."""

    def __init__(
        self, graph: Graph, known: dict[Node, None], computed: object, names: set[str]
    ) -> None:
        self.whole, self.known = graph, known
        self.inside = self._inside(names, set(computed))  # type: ignore[call-overload]
        self.made = torch.fx.Graph()
        self.copies: dict[Node, Node] = {}
        self.static: set[str] = set()

    def _inside(self, names: set[str], computed: set[str]) -> dict[Node, None]:
        """The named nodes, and the views between them, which no step computes."""
        wanted: dict[Node, None] = {}
        for node in reversed(self.whole.nodes):
            views = node.name not in computed and viewed_operand(node) is not None
            between = views and any(user in wanted for user in node.users)
            if node.op == "call_function" and (node.name in names or between):
                wanted[node] = None
        found: dict[Node, None] = {}
        for node in reversed(wanted):
            if node.name in names or any(n in found for n in node.all_input_nodes):
                found[node] = None
        return found

    def graph(self) -> Graph | None:
        """The copy; None if it contains a value that is not a plain tensor."""
        if not all(map(_holds_tensors, self.inside)):
            return None
        if any(n.target is aten.copy_.default for n in self.inside):
            return None
        outputs = [n for n in self.inside if any(u not in self.inside for u in n.users)]
        if not all(isinstance(n.meta["val"], torch.Tensor) for n in outputs):
            return None
        for node in self.inside:
            self._copy(node)
        self.made.output(tuple(self.copies[n] for n in outputs))
        module = torch.fx.GraphModule(torch.nn.Module(), self.made)
        return Graph(module, "inference", static=frozenset(self.static))

    def _copy(self, node: Node) -> Node:
        if node in self.copies:
            return self.copies[node]
        along = node in self.inside or (node in self.known and node.op == "call_function")
        if along:
            for operand in node.all_input_nodes:
                self._copy(operand)
            made = self.made.node_copy(node, self.copies.__getitem__)
        else:
            made = self._input(node)
        self.copies[node] = made
        return made

    def _input(self, node: Node) -> Node:
        """A placeholder, before all other nodes, with a name independent of the whole graph."""
        places = [n for n in self.made.nodes if n.op == "placeholder"]
        first = next((n for n in self.made.nodes if n.op != "placeholder"), self.made._root)
        with self.made.inserting_before(first):
            made = self.made.placeholder(f"x{len(places)}")
        made.meta = {"val": node.meta["val"]}
        if node in self.known:
            self.static.add(made.name)
        return made
