"""What must not grow over the life of a process: variants of a graph, what explanations leave,
machine code of graphs that died, sentences that were said."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from llvmlite.binding import ResourceTracker
from torch import nn
from torch._dynamo import eval_frame

import litz
from litz import backend
from litz.backend import ParameterSpecialized, RecompileLimit, SizeSpecialized
from litz.build import triton_worker
from litz.build.llvm import _start
from litz.report import Explanation, discarding_explanation
from litz.runtime import CompiledGraph


@pytest.fixture(autouse=True)
def fresh() -> None:
    litz.reset()


def graph_of_all_sizes(function: Callable[..., Any], x: torch.Tensor) -> torch.fx.GraphModule:
    """What AOTAutograd hands over when the first size of x is symbolic."""
    modules: list[torch.fx.GraphModule] = []

    def keep(module: torch.fx.GraphModule, _: Any, kind: str) -> Any:
        modules.append(module)
        return backend._eager(module)

    torch._dynamo.mark_dynamic(x, 0)
    torch.compile(
        function, backend=lambda gm, given: backend.through_aot_autograd(gm, given, keep)
    )(x)
    return modules[0]


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> SizeSpecialized:
    """x * 2, compiled for three sizes at once and, from then on, at every tenth call."""
    monkeypatch.setattr(SizeSpecialized, "MOST", 3)
    monkeypatch.setattr(RecompileLimit, "CALLS", 10)
    module = graph_of_all_sizes(lambda x: x * 2, torch.randn(5, 8))
    return SizeSpecialized(module, "inference", litz.config.snapshot(), discarding_explanation())


def called(variants: SizeSpecialized, n: int) -> None:
    x = torch.randn(n, 8)
    (found,) = variants([n, x])
    assert torch.equal(found, x * 2)


def sizes(variants: SizeSpecialized) -> list[int]:
    return sorted(key[0] for key in variants.compiled)


def test_sizes_that_never_come_again_are_not_kept(variants: SizeSpecialized) -> None:
    with pytest.warns(UserWarning, match="more than 3 combinations of sizes"):
        for n in range(2, 40):
            called(variants, n)
    assert sizes(variants) == [2, 3, 4] and variants.allowance.made == 3
    assert len(variants.came) == 3


@pytest.mark.filterwarnings("ignore:Litz runs")
def test_sizes_of_the_first_minute_make_room(variants: SizeSpecialized) -> None:
    for n in (2, 3, 4):
        called(variants, n)
    for _ in range(20):
        for n in (4, 50, 60):
            called(variants, n)
    assert sizes(variants) == [4, 50, 60]  # 2 and 3 were used last at the beginning
    assert variants.allowance.made == 5


@pytest.mark.filterwarnings("ignore:Litz runs")
def test_sizes_that_come_in_turn_are_not_compiled_each_time(variants: SizeSpecialized) -> None:
    """One more than there is room for: each that comes is the one that was dropped."""
    for _ in range(25):
        for n in (2, 3, 4, 5):
            called(variants, n)
    assert variants.allowance.made <= 3 + 100 // RecompileLimit.CALLS


class Applied(nn.Module):
    """Its graph is shared by all layers."""

    def forward(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x).relu()


def of_type(kind: type) -> list[Any]:
    """What is alive of exactly a type: some objects of torch's warn when `isinstance` asks them."""
    gc.collect()
    return [item for item in gc.get_objects() if type(item) is kind]


@torch.no_grad()
def test_parameters_that_died_free_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParameterSpecialized, "MOST", 4)
    monkeypatch.setattr(RecompileLimit, "CALLS", 2)
    notes, x = Explanation(), torch.randn(3, 16)
    given: Any = {"options": {"freezing": True}, "explanation": notes}
    run = torch.compile(Applied(), backend=lambda gm, inputs: backend.litz(gm, inputs, **given))
    for _ in range(12):
        layer = nn.Linear(16, 16)
        for _ in range(3):
            torch.testing.assert_close(run(layer, x), layer(x).relu())
        gc.collect()  # Dynamo's guards and the layer refer to each other
    (others,) = of_type(ParameterSpecialized)
    assert len(others.compiled) <= 1  # the layer that is alive, if it is not the first
    assert others.allowance.made > others.MOST and others.unfrozen is None


@torch.no_grad()
def test_parameters_that_change_at_every_call_are_not_frozen_each_time() -> None:
    notes, x = Explanation(), torch.randn(3, 16)
    given: Any = {"options": {"freezing": True}, "explanation": notes}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ParameterSpecialized, "MOST", 2)
        run = torch.compile(Applied(), backend=lambda gm, inputs: backend.litz(gm, inputs, **given))
        for _ in range(12):
            layer = nn.Linear(16, 16)
            torch.testing.assert_close(run(layer, x), layer(x).relu())
    assert len(notes.graphs) == 1 + 2 + 1  # the first, two more, and one for any parameters


