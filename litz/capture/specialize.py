"""Specialise a symbolic graph to the sizes of one call.

In: the FX module that AOTAutograd made with symbolic sizes, and the arguments of a call. Out: a
module whose inputs are tensors alone, with every size a number. Example: `view(x, [s0, 768])` with
s0 = 4 becomes `view(x, [4, 768])`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from litz.errors import SizeUnknown, UnsupportedOp
from litz.ir.calls import ASSERT_OPS
from litz.ir.graph import at_path, origin_of

aten = torch.ops.aten
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(module: torch.fx.GraphModule) -> bool:
    """Whether a size of the graph is only known when it is called."""
    nodes = module.graph.nodes
    has_unbacked = any(n.meta.get("unbacked_bindings") for n in nodes)
    return has_unbacked or any(
        isinstance(n.meta.get("val"), SYMBOLIC) for n in nodes if n.op == "placeholder"
    )


def has_unbacked_sizes(module: torch.fx.GraphModule) -> bool:
    """Whether the graph has unbacked sizes, its own or those of the graph before it."""
    nodes = module.graph.nodes
    values = (n.meta.get("val") for n in nodes if n.op == "placeholder")
    return any(n.meta.get("unbacked_bindings") for n in nodes) or any(
        free_unbacked_symbols(v) for v in values if isinstance(v, (torch.Tensor, *SYMBOLIC))
    )


@contextmanager
def forbid_new_guards(module: torch.fx.GraphModule) -> Iterator[None]:
    """While a graph is compiled for all sizes, a question whose answer depends on the size is an
    error: torch would answer it for the example sizes, with or without a guard."""
    environment = next(_environments(module), None)
    if environment is None:
        yield
        return
    frozen = getattr(environment, "error_on_new_guards", None)
    with frozen() if frozen is not None else _refusing(environment):
        yield


@contextmanager
def _refusing(environment: Any) -> Iterator[None]:
    """The same for torch before 2.13, which calls this method before it guards, and goes on."""

    def refuse(expression: object, _: object) -> None:
        raise SizeUnknown("of any tensor", f"it decides about {expression}")

    environment._check_frozen = refuse
    try:
        yield
    finally:
        del environment._check_frozen  # uncovers the class's own method


def _environments(module: torch.fx.GraphModule) -> Iterator[Any]:
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, SYMBOLIC):
            yield value.node.shape_env
        elif isinstance(value, FakeTensor) and any(isinstance(n, SYMBOLIC) for n in value.shape):
            yield value.fake_mode.shape_env


# The ops by which a graph uses memory that several of its inputs share.
STORAGE_VIEW_OPS = (aten.as_strided.default, aten.as_strided_scatter.default, aten.copy_.default)


def synthetic_bases_of(module: torch.fx.GraphModule, kind: str) -> tuple[int, ...]:
    """Positions of synthetic bases. Where inputs share memory and one of them is written to, torch
    passes that memory whole, and the graph reads and writes it through windows. Dynamo guards only
    the windows, so the next call may bring more or less memory. A backward may get a base from its
    forward, as it was after a write."""
    places = [n for n in module.graph.nodes if n.op == "placeholder"]
    return tuple(k for k, node in enumerate(places) if _is_synthetic_base(node, kind == "backward"))


def _is_synthetic_base(node: torch.fx.Node, saved: bool) -> bool:
    value, used = node.meta.get("val"), [user.target for user in node.users]
    return (
        isinstance(value, torch.Tensor)
        and all(isinstance(n, int) for n in value.shape)
        and (aten.as_strided.default if saved else aten.as_strided_scatter.default) in used
        and all(u.target in STORAGE_VIEW_OPS and u.args[0] is node for u in node.users)
    )


def specialization_key(args: Sequence[Any], bases: Sequence[int] = ()) -> tuple[Any, ...]:
    """The key of a call: its arguments that are numbers, and the layouts of `bases`."""
    numbers = (a for a in args if not isinstance(a, torch.Tensor))
    return (*numbers, *((args[k].shape, args[k].stride()) for k in bases))


def specialize(module: torch.fx.GraphModule, args: Sequence[Any]) -> torch.fx.GraphModule:
    """Walk the graph once with fake tensors of the real sizes."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fixed = torch.fx.Graph()
    known: dict[torch.fx.Node, Any] = {}  # concrete values: fake tensors and numbers
    moved: dict[torch.fx.Node, torch.fx.Node] = {}
    given = iter(args)
    with mode:
        for node in module.graph.nodes:
            if node.op == "output":
                fixed.output(_moved(node.args[0], known, moved))
            elif node.op == "placeholder":
                known[node] = _fake(mode, next(given))
            elif node.op == "get_attr":
                known[node] = _fake(mode, at_path(module, str(node.target)))
            else:
                known[node] = _computed(node, known)
            if node.op != "output" and (_holds_tensor(known[node]) or _is_only_run(node, known)):
                moved[node] = fixed.create_node(
                    node.op, node.target, _moved(node.args, known, moved),
                    _moved(node.kwargs, known, moved), node.name,
                )  # fmt: skip
                moved[node].meta = {**node.meta, "val": known[node]}
    return _LazyGraphModule(module, fixed)  # keeps the tensors that the graph reads; can be run


def _fake(mode: FakeTensorMode, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return mode.from_tensor(value, static_shapes=True)
    return value


def _computed(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: known[n])
    try:
        return node.target(*args, **kwargs)  # type: ignore[operator]
    except RuntimeError as error:
        why = f"its sizes depend on data ({type(error).__name__})"
        raise UnsupportedOp(str(node.target), origin_of(node), why) from error


def _is_only_run(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> bool:
    """Whether a call returns nothing, and so is there for its side effect."""
    is_call = isinstance(node.target, OpOverload) and str(node.target) not in ASSERT_OPS
    return is_call and (known[node] is None or known[node] == ())


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_holds_tensor(v) for v in value)
    return isinstance(value, FakeTensor)


def _moved(tree: Any, known: dict[torch.fx.Node, Any], moved: dict[torch.fx.Node, Any]) -> Any:
    """Arguments for the new graph: tensors by node, sizes as numbers."""
    return torch.fx.node.map_arg(tree, lambda n: moved[n] if n in moved else known[n])
