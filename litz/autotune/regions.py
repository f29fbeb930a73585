"""Regions: each matrix product of a graph with what its kernel does besides, as a graph of its own.

In: a captured graph and the kernels it becomes. Out: a `Region` for each product. What a region
reads from outside is an input of it; what is made of parameters alone comes along, so that
it is packed as in the whole. Equal layers have equal `mark`s. Example: of a BERT layer, `addmm`
with the GELU behind it is one region with the parameters x1 and x2 and the input x0.
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
from litz.ir.graph import Graph
from litz.ir.product import SIDES, is_gemm, is_stored, product_of, product_phase
from litz.ir.program import Extern, Kernel, KernelGraph
from litz.passes.aliasing import viewed_operand
from litz.passes.fold_channel_factors import of_parameters
from litz.target import Target

aten = torch.ops.aten
# Where the two matrices stand among the operands.
PRODUCTS = {
    aten.mm.default: (0, 1),
    aten._int_mm.default: (0, 1),
    aten._scaled_mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.convolution.default: (0, 1),
}

# Ops that show a part of a tensor.
SLICES = (aten.select.int, aten.slice.Tensor, operator.getitem)


@dataclass(frozen=True)
class Size:
    """A product of `rows` x `depth` by `depth` x `columns`, `batches` of them. `follows` says
    whether its kernel does more; `kept`, whether the right operand is made of parameters;
    `prepares` and `finishes`, whether it could make its left operand, or either one on a GPU, and
    finish whole rows."""

    batches: int
    rows: int
    depth: int
    columns: int
    dtype: str
    bytes: int
    follows: bool
    kept: bool
    prepares: bool = False
    finishes: bool = False
    convolved: bool = False  # a convolution of single places

    def __str__(self) -> str:
        many = f"{self.batches} of " if self.batches > 1 else ""
        size = f"{self.rows} x {self.depth} x {self.columns}"
        what = "convolution" if self.convolved else "product"
        return f"{what}, {many}{size}, {self.dtype}" + (", with more" if self.follows else "")

    @property
    def held(self) -> int:
        """How often a GPU's registers hold its sums: those of floats of eight bits as tensor cores
        make them, and as they are kept."""
        return 2 if self.dtype.startswith("float8") else 1

    @property
    def flops(self) -> int:
        return 2 * self.batches * self.rows * self.depth * self.columns


@dataclass(frozen=True)
class Region:
    """`node` is the product's name in the graph that the region was cut out of."""

    node: str
    size: Size
    graph: Graph
    mark: str  # what makes two of them equal


Steps = dict[str, list[Kernel | Extern]]


def regions(
    graph: Graph, kernels: KernelGraph, target: Target, config: Config,
    ours: KernelGraph | None = None,
) -> list[Region]:  # fmt: skip
    """Those of all products that are kernels or calls of their own. Where the rules leave products
    to a library, `ours` are the kernels as they would be without it: what a kernel of ours takes in
    is part of the region, and so are the kernels that do it otherwise."""
    steps = _steps_by_node(kernels)
    known = of_parameters(graph)
    # A CPU's convolutions have rules of their own.
    asked = PRODUCTS.keys() - ({aten.convolution.default} if target.panels else set())
    products = {n.name for n in graph.nodes if n.target in asked}
    others = steps if ours is None else _steps_by_node(ours)
    found = []
    for node in graph.nodes:
        own = others[node.name] if node.target in asked else []
        product = next((s for s in own if _is_product(s, node)), None)
        if product is not None:
            # Others may have a part of the node, too: its bias, added by each who reads it. So
            # may this step have a part of another product.
            having = [product] if ours is None else own
            names = {o.node for step in having for o in step.origins}
            names -= products - {node.name}
            if ours is not None:
                names |= _done_otherwise(names, steps, products - {node.name})
            cut = _Cut(graph, known, steps.keys(), names).graph()
            around = _around(product) if target.panels else (_computes(product), False)
            size = _size(node, known, len(names) > 1, around)
            if cut is not None and size is not None:
                found.append(Region(node.name, size, cut, f"{_mark(cut)} {size!r}"))
    return found


