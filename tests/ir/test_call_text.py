"""The text of calls: it rebuilds the call, and what it rebuilds runs as the call did."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import litz
from litz.errors import ParseError, UnserializableOperand
from litz.ir.call_parse import parse_call
from litz.ir.call_text import call_text
from litz.ir.checks import Site
from litz.report import Report
from litz.runtime import CompiledGraph
from tests import draws
from tests.stages import compiled, compiles_noted
from tests.toolchain import link

X = torch.randn(6, 8, generator=draws.generator(0))

PROGRAMS: dict[str, Any] = {
    "pointwise": lambda x: x + 1,
    "several segments": lambda x: ((x + 1).sort(-1)[0] * 2, (x @ x.t()).relu()),
    "arena": lambda x: torch.softmax(x.exp().t() @ x, -1).sum(0),
    "views of one buffer": lambda x: (x.exp(), x.exp().t(), x.exp()[1:]),
    "an input again": lambda x: (x, x[2:], x.t() + 1),
    "constants": lambda x: x + torch.tensor([1.0, float("inf"), -0.0, float("nan")] * 2),
    "numbers": lambda x: (x.shape[0], None, x * 0.1),
    "checks": lambda x: x[x[:, 0].argsort()] * 2,
    "random": lambda x: F.dropout(x, 0.5) + torch.rand_like(x),
    "empty": lambda x: ((x[:0] + 1).sort(-1)[0], x[:, :0].sum()),
    "complex": lambda x: torch.fft.fft(x).abs() * torch.full((8,), 2j).imag,
    "write to an input": lambda x: x.add_(1).sum(),
}


def _again(report: Report) -> Any:
    """The same call, through its text."""
    text = call_text(report.call)
    again = parse_call(text)
    assert again == report.call
    assert call_text(again) == text
    return again


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_of_a_call_rebuilds_it(name: str) -> None:
    run = compiled(PROGRAMS[name])
    run(X.clone())
    again = _again(run.reports[0])
    graph = run.graphs[0]
    linked = link(again, graph.binary, dict(graph.constants), graph.config)
    assert isinstance(linked, CompiledGraph) and linked.text == graph.text
    draws.seed(1)
    expected = graph([X.clone()])
    draws.seed(1)
    found = linked([X.clone()])
    for a, b in zip(expected, found, strict=True):
        if isinstance(a, torch.Tensor):
            assert a.stride() == b.stride() and a.dtype is b.dtype
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert a == b


def _reports(function: Any, *shapes: tuple[int, ...]) -> list[Report]:
    torch._dynamo.reset()
    with compiles_noted() as made:
        run = torch.compile(function, backend="litz", dynamic=True)
        for shape in shapes:
            run(torch.randn(shape))
    return [report for _, report in made]


SIZED: dict[str, Any] = {
    "symbolic": lambda x: torch.softmax(x @ x.t(), -1).sum(0) * x.shape[1],
    "made of others": lambda x: x.reshape(-1, 2).exp().sum(1) + x.shape[0] // 2,
    "unbacked": lambda x: x[x > 0] * 2,
    "unbacked twice": lambda x: (x.nonzero().float().sum(0), x[x > 0].sort()[0] + 1),
}


@pytest.mark.parametrize("name", SIZED)
def test_sizes_are_read_back(name: str) -> None:
    unbacked = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with torch._dynamo.config.patch(unbacked):
        reports = _reports(SIZED[name], (6, 8), (10, 4))
    assert reports
    for report in reports:
        again = _again(report)
        assert again.body.symbols or again.body.unbacked


def test_prepacked_weights_are_read_back() -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 36, 40))
    torch._dynamo.reset()
    with compiles_noted() as made, torch.no_grad():
        torch.compile(model.eval(), backend="litz")(torch.randn(2, 3, 8, 8))
    (report,) = [report for _, report in made]
    again = _again(report)
    assert again.prepack is not None and again.prepack.makes and again.prepack.sources
    assert any(i.check == "layout" for i in again.body.inputs)


def test_training_is_read_back() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
    torch._dynamo.reset()
    with compiles_noted() as made:
        torch.compile(model, backend="litz")(X).sum().backward()
    forward, backward = (_again(report) for _, report in made)
    assert not any(i.tangent for i in forward.body.inputs)
    checks = {i.check for i in backward.body.inputs}
    assert any(i.tangent for i in backward.body.inputs) and "restore" in checks


def test_looks_at_results_are_read_back() -> None:
    run = compiled(lambda x: (x.exp().sort(-1)[0] + 1).masked_fill(x > 0, -float("inf")).exp(),
                   nan_asserts=True)  # fmt: skip
    run(X)
    _again(run.reports[0])


def test_reports_are_made_of_calls() -> None:
    run = compiled(PROGRAMS["several segments"])
    run(X)
    (report,) = run.reports
    again = replace(report, call=parse_call(call_text(report.call)), stages=None)
    assert str(again) == str(report) and again.aten_ops == report.aten_ops
    with pytest.raises(litz.errors.InternalError, match="another process"):
        _ = again.plan


def _branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def test_a_call_with_opaque_operands_says_so() -> None:
    torch._dynamo.reset()
    with compiles_noted() as made:
        torch.compile(_branches, backend="litz")(X)
    graph, report = next((g, r) for g, r in made if r.call.opaque)
    assert [one.number for one in report.call.opaque] == [0, 1]
    assert all("cond is given a live module" in one.reason for one in report.call.opaque)
    assert "  opaque  higher_order.cond" in str(report)
    again = parse_call(call_text(report.call))
    assert again == report.call
    with pytest.raises(UnserializableOperand, match="only in the process that compiled it"):
        link(again, graph.binary, {}, graph.config)


MISTAKES = {
    "call on cpu:": "expected `call on DEVICE:` and its body",
    "call on cpu:\n  jump x": "there is no statement 'jump'",
    "call on cpu:\n  point x": "there is no buffer 'x'",
    "call on cpu:\n  buffer x: f32[8]\n  point x": "inside a body",
    "call on cpu:\n  buffer x: f32[8]\n  body:\n    input x, 'twice'": "there is no word 'twice'",
    "call on cpu:\n  body:\n    into": "belongs to an extern",
    "call on cpu:\n  makes ()": "belongs to a prepack",
    "call on cpu:\n  skip 'why'": "belongs to a recording",
    "call on cpu:\n  origin 'a', 'b', 'c'": "belongs to a kernel or an extern",
    "call on cpu:\n  entry x": "values to unpack",
    "call on cpu:\n  memory __import__('os'), 1": "expected plain values",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_line_that_is_wrong_is_named(text: str) -> None:
    with pytest.raises(ParseError, match=re.escape(MISTAKES[text])):
        parse_call(text)


def test_text_that_was_damaged_never_gives_another_error() -> None:
    run = compiled(PROGRAMS["several segments"])
    run(X)
    text = call_text(run.reports[0].call)
    random = draws.python_generator(3)
    for _ in range(400):
        k = random.randrange(len(text))
        damaged = text[:k] + random.choice("()[],='x0 \n") + text[k + random.randrange(1, 4) :]
        with suppress(ParseError):
            parse_call(damaged)


def test_sites_and_odd_names() -> None:
    run = compiled(PROGRAMS["checks"])
    run(X)
    call = run.reports[0].call
    assert call.sites and any(kernel.checks for kernel in call.kernels)
    odd = Site("value", "op 'quoted'", 'a "line".py:3', 2, True, "text # with\nlines")
    _again(replace(run.reports[0], call=replace(call, sites=(*call.sites, odd))))
