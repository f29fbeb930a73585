"""Modes of the program around compiles and calls: a graph gives what eager gives under each.

Every mode is tried in two orders, since a graph is compiled, and its workspace and packed weights
are made, by the first call: inside the mode and then outside, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from litz.runtime.modes import without_modes
from tests import draws
from tests.stages import linked

Function = Callable[..., torch.Tensor]
X = torch.randn(40, 64, generator=draws.generator(0))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def sorts(x: torch.Tensor) -> torch.Tensor:
    """An op of ATen's between two kernels, with its operand in the arena."""
    return (x * 2).sort(-1)[0] + 1


def multiplies(x: torch.Tensor) -> torch.Tensor:
    """A product that ATen writes into the arena."""
    wide = x.double()
    return ((wide + 1) @ (wide.t() + 1)).relu()


def several(x: torch.Tensor) -> torch.Tensor:
    """Kernels, calls of ATen's with and without a place in the arena, a folded constant."""
    scaled = x * torch.arange(64, dtype=torch.float32, device="cpu").cos()
    return sorts(scaled).cumsum(0).sum(-1) + multiplies(x).sum(1).float()


class Layers(torch.nn.Module):
    """Weights that are packed at the first call."""

    def __init__(self) -> None:
        super().__init__()
        draws.seed(2)
        self.linear, self.convolution = torch.nn.Linear(64, 96), torch.nn.Conv2d(3, 8, 3)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.convolution((self.linear(x) + 1).view(1, 3, -1, 32)).relu()


@contextmanager
def as_default(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Factories(TorchFunctionMode):
    """A mode that makes every fresh tensor one without memory, as lazy initialisation does."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if function is torch.empty or function is torch.empty_strided:
            given["device"] = "meta"
        return function(*args, **given)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "device": lambda: torch.device("meta"),
    "default device": lambda: as_default("meta"),
    "factories": Factories,
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": deterministic,
    "float64": lambda: default_dtype(torch.float64),
}
PROGRAMS: dict[str, Function] = {"several": several, "layers": Layers()}


def _same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.dtype, found.device) == (expected.dtype, expected.device)
    assert found.is_inference() == expected.is_inference()
    loose = found.dtype is torch.bfloat16  # products of bfloat16 are summed in another order
    torch.testing.assert_close(found, expected, **({"rtol": 2e-2, "atol": 0.1} if loose else {}))


def _compiled(function: Function, **given: Any) -> Function:
    """No fallback, neither Dynamo's nor ours."""
    options = {"on_error": "raise"}
    return torch.compile(function, backend="litz", fullgraph=True, options=options, **given)


def _called(
    compiled: Function, function: Function, x: torch.Tensor, mode: str, order: Sequence[bool]
) -> None:
    for inside in order:
        with MODES[mode]() if inside else nullcontext():
            expected, found = function(x), compiled(x)
        _same(found, expected)


@pytest.mark.parametrize("inside_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_around_a_call_changes_nothing_of_ours(
    mode: str, program: str, inside_first: bool
) -> None:
    compiled = _compiled(PROGRAMS[program])
    _called(compiled, PROGRAMS[program], X, mode, [inside_first, not inside_first, inside_first])


@pytest.mark.parametrize("mode", ["device", "inference"])
def test_a_mode_around_calls_of_other_sizes(mode: str) -> None:
    compiled = _compiled(several, dynamic=True)
    for rows in (40, 24, 32):
        _called(compiled, several, X[:rows], mode, [True, False])


class Shifted(TorchFunctionMode):
    """Adds one to what a sort gives, whatever it is called by."""

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is torch.Tensor.sort or function is torch.ops.aten.sort.default:
            return result[0] + 1, result[1]
        return result


@pytest.mark.parametrize("fails", [False, True], ids=["compiled", "fallback"])
def test_what_a_mode_does_happens_once(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if fails:
        monkeypatch.setattr("litz.backend.compile_graph", _broken)
    compiled = torch.compile(sorts, backend="litz", fullgraph=True)
    with pytest.warns(UserWarning, match="eager") if fails else nullcontext(), Shifted():
        _same(compiled(X), sorts(X))
        _same(compiled(X), sorts(X))
    _same(compiled(X), sorts(X))


def _broken(*_: Any) -> Any:
    raise RuntimeError("it breaks")


class NoMemory(TorchDispatchMode):
    """Fresh tensors have no memory."""

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if function is torch.ops.aten.empty.memory_format:
            given["device"] = "meta"
        return function(*args, **given)


def test_a_backward_may_begin_under_a_dispatch_mode() -> None:
    """Dynamo runs no compiled code under such a mode; autograd does."""
    leaf = X.clone().requires_grad_()
    torch.compile(lambda x: sorts(x.tanh()), backend="litz")(leaf).sum().backward()
    expected = leaf.grad
    torch._dynamo.reset()
    leaf = X.clone().requires_grad_()
    made = torch.compile(lambda x: sorts(x.tanh()), backend="litz")(leaf).sum()
    with NoMemory():
        made.backward()
    assert expected is not None and leaf.grad is not None
    assert torch.equal(leaf.grad, expected)


def test_a_workspace_made_in_inference_mode_serves_calls_outside() -> None:
    """ATen may write into the arena's windows in either."""
    graph = linked(multiplies, X)
    graph.free.clear()
    with torch.inference_mode():
        (inside,) = graph.call([X.clone()])
    assert torch.equal(graph.call([X.clone()])[0], inside)
    assert [t.is_inference() for space in graph.free for t in space.views] == [False] * 3


def test_transforms_around_a_call() -> None:
    compiled = torch.compile(sorts, backend="litz")
    _same(compiled(X), sorts(X))
    _same(torch.vmap(compiled)(X), torch.vmap(sorts)(X))
    total = torch.func.grad(lambda x: compiled(x).square().sum())
    _same(total(X), torch.func.grad(lambda x: sorts(x).square().sum())(X))


def test_nothing_is_around_without_modes() -> None:
    def outside(x: torch.Tensor) -> torch.Tensor:
        with without_modes():
            made = torch.empty(3) + 0 * torch.ones(3)
            assert made.device.type == "cpu" and not made.is_inference()
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
        return x

    with torch.device("meta"), torch.inference_mode(), torch.autocast("cpu"), NoMemory():
        outside(X)
        assert torch.is_inference_mode_enabled() and torch.ones(3).is_meta
    torch.vmap(outside)(X)
