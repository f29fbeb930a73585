"""The laws of passes: each is broken by a pass here, and the verifier says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Node

import litz.passes as passes
from litz.config import Config
from litz.errors import PassFailed
from litz.ir.graph import Graph
from litz.passes import Pass, optimize
from litz.passes.verify import GraphInvariants
from litz.target import host
from tests import draws

aten = torch.ops.aten
X = torch.randn(1, 4, 6, generator=draws.generator(0))
Change = Callable[[Graph], None]


def _program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.exp()
    z = y.sin() * 2
    return y.sum(0), z, z.view(-1), y.transpose(1, 2), x[0]


def _node(graph: Graph, target: Any) -> Node:
    return next(n for n in graph.nodes if n.target is target)


def _call(graph: Graph, before: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A node with the value that its op gives."""
    with graph.module.graph.inserting_before(before):
        made = graph.module.graph.call_function(target, args, kwargs)
    plain = torch.fx.node.map_arg(args, lambda n: n.meta["val"])
    made.meta["val"] = target(*plain, **kwargs)
    return made


def _lose_a_dimension(graph: Graph) -> None:
    total = _node(graph, aten.sum.dim_IntList)
    total.update_arg(0, _call(graph, total, aten.squeeze.dim, total.args[0], 0))


def _note_another_type(graph: Graph) -> None:
    sine = _node(graph, aten.sin.default)
    sine.meta["val"] = sine.meta["val"].double()


def _note_another_place(graph: Graph) -> None:
    turned = _node(graph, aten.permute.default)
    turned.meta["val"] = turned.meta["val"].contiguous()


def _read_another_operand(graph: Graph) -> None:
    product = _node(graph, aten.mul.Tensor)
    flat = _call(graph, product, aten.view.default, _node(graph, aten.exp.default), [24])
    product.update_arg(0, flat)


def _lay_a_result_out_anew(graph: Graph) -> None:
    output, turned = graph.nodes[-1], _node(graph, aten.permute.default)
    kept = {"memory_format": torch.contiguous_format}
    output.replace_input_with(turned, _call(graph, output, aten.clone.default, turned, **kept))


def _return_one_less(graph: Graph) -> None:
    graph.nodes[-1].args = (graph.nodes[-1].args[0][:-1],)  # type: ignore[index]


def _return_a_number(graph: Graph) -> None:
    graph.nodes[-1].args = ([*graph.nodes[-1].args[0][:-1], 3],)  # type: ignore[misc]


def _share_no_more(graph: Graph) -> None:
    output, product = graph.nodes[-1], _node(graph, aten.mul.Tensor)
    output.replace_input_with(product, _call(graph, output, aten.clone.default, product))


def _copy_an_input(graph: Graph) -> None:
    output = graph.nodes[-1]
    first = output.args[0][-1]  # type: ignore[index]
    output.replace_input_with(first, _call(graph, output, aten.clone.default, first))


def _write_to_an_input(graph: Graph) -> None:
    _call(
        graph, graph.nodes[-1], aten.copy_.default, graph.nodes[0], _node(graph, aten.exp.default)
    )


def _read_what_comes_later(graph: Graph) -> None:
    _node(graph, aten.exp.default).prepend(_node(graph, aten.sin.default))


def _call_with_nonsense(graph: Graph) -> None:
    _node(graph, aten.sum.dim_IntList).update_arg(1, [7])


BROKEN: dict[str, tuple[Change, str]] = {
    "a dimension": (_lose_a_dimension, r"sum_1 \(.*\) is noted as float32\[4, 6\].*but is.*\[6\]"),
    "a type": (_note_another_type, r"sin .* is noted as float64.*, but is float32"),
    "a place": (_note_another_place, r"permute .* is noted as .*, but is .* by \(24, 1, 6\)"),
    "an operand": (_read_another_operand, r"mul .* is noted as float32\[1, 4, 6\].*is.*\[24\]"),
    "strides of a result": (_lay_a_result_out_anew, r"noted as .*by \(24, 4, 1\).*but is"),
    "a result": (_return_one_less, "5 results became 4"),
    "a number": (_return_a_number, "result 4 was float32.*, and is 3"),
    "memory": (_share_no_more, "results share memory otherwise"),
    "an input's memory": (_copy_an_input, "results share memory otherwise"),
    "an input": (_write_to_an_input, r"\[\]\) became .*\['"),
    "order": (_read_what_comes_later, "sin .* stands before what it reads: exp"),
    "a call": (_call_with_nonsense, "sum_1 .* cannot be computed"),
}


# What is known to be broken whatever the sizes are.
FOR_ALL_SIZES = ("a dimension", "a type", "an operand", "a result", "a number", "memory",
                 "an input's memory", "an input", "order", "a call")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((n, False) for n in BROKEN), *((n, True) for n in FOR_ALL_SIZES)]
)
def test_a_broken_law(
    capture: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch, name: str, dynamic: bool
) -> None:
    change, message = BROKEN[name]
    graph = capture(_program, X, dynamic=dynamic)

    def broken(graph: Graph) -> int:
        with _node(graph, aten.exp.default).meta["val"].fake_mode:
            change(graph)
        return 0  # the verifier does not take its word for it

    monkeypatch.setattr(passes, "PASSES", [Pass(broken)])
    told = "" if dynamic else message
    with pytest.raises(PassFailed, match=f"graph pass 'broken' raised VerifyError: .*{told}"):
        optimize(graph, host(), Config())


def test_nobody_looks_if_the_user_says_so(
    capture: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: Graph) -> int:
        _return_one_less(graph)
        return 1

    monkeypatch.setattr(passes, "PASSES", [Pass(broken)])
    optimize(capture(_program, X), host(), Config(verify=False))


def test_a_pass_that_changes_nothing_costs_a_comparison(
    capture: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = capture(_program, X)
    invariants = GraphInvariants(graph)

    def looked(*_: Any) -> None:
        raise AssertionError("nothing changed")

    monkeypatch.setattr("litz.passes.verify.check_values", looked)
    invariants.check(graph)


def test_sizes_are_not_guarded(capture: Callable[..., Graph]) -> None:
    """What is asked about symbolic sizes binds nobody."""
    graph = capture(lambda x: (x.view(-1) * 1).view(4, -1).sum(0), X[0], dynamic=True)
    environment = next(
        n.meta["val"].fake_mode.shape_env for n in graph.nodes if n.op == "call_function"
    )
    before = len(environment.guards)
    optimize(graph, host(), Config())
    assert len(environment.guards) == before


@pytest.mark.parametrize("mask", [[True], [False], [True, False, True]])
def test_a_mask_of_constants_tells_a_size(mask: list[bool]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x[torch.tensor(mask)]

    x = torch.randn(len(mask), 4)
    found = torch.compile(function, backend="litz", options={"on_error": "raise"})(x)
    assert torch.equal(found, function(x))
