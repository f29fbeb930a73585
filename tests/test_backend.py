"""What a user meets: arguments, errors, fallbacks, explain, a machine without a compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import tomllib
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import litz
from litz import backend
from litz.errors import (
    IndexOutOfRange,
    InternalError,
    ModeWithOptions,
    UnknownFlag,
    UnknownMode,
    UnsupportedTorch,
    WrongFlagType,
)
from litz.requirements import check_torch
from tests import draws

RAISE = {"on_error": "raise"}


@pytest.fixture(autouse=True)
def fresh() -> None:
    litz.reset()


def test_the_entry_point_finds_the_backend() -> None:
    assert "litz" in torch._dynamo.list_backends(None)
    x = torch.randn(4, 8)
    assert torch.equal(torch.compile(lambda x: x + 1, backend="litz")(x), x + 1)


@pytest.mark.parametrize(
    "mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
)
def test_every_mode_compiles(mode: str | None) -> None:
    x = torch.randn(4, 8)
    compiled = torch.compile(lambda x: torch.relu(x) * 2, backend="litz", mode=mode)
    assert torch.equal(compiled(x), torch.relu(x) * 2)


def test_litz_compile_takes_torch_compiles_arguments() -> None:
    x = torch.randn(4, 8)

    @litz.compile(fullgraph=True, dynamic=False, options={"max_fusion_size": 3})
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp().sum(1)

    torch.testing.assert_close(function(x), x.exp().sum(1))
    assert litz.compile(torch.sin, disable=True)(x).equal(torch.sin(x))


def test_mistakes_are_named_before_anything_is_compiled() -> None:
    with pytest.raises(ModeWithOptions):
        litz.compile(torch.sin, mode="default", options={"debug": 0})
    with pytest.raises(UnknownMode, match="max-autotune"):
        litz.compile(torch.sin, mode="max-autotun")
    with pytest.raises(UnknownFlag, match="max_fusion_size"):
        litz.compile(torch.sin, options={"max_fusion_sizes": 1})
    with pytest.raises(WrongFlagType, match="max_fusion_size"):
        litz.compile(torch.sin, options={"max_fusion_size": "large"})


def test_mistakes_reach_the_user_through_torch_compile() -> None:
    x = torch.ones(3)
    with pytest.raises(Exception, match="max_fusion_size"):
        torch.compile(torch.sin, backend="litz", options={"max_fusion_sizes": 1})(x)
    with pytest.raises(Exception, match="max-autotune"):
        torch.compile(torch.sin, backend="litz", mode="max-autotun")(x)


def _declared() -> SpecifierSet:
    """The releases of torch with which pip installs Litz."""
    pyproject = Path(__file__).parents[1] / "pyproject.toml"
    listed = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    (torch_itself,) = (r for r in map(Requirement, listed) if r.name == "torch")
    return torch_itself.specifier


@pytest.mark.parametrize("version", ["2.11.0", "2.11.2+cu130", "2.13.0+cpu", torch.__version__])
def test_a_torch_that_the_tests_ran_with_is_accepted(version: str) -> None:
    check_torch(version)
    assert version in _declared()


@pytest.mark.parametrize("version", ["1.13.0", "2.10.1", "2.12.0", "2.12.1+cu130", "2.14.0a0"])
def test_a_torch_that_no_test_ran_with_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedTorch) as refused:
        check_torch(version)
    assert version not in _declared()
    (install,) = re.findall(r'pip install "torch(.*)"', str(refused.value))
    assert SpecifierSet(install) == _declared()  # pip can read what the message says


def _leaves_the_cpu(x: torch.Tensor) -> torch.Tensor:
    return x.to("meta").sum()


def test_what_cannot_be_compiled_runs_as_eager_and_says_so_once() -> None:
    x = torch.ones(3)
    with pytest.warns(UserWarning, match=r"as eager.*meta.*test_backend\.py"):
        assert torch.compile(_leaves_the_cpu, backend="litz")(x).is_meta
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.compile(_leaves_the_cpu, backend="litz")(x).is_meta


def test_on_error_raise_names_the_op_and_the_line() -> None:
    compiled = torch.compile(_leaves_the_cpu, backend="litz", options=RAISE)
    with pytest.raises(Exception, match=r"_to_copy.*test_backend\.py:\d+"):
        compiled(torch.ones(3))


def test_implicit_fallbacks_off_refuses_ops_without_a_rule() -> None:
    options = {**RAISE, "implicit_fallbacks": False}
    x = torch.randn(4, 4)
    assert torch.compile(lambda x: x @ x, backend="litz", options=options)(x).equal(x @ x)
    with pytest.raises(Exception, match="sort"):
        torch.compile(lambda x: x.sort()[0], backend="litz", options=options)(x)


def test_fallback_by_default_leaves_everything_to_aten() -> None:
    with litz.config.patch(fallback_by_default=True):
        explanation = litz.explain(lambda x: torch.relu(x.t() * 2), torch.randn(3, 5))
    assert explanation.kernels == 0
    assert set(explanation.aten_ops) == {"aten.mul.Tensor", "aten.relu.default"}


def test_explain_says_what_was_done() -> None:
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(x @ w, -1) * x

    explanation = litz.explain(block, torch.randn(8, 16), torch.randn(16, 16))
    (graph,) = explanation.graphs
    assert explanation.kernels == 1
    assert explanation.aten_ops == {"aten.mm.default": 1}
    assert {o.line.split(":")[0] for k in graph.kernels for o in k.origins} == {"test_backend.py"}
    text = str(explanation)
    assert "1 kernels" in text and "aten.mm.default" in text and "not fused" in text
    assert set(graph.seconds) >= {"capture", "passes", "lower", "fuse", "plan", "build", "link"}


def test_cudagraphs_on_cpu_are_refused_with_a_reason() -> None:
    with litz.config.patch({"triton.cudagraphs": True}):
        (graph,) = litz.explain(torch.sin, torch.ones(3)).graphs
    assert any("runs on the CPU" in d.reason for d in graph.decisions)


def test_an_index_outside_the_table_is_an_index_error() -> None:
    table = torch.randn(4, 3)
    compiled = torch.compile(lambda i: F.embedding(i, table), backend="litz", options=RAISE)
    for bad in (4, -1, 2**40):
        with pytest.raises(IndexError) as caught:
            compiled(torch.tensor([1, bad]))
        assert isinstance(caught.value, IndexOutOfRange)
    assert torch.equal(compiled(torch.tensor([1, 3])), table[[1, 3]])


def test_changing_sizes_trace_once_and_stay_right() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(x @ w, -1) * x.shape[0] + torch.arange(x.shape[0])[:, None]

    compiled = torch.compile(function, backend="litz", dynamic=True, options=RAISE)
    w = torch.randn(16, 16)
    torch._dynamo.utils.counters.clear()
    for n in (3, 5, 8, 3):
        x = torch.randn(n, 16)
        torch.testing.assert_close(compiled(x, w), function(x, w))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_changing_sizes_around_tensors_of_the_graph_itself() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum() + torch.tensor([3.0, 4.0]), torch.tensor([x.shape[0], 2])]

    compiled = torch.compile(function, backend="litz", dynamic=True, options=RAISE)
    for n in (3, 5):
        torch.testing.assert_close(compiled(torch.ones(n)), function(torch.ones(n)))


def test_a_graph_of_changing_sizes_that_cannot_be_compiled_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise InternalError("no")

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sum() + torch.tensor([3.0, 4.0]) * x.shape[0]

    monkeypatch.setattr(backend, "compile_graph", refuse)
    compiled = torch.compile(function, backend="litz", dynamic=True)
    with pytest.warns(UserWarning, match="runs the inference graph as eager"):
        for n in (3, 5):
            torch.testing.assert_close(compiled(torch.ones(n)), function(torch.ones(n)))


def test_training_follows_eager() -> None:
    draws.seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 4))
    reference = torch.nn.Sequential(*layers, model[-1])
    reference.load_state_dict(model.state_dict())
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    expected = torch.autograd.grad(F.cross_entropy(reference(x), y), list(model.parameters()))
    compiled = torch.compile(model, backend="litz", options=RAISE)
    found = torch.autograd.grad(F.cross_entropy(compiled(x), y), list(model.parameters()))
    torch.testing.assert_close(found, expected)


def test_threads_may_call_one_compiled_function() -> None:
    compiled = torch.compile(
        lambda x: F.softmax(x @ x, -1).sum(0) + x, backend="litz", options=RAISE
    )
    inputs = [torch.randn(64, 64) for _ in range(4)]
    expected = [compiled(x).clone() for x in inputs]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(30):
            if not torch.equal(compiled(inputs[k]), expected[k]):
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def _run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_no_compiler_is_needed() -> None:
    program = (
        "import torch, litz\n"
        "x = torch.randn(32, 64)\n"
        "f = torch.compile(lambda x: torch.softmax(x, -1), backend='litz',"
        " options={'on_error': 'raise'})\n"
        "torch.testing.assert_close(f(x), torch.softmax(x, -1))\n"
        "print('compiled')\n"
    )
    done = _run(program, PATH="", CC="/none", CXX="/none")
    assert done.stdout.strip() == "compiled", done.stderr


def test_a_missing_llvmlite_is_named() -> None:
    done = _run("import sys; sys.modules['llvmlite'] = None\nimport litz\nlitz.compile")
    assert "MissingDependency" in done.stderr and "llvmlite" in done.stderr


@pytest.mark.parametrize(
    ("level", "shown"),
    [
        (1, "compiled in"),
        (2, "GB/s"),
        (3, "refused"),
        (4, "phase reduce"),
        (5, "loop i0"),
        (6, "define void @litz_"),
    ],
)
def test_litz_debug_prints_its_level(level: int, shown: str) -> None:
    assert shown in _printed()[level] and shown not in _printed()[level - 1]


# A child for each level, forked before Litz reads its environment.
LEVELS = """
import os, sys
import torch, torch._dynamo
for level in range(7):
    if os.fork() == 0:
        os.environ["LITZ_DEBUG"] = str(level)
        torch.compile(lambda x: torch.softmax(x, -1), backend="litz")(torch.randn(4, 80))
        sys.stderr.flush()
        os._exit(0)
    assert os.wait()[1] == 0
    print("LEVEL ENDS", file=sys.stderr, flush=True)
"""


@cache
def _printed() -> list[str]:
    """By level, from none to 6."""
    done = _run(LEVELS)
    assert done.returncode == 0, done.stderr
    return done.stderr.split("LEVEL ENDS")


def test_explain_counts_what_is_kept_of_parameters() -> None:
    layer = torch.nn.Linear(256, 512, bias=False)
    with torch.no_grad():
        kept, none = (str(litz.explain(f, torch.randn(64, 256))) for f in (layer, torch.relu))
    assert "0.52 MB of prepacked weights" in kept and "parameters" not in none
