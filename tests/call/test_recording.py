"""What of a graph is recorded as a CUDA graph, and the reasons against more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import litz
from litz.call.recording import recording_of
from litz.config import Config
from litz.config.flags import Triton
from litz.errors import CudaGraphsRefused
from litz.ir.call_plan import Recording
from litz.ir.expr import Expr, load, rebuild, transform
from litz.ir.index import ZERO
from litz.ir.program import Buffer, Extern, KernelGraph, Origin, ViewArg
from litz.runtime import check_cudagraphs_required, for_size
from tests import draws
from tests.stages import stages

X = torch.randn(6, 20, generator=draws.generator(0))
GRAPHS = Config(triton=Triton(cudagraphs=True))
REQUIRED = Config(triton=Triton(require_cudagraphs=True))


def graph_of(function: Any, *inputs: Any) -> KernelGraph:
    """A graph whose device is this CPU: what lies elsewhere is then any other name."""
    return stages(function, *inputs).plan.graph


def policy(function: Any, *inputs: Any, device: str = "cpu", config: Config = GRAPHS) -> Recording:
    return recording_of(graph_of(function, *inputs), device, config)


def _updated(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.softmax(1),
        lambda x: x @ x.t() + 1,
        lambda x: torch.rand_like(x) + x,
        lambda x: (x + 1, x.sum()),
        _updated,
    ],
    ids=["softmax", "product", "random", "two outputs", "updated input"],
)
def test_gpu_work_alone_is_recorded_as_a_whole(function: Any) -> None:
    found = policy(function, X)
    assert found.whole and not found.reasons and not found.cpu_scalars
    assert not policy(function, X, config=Config()).whole
    assert policy(function, X, config=REQUIRED).whole


def test_a_reason_names_the_op_and_the_line() -> None:
    origin = Origin("unique", "aten.unique_dim.default", "model.py:3")
    for op, why in (("unique_dim", "waits for the GPU"), ("bincount", "depends on data")):
        call = Extern(f"aten.{op}.default", (), (), (), single=False, origins=(origin,))
        (skip,) = recording_of(KernelGraph((), (), (call,), ()), "cpu", GRAPHS).skips
        assert why in str(skip) and f"aten.{op}.default" in str(skip)
        assert str(skip).endswith("(aten.unique_dim.default (model.py:3))")
    call = Extern("higher_order.cond", (), (), (), single=False)
    (skip,) = recording_of(KernelGraph((), (), (call,), ()), "cpu", GRAPHS).skips
    assert str(skip) == "cond decides on the CPU what runs next"


def _with_calls(count: int, *places: int) -> KernelGraph:
    """A graph of kernels with calls between them that decide on the CPU."""
    origin = Origin("cond", "higher_order.cond", "model.py:7")
    call = Extern("higher_order.cond", (), (), (), single=False, origins=(origin,))
    graph = graph_of(lambda x: x + 1, X)
    body = [call if k in places else graph.body[0] for k in range(count)]
    return replace(graph, body=tuple(body))


@pytest.mark.parametrize(
    ("count", "cuts", "parts"),
    [
        (1, (), [(0, 1, True)]),
        (9, (4,), [(0, 4, True), (4, 5, False), (5, 9, True)]),
        (9, (4, 5), [(0, 4, True), (4, 6, False), (6, 9, True)]),
        (9, (1, 4, 8), [(0, 5, False), (5, 8, True), (8, 9, False)]),
        (4, (0,), [(0, 1, False), (1, 4, True)]),
        (4, (3,), [(0, 3, True), (3, 4, False)]),
        (5, (2,), []),  # too few on either side
        (2, (0, 1), []),
    ],
)
def test_a_step_in_the_way_cuts_the_graph(
    count: int, cuts: tuple[int, ...], parts: list[tuple[int, int, bool]]
) -> None:
    """What lies before and behind it is recorded, if there is enough of it."""
    found = recording_of(_with_calls(count, *cuts), "cpu", GRAPHS)
    assert [(p.first, p.last, p.recorded) for p in found.ranges] == parts
    assert found.whole == (not cuts) and len(found.skips) == len(cuts)
    assert not recording_of(_with_calls(count, *cuts), "cpu", Config()).ranges


def test_a_reason_says_what_is_recorded_instead() -> None:
    (reason,) = recording_of(_with_calls(9, 4), "cpu", GRAPHS).reasons
    assert reason.startswith("cond decides on the CPU what runs next") and "model.py:7" in reason
    assert reason.endswith("; 2 parts of the graph are recorded")
    (reason,) = recording_of(_with_calls(5, 1), "cpu", GRAPHS).reasons
    assert reason.endswith("; 1 part of the graph is recorded")
    (reason,) = recording_of(_with_calls(2, 1), "cpu", GRAPHS).reasons
    assert reason.endswith("; it runs as it is")
    asserts = replace(GRAPHS, nan_asserts=True)
    assert (
        recording_of(_with_calls(9), "cpu", asserts)
        .reasons[0]
        .endswith("1 run of kernels recorded")
    )
    quiet = replace(asserts, triton=replace(GRAPHS.triton, launch_graphs=False))
    assert recording_of(_with_calls(9), "cpu", quiet).reasons[0].endswith("; it runs as it is")


def test_work_on_other_streams_is_in_the_way() -> None:
    for op in ("streams.fork.default", "_c10d_functional.all_reduce.default"):
        call = Extern(op, (), (), (), single=False)
        (skip,) = recording_of(KernelGraph((), (), (call,), ()), "cpu", GRAPHS).skips
        assert "stream" in skip.why and op in skip.why


def test_work_on_another_device_is_in_the_way() -> None:
    found = policy(lambda x: x + 1, X, device="cuda:0")
    assert "a kernel writes" in found.skips[0].why and "on cpu" in found.skips[0].why
    found = policy(lambda x: x.view(torch.int32).sort()[0], X, device="cuda:0")
    assert any("works on cpu" in skip.why for skip in found.skips)


def _with(value: Expr, old: Buffer, new: Buffer) -> Expr:
    """An expression that reads another buffer."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        return load(new, args) if node.op == "load" and node.buffer == old else rebuild(node, args)

    return transform(value, change)


