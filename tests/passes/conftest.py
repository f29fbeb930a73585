"""Real graphs for the tests of passes: captured by AOTAutograd, printed small, compared whole."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch._functorch.aot_autograd import aot_function

from litz.capture.decompositions import decompositions
from litz.config import Config
from litz.ir.graph import Graph
from litz.passes import optimize
from litz.passes.verify import check_values
from litz.target import host
from tests import draws

Function = Callable[..., Any]


def _capture(function: Function, *inputs: Any, dynamic: bool = False) -> Graph:
    """The functional ATen graph of a function, as `capture` makes it."""
    modules: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Function:
        modules.append(module)
        return module.forward

    traced = aot_function(
        function,
        fw_compiler=keep,
        inference_compiler=keep,
        decompositions=decompositions(),
        keep_inference_input_mutations=True,
        dynamic=dynamic,
    )
    with torch.no_grad():
        traced(*(i.clone() if isinstance(i, torch.Tensor) else i for i in inputs))
    (module,) = modules
    constants = [str(n.target) for n in module.graph.nodes if n.op == "get_attr"]
    return Graph(module, attributes={name: getattr(module, name) for name in constants})


def _text(graph: Graph) -> str:
    """One line a node: `mul = mul(x, 2)`, with inputs as x0, x1 and no overload names."""
    lines = []
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    names = {n: n.name for n in graph.nodes} | {n: f"x{k}" for k, n in enumerate(inputs)}
    for node in graph.nodes:
        args = [_operand(a, names) for a in node.args]
        if node.op == "output":
            lines.append(f"return {args[0].strip('[]')}")
        elif node.op == "get_attr":
            lines.append(f"{node.name} = self.{node.target}")
        elif node.op == "call_function":
            called = getattr(node.target, "overloadpacket", node.target).__name__
            lines.append(f"{node.name} = {called}({', '.join(args)})")
    return "\n".join(lines)


def _operand(value: Any, names: dict[Any, str]) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_operand(v, names) for v in value)}]"
    return names.get(value, repr(value)) if isinstance(value, torch.fx.Node) else repr(value)


def _sharing(tensors: list[Any]) -> list[list[bool]]:
    """Which pairs of tensors share memory."""
    memory = [t.untyped_storage().data_ptr() for t in tensors]
    return [[a == b for b in memory] for a in memory]


def _call(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Outputs and inputs after a call with fresh copies and a fixed seed."""
    given = [i.clone() if isinstance(i, torch.Tensor) else i for i in inputs]
    draws.seed(0)
    return list(module(*given)), [g for g in given if isinstance(g, torch.Tensor)]


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
        return False
    if a.is_floating_point() and not torch.equal(
        a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan()
    ):
        return False
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _optimized(function: Function, *inputs: Any, dynamic: bool = False) -> Graph:
    """The graph after all passes: held against itself before them, in values and in sharing."""
    graph = _capture(function, *inputs, dynamic=dynamic)
    before = copy.deepcopy(graph.module)
    optimize(graph, host(), Config())
    old, old_inputs = _call(before, inputs)
    new, new_inputs = _call(graph.module, inputs)
    assert len(old) == len(new)
    assert all(map(_same_bits, old + old_inputs, new + new_inputs))
    assert _sharing(old + old_inputs) == _sharing(new + new_inputs)
    assert len({id(t) for t in new + new_inputs}) == len({id(t) for t in old + old_inputs})
    assert all("val" in n.meta for n in graph.nodes if n.op == "call_function")
    check_values(graph, graph.nodes, {})  # all of them, whatever the passes touched
    return graph


@pytest.fixture
def capture() -> Callable[..., Graph]:
    return _capture


@pytest.fixture
def optimized() -> Callable[..., Graph]:
    return _optimized


@pytest.fixture
def text() -> Callable[[Graph], str]:
    return _text
