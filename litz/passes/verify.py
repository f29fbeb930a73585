"""The invariants of passes, checked after each of them.

In: a `Graph` before a pass and after it. Out: nothing, or a `VerifyError` that names the node, its
line and the broken invariant. Unchanged nodes cost a comparison; the others are recomputed with
fake tensors. Example: a multiplication that lost a dimension of one fails with
`sum_1 is noted as float32[7, 32], but is float32[32]`.

    order     a node comes after its operands
    results   as many as before, each with its dtype, device, shape, strides and offset
    memory    results alias each other and inputs as before; the same inputs are written to
    values    a node's fake value is what its op returns: dtype, device and shape. A view's strides
              and offset, too; the strides of a tensor that owns its memory are ours to choose
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DynamicOutputShapeException, UnsupportedOperatorException
from torch.fx import Node
from torch.fx.experimental import symbolic_shapes
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from litz.errors import SizeUnknown, VerifyError
from litz.ir.graph import Graph, origin_of
from litz.ir.program import HOST
from litz.passes.aliasing import viewed_operand, written_operands
from litz.passes.layout import is_static
from litz.passes.merge_common_subexpressions import key_of

# Raised where torch has no answer for fake tensors, or none that holds for all sizes.
_UNANSWERED: tuple[type[Exception], ...] = (
    DynamicOutputShapeException,  # the size is the number of true elements of a constant mask
    UnsupportedOperatorException,
    NotImplementedError,
    symbolic_shapes.GuardOnDataDependentSymNode,
    getattr(symbolic_shapes, "_ShapeEnvGuardError", SizeUnknown),  # not before torch 2.13
    SizeUnknown,
)
_CHECKED = ("aten", "prims", "litz")


class GraphInvariants:
    """A snapshot of a graph, to compare with the graph after the next pass."""

    def __init__(self, graph: Graph) -> None:
        self._known: dict[Any, Any] = {}  # results of ops, by the metadata of their operands
        self._note(graph)

    def _note(self, graph: Graph) -> None:
        nodes = graph.nodes
        self._nodes = {n: (n.target, n.args, n.kwargs, n.meta.get("val")) for n in nodes}
        self._results = _results(nodes)
        self._shared = _sharing(nodes, self._results)
        self._values = [_value(r) for r in self._results]

    def check(self, graph: Graph) -> None:
        """Raise if an invariant broke since the last snapshot; then take a new one."""
        nodes = graph.nodes
        changed = [n for n in nodes if self._is_changed(n)]
        if not changed and nodes == list(self._nodes):
            return
        before, values, shared = self._nodes, self._values, self._shared
        self._note(graph)
        _check_results(values, self._results)
        if shared != self._shared:
            raise VerifyError(f"results share memory otherwise: {shared} became {self._shared}")
        renewed = [n for n in changed if n not in before or before[n][3] is not n.meta.get("val")]
        again = {*changed, *(user for node in renewed for user in node.users)}
        check_values(graph, [n for n in nodes if n in again], self._known)

    def _is_changed(self, node: Node) -> bool:
        before = self._nodes.get(node)
        now = (node.target, node.args, node.kwargs, node.meta.get("val"))
        return before is None or any(a is not b for a, b in zip(before, now, strict=True))


def check_values(graph: Graph, nodes: list[Node], known: dict[Any, Any]) -> None:
    """Recompute nodes, and compare their fake values with the results."""
    mode: Any = detect_fake_mode([n.meta["val"] for n in graph.nodes if "val" in n.meta])
    if mode is None:
        return
    with mode, _without_guards(mode):
        for node in nodes:
            if node.op == "get_attr" and "val" in node.meta:
                held = graph.attributes.get(str(node.target))
                if isinstance(held, torch.Tensor):
                    _compare(node, node.meta["val"], held, _same_addresses)
            elif _is_checked(node):
                _check_value(node, known)


def _check_value(node: Node, known: dict[Any, Any]) -> None:
    key = (node.target, _key(node.args), _key(node.kwargs))
    if key not in known:
        try:
            args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: n.meta["val"])
            known[key] = node.target(*args, **kwargs)  # type: ignore[operator]
        except _UNANSWERED:
            return
        except Exception as error:
            raise VerifyError(f"{_named(node)} cannot be computed: {error}") from error
    is_view = viewed_operand(node) is not None
    _compare(node, node.meta["val"], known[key], _same_addresses if is_view else _is_like)


def _key(value: Any) -> Any:
    """An operand by its metadata, as a dictionary key."""
    if isinstance(value, Node):
        value = value.meta["val"]
        plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
        # The last of many rows has a symbolic offset, though its own sizes are numbers.
        if not plain or not is_static(value) or not isinstance(value.storage_offset(), int):
            return object()  # equal to nothing else
        place = (value.stride(), value.storage_offset(), value.is_conj(), value.is_neg())
        return value.dtype, value.device, value.shape, *place
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    if isinstance(value, dict):
        return tuple((name, _key(item)) for name, item in value.items())
    return key_of(value)


def _is_checked(node: Node) -> bool:
    """Whether a node is an op whose operands all have fake values, and which binds no size."""
    if not isinstance(node.target, OpOverload) or node.target.namespace not in _CHECKED:
        return False
    known = all("val" in n.meta for n in (node, *node.all_input_nodes))
    return known and not node.meta.get("unbacked_bindings")


def _without_guards(mode: Any) -> AbstractContextManager[Any]:
    """Questions about sizes that are asked here add no guards."""
    return nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards()


def _compare(node: Node, noted: Any, found: Any, agree: Callable[[Any, Any], bool]) -> None:
    several, given = _tensors(noted), _tensors(found)
    pairs = zip(several, given, strict=False)
    # A gradient that nobody asked for is None.
    same = all(agree(a, b) for a, b in pairs if a is not None and b is not None)
    if len(several) != len(given) or not same:
        raise VerifyError(f"{_named(node)} is noted as {_shown(noted)}, but is {_shown(found)}")


def _is_like(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype is b.dtype and a.device == b.device and _may_be_equal(a.shape, b.shape)


def _same_addresses(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether offset and strides are equal; strides of dimensions of size one are ignored."""
    if not _is_like(a, b):
        return False
    if any(isinstance(n, int) and n == 0 for n in a.shape):
        return True
    longer = [d for d, n in enumerate(a.shape) if not (isinstance(n, int) and n == 1)]
    places = ([t.storage_offset(), *(t.stride(d) for d in longer)] for t in (a, b))
    return _may_be_equal(*places)


