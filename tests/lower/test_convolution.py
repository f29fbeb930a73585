"""Convolutions: every kind right, and those that are ours in one kernel with what follows them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import litz
from litz.report import Explanation
from tests import draws

Where = dict[str, Any]


class Layer(nn.Module):
    """A convolution, then a function of its result and of a residual."""

    def __init__(self, layer: Any, behind: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.behind = layer, behind

    def forward(self, x: Tensor, residual: Tensor) -> Any:
        return self.behind(self.layer(x), residual)


def _alone(y: Tensor, residual: Tensor) -> Tensor:
    return y


def _agrees(layer: Any, x: Tensor, behind: Any = _alone, **options: Any) -> Explanation:
    """Errors no larger than those of eager, measured against float64.

    Of the library's kernels, the one for channels last adds in order and the one for blocks of
    channels does not: eager's error is that of the layout where it is larger, since Litz chooses
    the layout.
    """
    torch._dynamo.reset()
    settings = {"on_error": "raise", **{k.replace("__", "."): v for k, v in options.items()}}
    model = Layer(layer, behind)
    with torch.no_grad():
        inputs = (x, torch.randn_like(layer(x)))
        with litz.config.patch(settings):
            notes = litz.explain(model, *inputs)
        torch._dynamo.reset()
        found = torch.compile(model, backend="litz", options=settings)(*inputs)
        expected = model(*inputs)
        again = model(_channels_last(x), inputs[1])
        exact = copy.deepcopy(model).double()(*(t.double() for t in inputs))
    scale = exact.abs().max().item() or 1.0
    mine, *both = ((t.double() - exact).abs().max().item() for t in (found, expected, again))
    theirs = max(both)
    assert mine <= 2 * theirs + 1e-6 * scale, (mine, theirs, scale)
    steps = zip(found.shape, found.stride(), expected.stride(), strict=True)
    assert all(a == b for n, a, b in steps if n > 1)
    return notes


def _channels_last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x


def _calls(notes: Explanation) -> int:
    (graph,) = notes.graphs
    return len(graph.plan.graph.externs)


def _kernels(notes: Explanation) -> int:
    """Kernels of each call."""
    (graph,) = notes.graphs
    return len(graph.plan.graph.body) - graph.plan.graph.prepack_steps


def _choices(notes: Explanation) -> list[Any]:
    return [s.choice for g in notes.graphs for s in g.scheduled]


# -- each channel by itself --------------------------------------------------------------------

DEPTHWISE: dict[str, tuple[int, Any, tuple[int, ...], Where]] = {
    "3 x 3": (48, 3, (7, 9), {"padding": 1}),
    "a part of a vector, stride 2": (40, 3, (17, 19), {"padding": 1, "stride": 2}),
    "several blocks": (16, 5, (6, 61), {"padding": 2}),
    "dilated, more kinds than have code": (24, 7, (14, 50), {"padding": 9, "dilation": 3}),
    "long, with taps outside": (32, (3, 31), (5, 100), {"padding": (1, 15)}),
    "long, without": (32, (1, 11), (5, 100), {"stride": 2}),
    "a volume": (16, 3, (4, 5, 20), {"padding": 1}),
    "a signal": (32, 15, (57,), {"padding": 7}),
}  # fmt: skip
KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@pytest.mark.parametrize("name", DEPTHWISE)
def test_channels_by_themselves(name: str) -> None:
    draws.seed(0)
    channels, kernel, sizes, where = DEPTHWISE[name]
    layer = KINDS[len(sizes)](channels, channels, kernel, groups=channels, **where)
    x = torch.randn(2, channels, *sizes)
    notes = _agrees(layer, x, debug_index_asserts=True)
    assert not _calls(notes) and any(c.depthwise for c in _choices(notes))
    _agrees(layer, x, cpp__simdlen=256)


def test_what_follows_is_in_the_same_kernel() -> None:
    last = torch.channels_last
    x = torch.randn(1, 48, 9, 9).contiguous(memory_format=last)

    def behind(y: Tensor, r: Tensor) -> Tensor:
        return F.hardswish(y) + r

    for layer in (nn.Conv2d(48, 48, 5, padding=2, groups=48), nn.Conv2d(48, 40, 1)):
        layer.to(memory_format=last)  # type: ignore[call-overload]
        assert _kernels(_agrees(layer, x, behind)) == 1
        assert _kernels(_agrees(layer, x, behind, epilogue_fusion=False)) == 2


def test_a_reduction_behind_windows_is_a_kernel_of_its_own() -> None:
    x = torch.randn(1, 48, 9, 9).contiguous(memory_format=torch.channels_last)
    layer = nn.Conv2d(48, 48, 3, padding=1, groups=48)
    notes = _agrees(layer, x, lambda y, r: F.layer_norm(y.permute(0, 2, 3, 1), (48,)))
    assert any(c.depthwise for c in _choices(notes))


# -- single places, and windows as products ----------------------------------------------------


@pytest.mark.parametrize("sizes", [(33,), (7, 9), (3, 4, 5)])
@pytest.mark.parametrize("stride", [1, 2])
def test_single_places_are_products(sizes: tuple[int, ...], stride: int) -> None:
    draws.seed(0)
    x = torch.randn(2, 32, *sizes)
    layer = KINDS[len(sizes)](32, 50, 1, stride=stride)
    notes = _agrees(layer, x, debug_index_asserts=True)
    assert not _calls(notes) and any(c.gemm for c in _choices(notes))
    off = _agrees(layer, x, conv_1x1_as_mm=False)
    assert _calls(off) and not any(c.gemm for c in _choices(off))


WINDOWS: dict[str, tuple[int, Any, tuple[int, ...], Where]] = {
    "3 x 3": (32, 3, (7, 9), {"padding": 1}),
    "no border": (32, 3, (7, 9), {}),
    "long sums, stride, dilation": (300, 3, (9, 8), {"padding": 2, "stride": 2, "dilation": 2}),
    "a volume": (24, (1, 3, 2), (3, 6, 7), {"padding": (0, 1, 1)}),
    "a signal": (40, 5, (33,), {"padding": 4}),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_as_products_where_there_is_no_onednn(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws.seed(0)
    monkeypatch.setattr("torch.backends.mkldnn.is_available", lambda: False)
    channels, kernel, sizes, where = WINDOWS[name]
    x = torch.randn(2, channels, *sizes)
    layer = KINDS[len(sizes)](channels, 48, kernel, **where)
    notes = _agrees(layer, x, lambda y, r: F.mish(y) + r, debug_index_asserts=True)
    products = [c.gemm for c in _choices(notes) if c.gemm]
    assert not _calls(notes) and len(products) == 1 and products[0].taps > 1


def test_windows_over_few_channels_are_products_in_any_case() -> None:
    x = torch.randn(1, 40, 9, 9).contiguous(memory_format=torch.channels_last)
    layer = nn.Conv2d(40, 48, 3, padding=1).to(memory_format=torch.channels_last)  # type: ignore
    notes = _agrees(layer, x, lambda y, r: F.relu6(y) + r)
    assert not _calls(notes) and _kernels(notes) == 1


# -- what stays with the library ---------------------------------------------------------------

OTHERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "3 x 3": (nn.Conv2d(96, 40, 3, padding=1), (96, 8, 9)),
    "groups": (nn.Conv2d(32, 40, 3, groups=4), (32, 8, 9)),
    "few channels": (nn.Conv2d(3, 40, 3, stride=2), (3, 18, 19)),
    "transposed": (nn.ConvTranspose2d(16, 24, 4, stride=2, padding=1), (16, 7, 5)),
    "transposed with groups": (nn.ConvTranspose2d(16, 24, 2, stride=2, groups=2), (16, 7, 5)),
    "transposed signal": (nn.ConvTranspose1d(16, 24, 8, stride=4, padding=2), (16, 30)),
    "transposed volume": (
        nn.ConvTranspose3d(16, 8, 3, stride=2, output_padding=1), (16, 3, 4, 5)),
    "volume": (nn.Conv3d(16, 24, 3, padding=1), (16, 4, 5, 6)),
    "signal": (nn.Conv1d(16, 24, 5, stride=2), (16, 40)),
    "signal of one channel": (nn.Conv1d(1, 24, 10, stride=5), (1, 200)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions(name: str) -> None:
    draws.seed(0)
    layer, sizes = OTHERS[name]
    notes = _agrees(layer, torch.randn(2, *sizes), lambda y, r: F.silu(y))
    assert _calls(notes)
    _agrees(layer, torch.randn(2, *sizes), lambda y, r: (y + r).relu(), layout_optimization=False)


def test_results_follow_changed_parameters() -> None:
    x = torch.randn(1, 32, 9, 9)
    model = nn.Sequential(
        nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 48, 1), nn.Conv2d(48, 16, 3)
    )
    torch._dynamo.reset()
    run = torch.compile(model, backend="litz", options={"on_error": "raise"})
    with torch.no_grad():
        for layer in model:
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
            layer.weight.mul_(2)
            layer.bias.data.add_(1)
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)


def test_the_choice_has_a_reason() -> None:
    torch._dynamo.reset()
    with torch.no_grad(), litz.config.patch({"layout_optimization": False}):
        (graph,) = litz.explain(nn.Conv2d(96, 32, 3), torch.randn(1, 96, 9, 9)).graphs
    reasons = [d.reason for d in graph.plan.graph.decisions if "library convolves" in d.reason]
    assert len(reasons) == 1 and "many channels" in reasons[0]