def alive(kind: type) -> int:
    return len(of_type(kind))


def test_machine_code_goes_with_what_was_compiled() -> None:
    x = torch.randn(8, 16, requires_grad=True)
    _start()  # code that all graphs share
    before = alive(CompiledGraph), alive(ResourceTracker)
    for k in range(6):
        torch.compile(lambda x, k=k: (x * k).tanh().sort(-1)[0], backend="litz")(x).sum().backward()
        litz.reset()
    assert alive(CompiledGraph) <= before[0] and alive(ResourceTracker) <= before[1]


def shared(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x.cos() + 1


def explained(x: torch.Tensor) -> torch.Tensor:
    return shared(x.sin()) * 2


def test_explanations_leave_nothing_behind() -> None:
    """Of a function with a graph break, torch keeps the first graph until it is reset."""
    x = torch.randn(8, 16)
    litz.explain(torch.nn.functional.gelu, x)
    before = alive(ResourceTracker), len(eval_frame.cached_backends)
    for _ in range(4):
        (report,) = map(weakref.ref, litz.explain(torch.nn.functional.gelu, x).graphs)
        gc.collect()
        assert report() is None
    assert (alive(ResourceTracker), len(eval_frame.cached_backends)) == before
    reports = [weakref.ref(report) for report in litz.explain(explained, x).graphs]
    gc.collect()
    assert len(reports) == 3 and not any(report() for report in reports)


class Block(nn.Module):
    """A graph break, and a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shared(self.layer(x))


def test_explaining_compiles_beside_what_is_compiled() -> None:
    compiles: list[None] = []

    def counted(module: torch.fx.GraphModule, inputs: Any) -> Any:
        compiles.append(None)
        return backend.litz(module, inputs)

    block, x = Block(), torch.randn(8, 16)
    functions = [torch.compile(f, backend=counted) for f in (explained, block)]
    with torch.no_grad():
        expected = [f(x) for f in functions]
        count = len(compiles)
        for function in (explained, block, *functions):
            assert len(litz.explain(function, x).graphs) >= 2
            assert litz.explain(function, torch.randn(5, 16)).by_size == []
        assert all(torch.equal(f(x), e) for f, e in zip(functions, expected, strict=True))
    assert len(compiles) == count


def test_an_explanation_does_not_depend_on_sizes_seen_before() -> None:
    """Dynamo makes a size symbolic that changed, and remembers it by the code's name."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sum(0)

    run = torch.compile(function, backend="litz")
    for n in (3, 5):
        run(torch.randn(n, 16))
    (report,) = litz.explain(function, torch.randn(7, 16)).graphs
    assert "7" in str(report) and "s" not in str(report.plan.graph.inputs[0].shape)


def test_explanations_leave_torchs_limit_of_compiles() -> None:
    if "isolate_recompiles" not in torch.compile.__kwdefaults__:
        pytest.skip("before torch 2.13, what is compiled behind a graph break counts")
    run = torch.compile(explained, backend="litz", fullgraph=False)
    x = torch.randn(8, 16)
    run(x)
    for _ in range(2 * torch._dynamo.config.recompile_limit):
        litz.explain(explained, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(litz.explain(explained, x).graphs) == 3
        run(x.double())


def test_reports_are_kept_for_who_asked_alone() -> None:
    notes = discarding_explanation()
    notes.graphs.append(object())  # type: ignore[arg-type]
    assert not notes.graphs and str(notes) == "nothing was compiled"


@pytest.mark.filterwarnings("ignore:Litz runs")
def test_so_many_sentences_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "MAX_WARNED", 5)
    for k in range(20):
        backend._warn_once("inference", f"reason {k}")
    assert list(backend._WARNED) == [f"reason {k}" for k in range(15, 20)]


def test_the_source_of_a_triton_kernel_is_forgotten() -> None:
    pytest.importorskip("triton", reason="the extra `gpu` brings triton")
    before = set(triton_worker.linecache.cache)
    for k in range(3):
        text = f"import triton\n@triton.jit\ndef nothing(x):\n    pass  # {k}\n"
        triton_worker.compiled({**triton_worker.FIRST, "text": text})
    added = set(triton_worker.linecache.cache) - before
    assert len(added) <= 50  # what Triton itself reads
    assert not [name for name in added if name.startswith("<litz")]