def _mark(graph: Graph) -> str:
    """The ops, what they are told, and how their results lie. Which slice of a tensor is read does
    not count: the steps of a recurrence ask one question."""
    lines = []
    order = {node: f"%{k}" for k, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        tensors = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, Tensor)]
        lies = [(str(t.dtype), tuple(t.shape), t.stride(), str(t.device)) for t in tensors]
        given = torch.fx.node.map_arg((node.args, node.kwargs), order.__getitem__)
        told = str(given[0][0] if node.target in SLICES else given)
        what = node.target if node.op == "call_function" else node.op
        lines.append(f"{what} {told} {lies} {node.name in graph.static}")
    return digest(*lines)


def _steps_by_node(kernels: KernelGraph) -> Steps:
    """The steps that compute each node."""
    steps: Steps = defaultdict(list)
    for step in kernels.body[kernels.prepared :]:
        for name in dict.fromkeys(o.node for o in step.origins):
            steps[name].append(step)
    return steps


def _done_otherwise(names: set[str], steps: Steps, products: set[str]) -> set[str]:
    """Nodes of the kernels that have a part of these and no other product."""
    beside = [step for name in names for step in steps[name] if isinstance(step, Kernel)]
    nodes = [{o.node for o in step.origins} for step in beside]
    return set[str]().union(*(n for n in nodes if not n & products))


def _is_product(step: Kernel | Extern, node: Node) -> bool:
    if isinstance(step, Extern):
        return step.target == str(node.target)
    return is_gemm(step)


def _around(step: Kernel | Extern) -> tuple[bool, bool]:
    """Whether phases of rows come before the product, and behind it."""
    place = product_phase(step) if isinstance(step, Kernel) else None
    if place is None or not isinstance(step, Kernel):
        return False, False
    return place > 0, place < len(step.phases) - 1


def _computes(step: Kernel | Extern) -> bool:
    """Whether a GPU's product computes an operand as it reads it."""
    product = product_of(step) if isinstance(step, Kernel) else None
    return product is not None and not all(is_stored(product, side) for side in SIDES)


def _size(
    node: Node, known: dict[Node, None], follows: bool, around: tuple[bool, bool]
) -> Size | None:  # fmt: skip
    """The size, if it is known."""
    left, right = (node.args[k] for k in PRODUCTS[node.target])
    assert isinstance(left, Node) and isinstance(right, Node)
    dtype = left.meta["val"].dtype
    if node.target is aten.convolution.default:
        shapes = (left.meta["val"].shape, right.meta["val"].shape, node.meta["val"].shape)
        if not all(isinstance(n, int) for shape in shapes for n in shape):
            return None
        conv = convolution_of(*shapes, *node.args[3:])
        if not conv.is_single:
            return None
        batch, rows, depth, columns = [], conv.places, conv.channels, conv.results
    else:
        *batch, rows, depth = left.meta["val"].shape
        columns = right.meta["val"].shape[-1]
    if not all(isinstance(n, int) for n in (*batch, rows, depth, columns)):
        return None
    name = str(dtype).removeprefix("torch.")
    return Size(batch[0] if batch else 1, rows, depth, columns, name, dtype.itemsize, follows,
                right in known, *around, node.target is aten.convolution.default)  # fmt: skip


def _holds_tensors(node: Node) -> bool:
    """A tensor, or several, as of var_mean."""
    value = node.meta.get("val")
    several = value if isinstance(value, (tuple, list)) else (value,)
    return all(isinstance(v, torch.Tensor) for v in several)


class _Cut:
    """Copies some nodes of a graph, and what they need, into a graph of their own."""

    def __init__(
        self, graph: Graph, known: dict[Node, None], computed: object, names: set[str]
    ) -> None:
        self.whole, self.known = graph, known
        self.inside = self._inside(names, set(computed))  # type: ignore[call-overload]
        self.made = torch.fx.Graph()
        self.copies: dict[Node, Node] = {}
        self.static: set[str] = set()

    def _inside(self, names: set[str], computed: set[str]) -> dict[Node, None]:
        """The named nodes, and views between them, which no step computes."""
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
        """The copy; None if it holds something that is no plain tensor."""
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
        """A placeholder, before all else, under a name that says nothing of the whole graph."""
        places = [n for n in self.made.nodes if n.op == "placeholder"]
        first = next((n for n in self.made.nodes if n.op != "placeholder"), self.made._root)
        with self.made.inserting_before(first):
            made = self.made.placeholder(f"x{len(places)}")
        made.meta = {"val": node.meta["val"]}
        if node in self.known:
            self.static.add(made.name)
        return made
