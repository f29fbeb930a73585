"""Calls: who is wrong is not timed; who fails does not stop the others."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from litz.bench.agreement import Agreement
from litz.bench.calls import measure_calls, running_on
from litz.bench.candidates import CANDIDATES, Candidate
from litz.bench.case import Case, Program, Settings
from litz.bench.results import Row
from litz.bench.suites.kernels import COPY, kept_memory
from litz.bench.suites.kernels import finish as with_rates
from tests import draws

SHORT = Settings(against=("eager", "wrong", "broken"), seconds=0.01)


def _program() -> Program:
    draws.seed(0)
    return Program(lambda x: torch.softmax(x, -1), (torch.randn(4, 33),))


class Planted(Candidate):
    """A candidate whose compiler is a function given here."""

    def __init__(self, name: str, change: Callable[[Any], Any]) -> None:
        super().__init__(name, None)
        object.__setattr__(self, "change", change)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: self.change(function(*args))  # type: ignore[attr-defined]


def _fail(_: Any) -> Any:
    raise RuntimeError("no headers\nand more")


def test_a_wrong_candidate_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CANDIDATES, "wrong", Planted("wrong", lambda y: y + 1e-5))
    monkeypatch.setitem(CANDIDATES, "broken", Planted("broken", _fail))
    said: list[str] = []
    case = Case("planted", "softmax", "small", _program, measure_calls)
    [row] = measure_calls(case, SHORT, said.append)
    assert set(row.samples) == {"litz", "eager"}
    assert row.missing["broken"] == "RuntimeError: no headers"
    assert "from float64" in row.missing["wrong"]
    assert len(row.samples["litz"]) == len(row.samples["eager"]) >= 5
    assert "compiling with litz" in said and said[-1] == "timing"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda y: y, ""),
        (lambda y: y * (1 + 1e-7), ""),  # one rounding
        (lambda y: y * (1 + 1e-5), "result 0 is 1.0e-05 from float64"),
        (lambda y: y.index_fill(1, torch.tensor(3), torch.nan), "result 0 is nan from float64"),
        (lambda y: y.double(), "result 0 is torch.float64"),
        (lambda y: y[:2], "result 0 is torch.float32 [2, 33], not as eager's"),
        (lambda y: (y, y), "it gives 2 results, eager 1"),
    ],
)
def test_agreement(change: Callable[[torch.Tensor], Any], fault: str) -> None:
    program = _program()
    found = Agreement(program).fault(change(program()))
    assert found.startswith(fault) and bool(found) == bool(fault)


def test_a_sum_that_cancels_may_be_as_wrong_as_its_arguments() -> None:
    """Where eager is right by luck, another order of the same sum is not wrong."""
    big = torch.tensor([1e8, 1.0, -1e8]).repeat(1000)
    agreement = Agreement(Program(torch.sum, (big,)))
    assert agreement.spreads[0] > 0.01
    assert agreement.fault(torch.tensor(1000.0)) == agreement.fault(torch.tensor(1010.0)) == ""
    agreement = Agreement(Program(torch.sum, (big.abs(),)))
    assert agreement.fault(agreement.eager[0]) == ""
    assert "from float64" in agreement.fault(agreement.eager[0] * (1 + 1e-5))


def test_integers_must_be_equal() -> None:
    agreement = Agreement(Program(lambda x: x.argmax(-1), (torch.eye(3),)))
    assert agreement.fault(torch.tensor([0, 1, 2])) == ""
    assert agreement.fault(torch.tensor([0, 1, 1])) == "result 0 is not equal to eager's"


def test_a_model_in_float64_leaves_the_model_alone() -> None:
    model = torch.nn.Linear(3, 2)
    program = Program(model, (), {"input": torch.ones(1, 3)})
    assert program.widened()().dtype is torch.float64
    assert model.weight.dtype is program.tensors[0].dtype is torch.float32


def test_threads_and_gradients_are_put_back() -> None:
    before = torch.get_num_threads()
    with running_on(1):
        assert torch.get_num_threads() == 1 and not torch.is_grad_enabled()
    assert torch.get_num_threads() == before and torch.is_grad_enabled()


def test_the_share_of_a_copy_is_of_the_fastest_and_in_memory_alone() -> None:
    rows = [
        Row("kernels", name, size, "short call", {"litz": ours, "eager": (1e-3,)}, {}, {"MB": 8.0})
        for name, size, ours in (
            (COPY, "memory", (2e-3,)), ("gelu", "memory", (4e-3,)), ("gelu", "L1", (4e-3,)),
        )
    ]  # fmt: skip
    copied, gelu, near = with_rates(rows)
    assert copied.facts == pytest.approx({"MB": 8, "GB/s": 4, "% of copy": 50})
    assert gelu.facts == pytest.approx({"MB": 8, "GB/s": 2, "% of copy": 25})
    assert near.facts == pytest.approx({"MB": 8, "GB/s": 2})
    wrong = replace(gelu, samples={"eager": (1e-3,)}, facts={"MB": 8.0})
    assert with_rates([wrong]) == [wrong]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_large_results_are_not_mapped_anew() -> None:
    """Results of 64 MiB are 16,384 pages each: in memory that is kept, they are there already."""
    with kept_memory():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(8):
            kept = torch.ones(16 << 20)
            other = kept + 1
            del kept, other
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1000