def test_a_number_of_the_cpu_is_brought_over_unless_a_call_reads_it() -> None:
    graph = graph_of(lambda x, s: x * s, X, torch.tensor(2.0))
    (number,) = (b for b in graph.inputs if not b.shape)  # type: ignore[union-attr]
    away = replace(number, device="elsewhere")

    def moved(step: Any) -> Any:
        (phase,) = step.phases
        stores = tuple(replace(s, value=_with(s.value, number, away)) for s in phase.stores)
        return replace(step, phases=(replace(phase, stores=stores),))

    inputs = tuple(away if b == number else b for b in graph.inputs)
    there = replace(graph, inputs=inputs, body=tuple(map(moved, graph.body)))
    assert away in there.body[0].reads
    found = recording_of(there, "cpu", GRAPHS)
    assert found.whole and found.cpu_scalars == (1,)
    view = ViewArg(away, (), (), ZERO)
    call = Extern("aten.mul.Tensor", (view, view), (), (), single=True)
    found = recording_of(replace(there, body=(*there.body, call)), "cpu", GRAPHS)
    assert not found.whole and found.skips[0].why == "aten.mul.Tensor works on elsewhere"


def test_an_output_that_is_an_input_is_not_in_the_way() -> None:
    """The driver of a graph in parts shows it; no recording does."""
    found = policy(lambda x: (x.t(), x + 1), X)
    assert found.whole and found.recorded == 1
    found = policy(lambda x: x + 1, X)
    assert found.whole and not found.returns_input_alias
    found = policy(lambda x: x + 1, X[:1].expand(6, 20))
    assert found.whole  # its elements are copied once


def test_asserts_that_look_at_results_are_in_the_way() -> None:
    found = policy(lambda x: x + 1, X, config=replace(GRAPHS, nan_asserts=True))
    assert not found.whole and "nan_asserts" in found.reasons[0]


def test_require_raises_what_is_in_the_way() -> None:
    check_cudagraphs_required(policy(lambda x: x + 1, X, config=REQUIRED), REQUIRED)
    config = replace(REQUIRED, nan_asserts=True)
    with pytest.raises(CudaGraphsRefused, match="nan_asserts"):
        check_cudagraphs_required(policy(lambda x: x + 1, X, config=config), config)
    check_cudagraphs_required(
        policy(lambda x: x + 1, X, config=replace(GRAPHS, nan_asserts=True)), GRAPHS
    )
    run = torch.compile(
        lambda x: x + 1, backend="litz", options={"triton.require_cudagraphs": True}
    )
    with pytest.raises(Exception, match="runs on the CPU"):  # Dynamo wraps it
        run(X)


def test_only_so_many_sizes_are_recorded() -> None:
    few = replace(GRAPHS, triton=replace(GRAPHS.triton, cudagraph_sizes=2))
    assert for_size(few, 1) is few and not for_size(few, 2).triton.cudagraphs
    assert for_size(Config(), 99) == Config()
    with pytest.raises(CudaGraphsRefused, match="2 sizes"):
        for_size(replace(REQUIRED, triton=replace(REQUIRED.triton, cudagraph_sizes=2)), 2)
    options = {"triton.cudagraphs": True, "triton.cudagraph_sizes": 0}
    with litz.config.patch(options):
        torch._dynamo.reset()
        run = torch.compile(lambda x: x.unique().numel() + x, backend="litz", dynamic=True)
        assert run(X).equal(X + X.unique().numel())
