"""Convolutions run channels last inside; what the caller sees lies where eager has it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from litz.capture import capture
from litz.config import Config
from litz.ir.graph import Graph
from litz.passes.channels_last import channels_last
from litz.target import cuda
from tests.stages import compiled, stages

X = torch.randn(2, 16, 9, 10)
W = torch.randn(16, 16, 3, 3) / 12
V = torch.randn(8, 16, 1, 1)
KEPT = torch.preserve_format

FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "one": lambda x, w, v: F.conv2d(x, w),
    "chain": lambda x, w, v: F.conv2d(F.relu(F.conv2d(x, w, padding=1)), w, stride=2) + 1,
    "view between": lambda x, w, v: F.conv2d(F.conv2d(x, w, padding=1).view(2, 16, 10, 9), v),
    "flattened": lambda x, w, v: F.adaptive_avg_pool2d(F.conv2d(x, w), 2).flatten(1).cumsum(1),
    "both seen": lambda x, w, v: (F.conv2d(x, w), F.conv2d(F.conv2d(x, w).sin(), v).sum(1)),
    "pool and indices": lambda x, w, v: F.max_pool2d(F.conv2d(x, w), 2, return_indices=True),
    "transposed result": lambda x, w, v: F.conv2d(x, w).transpose(1, 3).contiguous(),
    "reduced": lambda x, w, v: F.conv2d(x, w).softmax(1).argmax(1),
    "joined": lambda x, w, v: torch.cat([F.conv2d(x, w, padding=1), x], 1).relu(),
    "upsampled": lambda x, w, v: F.interpolate(F.conv2d(x, w), scale_factor=2, mode="bilinear"),
    "norm": lambda x, w, v: F.group_norm(F.conv2d(x, w), 4),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_strides(name: str) -> None:
    function = FUNCTIONS[name]
    found, expected = compiled(function)(X, W, V), function(X, W, V)
    pairs = (
        zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        assert mine.stride() == theirs.stride()


SIGNALS = nn.Conv1d(16, 16, 3, groups=16)  # becomes a convolution of images of one line
SHARING: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "itself": lambda x, w: (y := F.conv2d(x, w), y.unsqueeze(0)),
    "two views": lambda x, w: (
        (y := F.conv2d(x[:, :, :3], w)).squeeze(2), y.unsqueeze(0)),
    "a view of a view": lambda x, w: (y := F.conv2d(x, w), y.unsqueeze(0).view(-1)),
    "used as well": lambda x, w: (
        y := F.conv2d(x, w, padding=1), z := y.unsqueeze(0), F.conv2d(z.sin().squeeze(0), w)),
    "single pixels": lambda x, w: (y := F.conv2d(x[:, :, :3, :3], w), y.squeeze((2, 3))),
    "signals": lambda x, w: (y := SIGNALS(x[:, :, 0]), y.unsqueeze(0)),
    "part of several": lambda x, w: (
        y := F.max_pool2d(F.conv2d(x, w), 2, return_indices=True)[0], y.unsqueeze(0)),
}  # fmt: skip


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", SHARING)
def test_results_that_share_memory_still_do(
    name: str, trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["litz.passes.channels_last_training"], "LARGER", 0)
    x, w = X, W.clone().requires_grad_(trains)
    torch._dynamo.reset()
    run = torch.compile(SHARING[name], backend="litz", options={"on_error": "raise"})
    with torch.set_grad_enabled(trains):
        found, expected = run(x, w), SHARING[name](x, w)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    with torch.no_grad():
        for results in (found, expected):
            results[0].zero_()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_layouts_of_the_input(order: torch.memory_format) -> None:
    x = X.contiguous(memory_format=order)
    found, expected = compiled(F.conv2d)(x, W), F.conv2d(x, W)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert found.stride() == expected.stride()


def test_a_chain_is_moved_once_there_and_once_back() -> None:
    graph = stages(FUNCTIONS["chain"], X, W, V).graph
    moves = [n for n in graph.nodes if n.target is torch.ops.aten.clone.default]
    assert len(moves) == 3  # the image, the one weight, the result
    assert graph.module.meta["passes"]["channels_last"] == 2


def test_the_flag_acts_and_few_channels_stay() -> None:
    off = stages(FUNCTIONS["chain"], X, W, V, layout_optimization=False).graph
    assert not any(n.target is torch.ops.aten.clone.default for n in off.nodes)
    few = stages(lambda x, w: F.conv2d(x, w), torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
    assert few.graph.module.meta["passes"]["channels_last"] == 0


@pytest.mark.parametrize("groups", [1, 16])
def test_other_convolutions(groups: int) -> None:
    weight = torch.randn(16, 16 // groups, 3, 3)
    for function in (
        lambda x: F.conv2d(x, weight, groups=groups, dilation=2, padding=2),
        lambda x: F.conv_transpose2d(x, torch.ones(16, 4, 2, 2), stride=2),
        lambda x: F.conv1d(x[:, :, 0], torch.ones(4, 16, 3)),
    ):
        with torch.no_grad():
            torch._dynamo.reset()
            run = torch.compile(function, backend="litz", options={"on_error": "raise"})
            torch.testing.assert_close(run(X), function(X), rtol=1e-4, atol=1e-4)


def test_weights_are_moved_once() -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU()).eval()
    torch._dynamo.reset()
    with torch.no_grad():
        run = torch.compile(model, backend="litz", options={"on_error": "raise"})
        torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-4)
        model[0].weight.mul_(3)
        model[1].running_mean.add_(1)
        torch.testing.assert_close(run(X), model(X), rtol=1e-4, atol=1e-4)


def _on_a_gpu(function: Callable[..., Tensor], *shapes: tuple[int, ...], kind: str) -> Graph:
    """The graph of a function of halves on a GPU, which need not be there, after the pass."""
    with FakeTensorMode():
        inputs = [torch.empty(s, dtype=torch.bfloat16, device="cuda") for s in shapes]
        module = make_fx(function, tracing_mode="fake")(*inputs)
        graph = capture(module, kind)
        graph.module.meta["moved"] = channels_last(graph, cuda((9, 0), 132), Config())
    return graph


SIZES = [(9, 9, 3, 0), (12, 10, 7, 3), (12, 12, 3, 1), (11, 12, 4, 2)]


@pytest.mark.parametrize("high, wide, side, padding", SIZES)
def test_halves_on_a_gpu_and_their_colours(high: int, wide: int, side: int, padding: int) -> None:
    """Blocks of an image of three channels become pixels of twelve, and then all is moved."""

    def network(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        return F.conv2d(F.conv2d(x, w, stride=2, padding=padding).relu(), v)

    shapes = (2, 3, high, wide), (16, 3, side, side), (8, 16, 1, 1)
    graph = _on_a_gpu(network, *shapes, kind="inference")
    assert graph.module.meta["moved"] == 2
    taken = [n for n in graph.nodes if n.target is torch.ops.aten.convolution.default]
    assert taken[0].args[0].meta["val"].shape[1] == 12
    for operand in (n for conv in taken for n in conv.args[:2]):
        assert operand.meta["val"].is_contiguous(memory_format=torch.channels_last)
    inputs = [torch.randn(s, dtype=torch.bfloat16) for s in shapes]
    torch.testing.assert_close(graph.module(*inputs), network(*inputs))
    assert _on_a_gpu(network, *shapes, kind="forward").module.meta["moved"] == 0


def test_rows_that_no_window_reaches_stay_strides() -> None:
    """An image of eleven, windows of four: the last line is never read, and would be cut off."""
    shapes = (2, 3, 11, 11), (16, 3, 4, 4), (8, 16, 1, 1)
    graph = _on_a_gpu(
        lambda x, w, v: F.conv2d(F.conv2d(x, w, stride=2), v), *shapes, kind="inference"
    )
    taken = [n for n in graph.nodes if n.target is torch.ops.aten.convolution.default]
    assert taken[0].args[3] == [2, 2]


def test_a_cast_between_convolutions_follows() -> None:
    """As a batch norm of halves ends: without it each would be moved back and there again."""

    def network(x: Tensor, v: Tensor) -> Tensor:
        wide = F.conv2d(x, v).float() * 2
        return F.conv2d(wide.to(torch.bfloat16).clone().relu(), v)

    shapes = (2, 16, 9, 10), (16, 16, 1, 1)
    graph = _on_a_gpu(network, *shapes, kind="inference")
    moves = [n for n in graph.nodes if n.kwargs.get("memory_format") not in (None, KEPT)]
    assert len(moves) == 2  # the image there, the result back
    inputs = [torch.randn(s, dtype=torch.bfloat16) for s in shapes]
    torch.testing.assert_close(graph.module(*inputs), network(*inputs))


@torch.library.custom_op("litz_tests::fill_in_order_of_memory", mutates_args={"x"})
def fill_in_order_of_memory(x: Tensor) -> None:
    x.as_strided((x.numel(),), (1,)).copy_(torch.arange(float(x.numel())))


def _filled(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x, w, padding=1)
    z = (y > 0).float()
    torch.ops.litz_tests.fill_in_order_of_memory(z)
    return y * z


def _chosen(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x, w, padding=1)
    ways = (lambda y: y.view(-1).cumsum(0)), (lambda y: y.view(-1).sin())
    return torch.cond(y.sum() > 0, *ways, (y,))


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("function", [_filled, _chosen])
def test_ops_of_higher_order_see_eagers_order(
    function: Callable[..., Tensor], trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = sys.modules["litz.passes.channels_last_training"]
    monkeypatch.setattr(training, "LARGER", 0)
    x, w = (t.clone().requires_grad_(trains) for t in (X, W))
    torch._dynamo.reset()
    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    torch.testing.assert_close(run(x, w), function(x, w), rtol=1e-4, atol=1e-4)


def test_an_image_meets_a_number() -> None:
    def function(x: Tensor, w: Tensor, q: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1) * q.shape[0] + x

    q = torch.randn(7)
    torch._dynamo.mark_dynamic(q, 0)
    torch._dynamo.reset()
    run = torch.compile(function, backend="litz", options={"on_error": "raise"})
    torch.testing.assert_close(run(X, W, q), function(X, W, q), rtol=1e-4, atol=1e-4)