def _same_strides(a: torch.Tensor, b: torch.Tensor) -> bool:
    return _same_addresses(a, b) and _may_be_equal(a.stride(), b.stride())


def _tensors(value: Any) -> list[Any]:
    leaves = pytree.tree_leaves(value, is_leaf=lambda leaf: leaf is None)
    return [leaf for leaf in leaves if leaf is None or isinstance(leaf, torch.Tensor)]


def _may_be_equal(a: Any, b: Any) -> bool:
    """True unless some pair of sizes is known to differ."""
    return len(a) == len(b) and not any(map(_differs, a, b))


def _differs(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    difference = _expression(a) - _expression(b)
    return bool(difference.is_number) and difference != 0


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else symbolic_shapes.sympy.Integer(size)


# -- results -------------------------------------------------------------------------------------


def _results(nodes: list[Node]) -> list[Any]:
    given: Any = nodes[-1].args[0]
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _value(result: Any) -> Any:
    return result.meta.get("val") if isinstance(result, Node) else result


def _check_results(before: list[Any], results: list[Any]) -> None:
    if len(before) != len(results):
        raise VerifyError(f"{len(before)} results became {len(results)}")
    for k, (value, result) in enumerate(zip(before, results, strict=True)):
        if isinstance(value, torch.Tensor):
            now = _value(result)
            if not isinstance(now, torch.Tensor):
                raise VerifyError(f"result {k} was {_shown(value)}, and is {_shown(now)}")
            _compare(result, now, value, _same_strides)
        elif isinstance(result, Node) and isinstance(_value(result), torch.Tensor):
            raise VerifyError(f"result {k} was {value}, and is {_shown(_value(result))}")


def _sharing(nodes: list[Node], results: list[Any]) -> tuple[list[Any], list[str]]:
    """For each result, the input or first result whose memory it shares; and the written inputs."""
    roots: dict[Node, Root] = {}
    written: list[str] = []
    for node in nodes:
        early = [n.name for n in node.all_input_nodes if n not in roots]
        if early:
            raise VerifyError(f"{_named(node)} stands before what it reads: {', '.join(early)}")
        roots[node] = _root(node, roots)
        places = [roots[n][0] for n in written_operands(node)]
        written += [place.name for place in places if place.op == "placeholder"]
    first: dict[Root, Any] = {}
    for k, root in enumerate(roots[r] for r in results if isinstance(r, Node)):
        first.setdefault(root, root[0].name if root[0].op == "placeholder" else k)
    shared = [first[roots[r]] if isinstance(r, Node) else None for r in results]
    return shared, sorted(written)


Root = tuple[Node, Any]  # the node that owns the memory, and which of its results


def _root(node: Node, roots: dict[Node, Root]) -> Root:
    source = viewed_operand(node)
    if source is None:
        return node, None
    several = node.target is operator.getitem and viewed_operand(source) is None
    return (source, node.args[1]) if several else roots[source]


# -- words ---------------------------------------------------------------------------------------


def _named(node: Node) -> str:
    return f"{node.name} ({origin_of(node)})" if isinstance(node, Node) else str(node)


def _shown(value: Any) -> str:
    """`float32[2, 3] by (3, 1) from 0`."""
    return ", ".join(_words(t) for t in _tensors(value)) or str(value)


def _words(value: torch.Tensor | None) -> str:
    if value is None:
        return "nothing"
    kind = str(value.dtype).removeprefix("torch.")
    place = "" if value.device.type == HOST else f" on {value.device}"
    strides = ", ".join(map(str, value.stride()))
    return f"{kind}{list(value.shape)}{place} by ({strides}) from {value.storage_offset()}"
