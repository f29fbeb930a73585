"""Convolutions take packed weights, with a residual and a ReLU in the same call; weights follow."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import litz
from litz.ir.program import Extern, Kernel
from tests import draws

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)
X = torch.randn(2, 80, 12, 11).to(memory_format=torch.channels_last)


class Block(nn.Module):
    """Two convolutions and a residual, as in a ResNet; one of `kind`s of endings."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first = nn.Conv2d(80, 80, 3, padding=1, bias=False)
        self.second = nn.Conv2d(80, 80, 3, padding=2, dilation=2, groups=4)

    def forward(self, x: Tensor) -> object:
        inside = F.relu(self.first(x))
        result = self.second(inside)
        if self.kind == "residual":
            return F.relu(result + x)
        if self.kind == "sum":
            return x + result
        if self.kind == "broadcast":
            return result + x[:, :1]
        if self.kind == "twice":
            return F.relu(result + self.second(x))
        if self.kind == "seen":
            return result, F.relu(result + inside)
        return result.sigmoid()


KINDS = ("residual", "sum", "broadcast", "twice", "seen", "other")


def _agree(compiled: nn.Module, model: nn.Module) -> None:
    found, expected = compiled(X), copy.deepcopy(model).double()(X.double())
    torch.testing.assert_close(found, expected, check_dtype=False, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_values_follow_parameters(kind: str) -> None:
    draws.seed(0)
    model = Block(kind)
    compiled = torch.compile(model, backend="litz", options={"on_error": "raise"})
    with torch.no_grad():
        _agree(compiled, model)
        model.first.weight.mul_(2)
        model.second.weight.data[3].neg_()  # which torch does not count
        _agree(compiled, model)
        _agree(compiled, model)


def _steps(kind: str) -> tuple[list[Extern], list[Extern], list[Kernel]]:
    """Calls that pack, calls at each call, kernels at each call."""
    with torch.no_grad():
        (report,) = litz.explain(Block(kind), X).graphs
    graph = report.plan.graph
    first, rest = graph.body[: graph.prepack_steps], graph.body[graph.prepack_steps :]
    packing = [s for s in first if isinstance(s, Extern)]
    calls = [s for s in rest if isinstance(s, Extern)]
    return packing, calls, [s for s in rest if isinstance(s, Kernel)]


def test_a_residual_and_a_relu_are_part_of_the_call() -> None:
    packing, (first, second), kernels = _steps("residual")
    assert len(packing) == 2 and all(step.packs for step in packing)
    assert (first.target, first.args[7]) == ("mkldnn._convolution_pointwise.default", "relu")
    assert second.target == "mkldnn._convolution_pointwise.binary"
    assert second.args[8] == "add" and second.args[10] == "relu"
    assert not kernels


def test_a_weight_that_is_used_twice_is_packed_once() -> None:
    packing, calls, _ = _steps("twice")
    assert len(packing) == 2 and len(calls) == 3


def test_what_is_seen_elsewhere_is_not_added_into() -> None:
    _, (_, second), kernels = _steps("seen")
    assert second.args[7] == "none" and kernels


class Activated(nn.Module):
    def __init__(self, layer: nn.Module, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.activation = layer, activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.layer(x))


ACTIVATIONS = {
    "relu": F.relu, "swish": F.silu, "gelu": F.gelu, "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "none": F.relu6,  # oneDNN would make a bound of a NaN
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_part_of_the_call(name: str) -> None:
    signal = torch.randn(2, 16, 30)
    layers = ((nn.Conv2d(80, 24, 3), X), (nn.ConvTranspose2d(80, 8, 2, stride=2), X),
              (nn.ConvTranspose1d(16, 24, 3), signal))  # fmt: skip
    for layer, x in layers:
        torch._dynamo.reset()
        model = Activated(layer, ACTIVATIONS[name])
        with torch.no_grad():
            (report,) = litz.explain(model, x).graphs
            torch.testing.assert_close(torch.compile(model, backend="litz")(x), model(x))
        call = report.plan.graph.externs[-1]
        assert call.target.startswith("mkldnn._convolution") and name in call.args


def test_a_value_that_is_read_twice_is_not_activated() -> None:
    torch._dynamo.reset()
    model = Activated(nn.Conv2d(80, 24, 3), lambda y: y.sigmoid() + y.tanh())
    with torch.no_grad():
        (report,) = litz.explain(model, X).graphs
    assert "none" in report.plan.graph.externs[-1].args


def test_nothing_is_kept_if_the_user_says_so() -> None:
    with torch.no_grad(), litz.config.patch({"cpp.weight_prepack": False}):
        (report,) = litz.explain(Block("residual"), X).graphs
    assert {e.target for e in report.plan.graph.externs} == {"aten.convolution.default"}


BEYOND_A_STEP = {
    "a signal": (nn.ConvTranspose1d(8, 8, 3, dilation=3, output_padding=2), (2, 8, 10)),
    "an image": (nn.ConvTranspose2d(8, 8, 3, dilation=3, output_padding=1), (2, 8, 10, 10)),
    "one side": (
        nn.ConvTranspose2d(8, 8, 3, stride=(2, 1), dilation=2, output_padding=(1, 1)), (2, 8, 7, 7)
    ),
    "groups": (
        nn.ConvTranspose2d(8, 16, 2, stride=2, dilation=3, output_padding=2, groups=4), (1, 8, 6, 6)
    ),
    "a volume": (
        nn.ConvTranspose3d(8, 8, 2, dilation=3, output_padding=2, bias=False), (1, 8, 5, 5, 5)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND_A_STEP)
def test_lines_behind_the_last_whole_step_are_left_to_aten(name: str) -> None:
    """torch adds as many as dilation leaves empty; oneDNN refuses those that make a step."""
    torch._dynamo.reset()
    draws.seed(0)
    layer, shape = BEYOND_A_STEP[name]
    x = torch.randn(shape)
    with torch.no_grad():
        found = torch.compile(layer, backend="litz", options={"on_error": "raise"})(x)
        torch.testing.assert_close(found, layer(x), rtol=1e-5, atol=1e-5)
        assert found.stride() == layer(x).stride()


@pytest.mark.parametrize("layer", [nn.Conv2d(80, 24, 3), nn.ConvTranspose2d(80, 8, 2, stride=2)])
def test_images_of_unknown_size_are_not_packed_for(layer: nn.Module) -> None:
    """In channels last as they come, so that no pass before has refused them."""
    torch._dynamo.reset()
    run = torch.compile(layer, backend="litz", dynamic=True, options={"on_error": "raise"})
    with torch.no_grad():
        for size in (12, 9, 15):
            x = torch.randn(2, 80, size, size + 1).to(memory_format=torch.channels_last)
            torch.testing.assert_close(run(x), layer(x), rtol=1e-5, atol=1e-5)
