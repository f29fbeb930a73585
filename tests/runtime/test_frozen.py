"""Freezing: parameters are constants, later changes are refused, discarded ones have no memory."""

from __future__ import annotations

import copy
import gc
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from litz.backend import ParameterSpecialized
from litz.backend import litz as backend
from litz.errors import DiscardedParameter, FrozenParameterChanged
from litz.ir.program import Extern
from litz.report import Explanation, Report
from litz.runtime import CompiledGraph
from tests import draws


class Model(nn.Module):
    """A product and a convolution with batch norms, and a constant subgraph with an ATen call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(64, 96), nn.BatchNorm1d(96)
        self.conv, self.norm2 = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.left, self.right = (nn.Parameter(torch.randn(96, 96) / 40) for _ in range(2))
        for norm in (self.norm, self.norm2):
            norm.running_mean.normal_()  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]

    def forward(self, x: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.norm(self.linear(x)).relu() @ torch.linalg.matrix_exp(self.left @ self.right)
        return rows, self.norm2(self.conv(image)).relu()


def _inputs() -> tuple[Tensor, Tensor]:
    draws.seed(1)
    return torch.randn(40, 64), torch.randn(2, 3, 12, 12)


def _model() -> Model:
    draws.seed(0)
    return Model().eval()


def _compiled(model: nn.Module, **options: Any) -> tuple[Any, Explanation]:
    torch._dynamo.reset()
    notes = Explanation()
    settings = {"freezing": True, "on_error": "raise", **options}
    dynamic = settings.pop("dynamic", None)
    run = partial(backend, explanation=notes, options=settings)
    return torch.compile(model, backend=run, dynamic=dynamic), notes


def _unmet(notes: Explanation) -> list[str]:
    return [d.reason for g in notes.graphs for d in g.decisions if d.action == "unmet"]


def _report(notes: Explanation) -> Report:
    (report,) = notes.graphs
    return report


@torch.no_grad()
def test_a_frozen_model_gives_what_eager_gives() -> None:
    model, inputs = _model(), _inputs()
    exact = copy.deepcopy(model).double()(*(t.double() for t in inputs))
    run, notes = _compiled(model)
    for _ in range(2):
        for found, expected in zip(run(*inputs), exact, strict=True):
            torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-3)
    assert not _unmet(notes)


@torch.no_grad()
def test_what_is_made_of_parameters_is_made_once() -> None:
    """The exponential is ATen's and runs at each call, unless it is frozen."""
    model, inputs = _model(), _inputs()
    called = []
    for freezing in (False, True):
        run, notes = _compiled(model, freezing=freezing)
        run(*inputs)
        graph = _report(notes).plan.graph
        steps = graph.body[graph.prepack_steps :]
        called.append([s.target for s in steps if isinstance(s, Extern)])
    assert any("matrix_exp" in name for name in called[0])
    assert not any("matrix_exp" in name for name in called[1])


@torch.no_grad()
@pytest.mark.parametrize("change", ["in place", "copy"])
def test_a_changed_parameter_is_refused(change: str) -> None:
    model, inputs = _model(), _inputs()
    run, _ = _compiled(model)
    run(*inputs)
    run(*inputs)
    if change == "in place":
        model.linear.weight.mul_(2)
    else:
        model.linear.weight.copy_(torch.randn(96, 64))
    with pytest.raises(FrozenParameterChanged, match=r"parameter linear\.weight was changed"):
        run(*inputs)
    torch._dynamo.reset()
    for found, expected in zip(run(*inputs), model(*inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_without_freezing_results_follow() -> None:
    model, inputs = _model(), _inputs()
    run, _ = _compiled(model, freezing=False)
    run(*inputs)
    model.linear.weight.mul_(2)
    torch.testing.assert_close(run(*inputs)[0], model(*inputs)[0], rtol=1e-3, atol=1e-3)


def test_a_training_graph_is_not_frozen() -> None:
    layer, x = nn.Linear(64, 64), torch.randn(20, 64)
    run, notes = _compiled(layer)
    run(x).sum().backward()
    assert layer.weight.grad is not None
    assert all("gradients are wanted" in reason for reason in _unmet(notes)) and _unmet(notes)
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_symbolic_sizes_say_why_they_are_not_frozen() -> None:
    layer = nn.Linear(64, 64)
    run, notes = _compiled(layer, dynamic=True)
    for rows in (20, 30):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)
    assert notes.graphs and len(_unmet(notes)) == len(notes.graphs)


@torch.no_grad()
def test_a_write_that_is_not_counted_changes_nothing() -> None:
    """Neither what is packed, nor what is read as it was (the bias), nor a part of it."""
    layer, x = nn.Linear(64, 64), torch.randn(20, 64)
    layer.bias = nn.Parameter(torch.randn(128)[::2])
    run, _ = _compiled(layer)
    before = run(x)
    layer.weight.data.mul_(2)
    layer.bias.data.add_(1)
    assert torch.equal(run(x), before)


@torch.no_grad()
def test_inference_tensors_are_not_frozen() -> None:
    """torch does not count their changes."""
    layer, x = nn.Linear(64, 64), torch.randn(20, 64)
    with torch.inference_mode():
        layer.bias = nn.Parameter(torch.randn(64))
    run, notes = _compiled(layer)
    torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)
    with torch.inference_mode():
        layer.bias.mul_(2)
    torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)
    (reason,) = _unmet(notes)
    assert "inference mode" in reason
    layer.weight.mul_(2)
    with pytest.raises(FrozenParameterChanged, match="parameter weight was changed"):
        run(x)


class Applied(nn.Module):
    """Modules of one class, of which Dynamo makes one graph."""

    def forward(self, layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x).relu()


def _agree(run: Any, layers: list[nn.Linear], x: Tensor) -> None:
    for layer in layers:
        torch.testing.assert_close(run(layer, x), layer(x).relu(), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_modules_that_share_a_graph_are_frozen_one_by_one() -> None:
    layers, x = [nn.Linear(64, 64) for _ in range(3)], torch.randn(20, 64)
    run, notes = _compiled(Applied())
    for _ in range(2):
        _agree(run, layers, x)
    assert len(notes.graphs) == 3 and not _unmet(notes)
    layers[1].bias.mul_(2)
    _agree(run, layers[::2], x)
    with pytest.raises(FrozenParameterChanged, match=r"bias was changed"):
        run(layers[1], x)


@torch.no_grad()
def test_a_module_in_the_place_of_a_dead_one_is_another() -> None:
    x = torch.randn(20, 64)
    run, _ = _compiled(Applied())
    for _ in range(4):  # the allocator gives each the addresses of the one before
        _agree(run, [nn.Linear(64, 64)], x)


@torch.no_grad()
def test_a_replaced_parameter_is_another() -> None:
    layer, x = nn.Linear(64, 64), torch.randn(20, 64)
    run, notes = _compiled(layer)
    run(x)
    layer.weight.data = layer.weight.data * 2
    torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)
    assert len(notes.graphs) == 2


@torch.no_grad()
def test_too_many_modules_are_not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParameterSpecialized, "MOST", 1)
    layers, x = [nn.Linear(64, 64) for _ in range(4)], torch.randn(20, 64)
    run, notes = _compiled(Applied())
    _agree(run, layers, x)
    assert len(notes.graphs) == 3 and len(_unmet(notes)) == 1
    layers[3].weight.mul_(2)
    _agree(run, layers, x)


@torch.no_grad()
def test_a_discarded_module_is_not_taken_for_another() -> None:
    layers, x = [nn.Linear(64, 64) for _ in range(2)], torch.randn(20, 64)
    expected = [layer(x).relu() for layer in layers]
    run, _ = _compiled(Applied(), freezing_discard_parameters=True)
    for layer, values in zip(layers, expected, strict=True):
        torch.testing.assert_close(run(layer, x), values, rtol=1e-4, atol=1e-4)
    with pytest.raises(DiscardedParameter, match="the graph of another module was called"):
        [run(layer, x) for layer in layers]


@torch.no_grad()
def test_a_parameter_that_is_returned_is_the_users_own() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x @ self.weight, self.weight, self.weight[:2]

    model, x = Both(), torch.randn(20, 64)
    run, _ = _compiled(model)
    product, weight, rows = run(x)
    torch.testing.assert_close(product, x @ model.weight, rtol=1e-4, atol=1e-4)
    assert weight.data_ptr() == model.weight.data_ptr() == rows.data_ptr()


class Tied(nn.Module):
    """One weight twice, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 256, bias=False)
        self.second = nn.Linear(256, 256, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("offset", torch.randn(256))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu()) + self.offset


@torch.no_grad()
def test_discarded_parameters_have_no_memory() -> None:
    draws.seed(0)
    model, x = Tied(), torch.randn(20, 256)
    expected = model(x)
    storage = StorageWeakRef(model.first.weight.untyped_storage())
    run, notes = _compiled(model, freezing_discard_parameters=True, nan_asserts=True)
    for _ in range(3):
        torch.testing.assert_close(run(x), expected, rtol=1e-4, atol=1e-4)
    assert len(notes.graphs) == 1  # nothing was compiled again
    gc.collect()
    assert storage.expired()
    assert model.first.weight.shape == (256, 256)
    assert "discarded" in repr(model.first.weight)


USES: dict[str, Any] = {
    "a call": lambda m: m(torch.randn(2, 256)),
    "arithmetic": lambda m: m.first.weight + 1,
    "in place": lambda m: m.first.weight.mul_(2),
    "data": lambda m: m.first.weight.data,
    "a cast": lambda m: m.double(),
    "a copy": lambda m: copy.deepcopy(m),
    "a state dict": lambda m: m.state_dict(),
    "numpy": lambda m: m.first.weight.detach().numpy(),
    "a buffer": lambda m: m.offset.sum(),
    "an assignment": lambda m: setattr(m.first.weight, "data", torch.randn(256, 256)),
    "an element": lambda m: m.first.weight[0, 0].item(),
}


@torch.no_grad()
def test_every_use_of_a_discarded_parameter_says_so() -> None:
    model, x = Tied(), torch.randn(20, 256)
    run, _ = _compiled(model, freezing_discard_parameters=True)
    run(x)
    for name, use in USES.items():
        with pytest.raises(DiscardedParameter, match="freezing_discard_parameters"):
            pytest.fail(f"{name} gave {use(model)}")
    run(x)


@torch.no_grad()
def test_what_is_not_frozen_is_not_discarded() -> None:
    model, x = Tied(), torch.randn(20, 256)
    run, notes = _compiled(model, freezing=False, freezing_discard_parameters=True)
    for _ in range(2):
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert any("only what is frozen is discarded" in reason for reason in _unmet(notes))


@torch.no_grad()
def test_what_shares_memory_with_a_discarded_parameter_keeps_it() -> None:
    model, x = Tied(), torch.randn(20, 256)
    rows = model.first.weight.data[:2]
    before = rows.clone()
    run, _ = _compiled(model, freezing_discard_parameters=True)
    run(x)
    assert torch.equal(rows, before)


@torch.no_grad()
def test_effects_do_not_move_the_parameters() -> None:
    """Their tokens stand before the parameters among the inputs."""

    class Inverse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(64) + torch.rand(64, 64) / 100)

        def forward(self, x: Tensor) -> Tensor:
            return x @ torch.linalg.inv(self.weight)

    model, x = Inverse(), torch.randn(20, 64)
    run, notes = _compiled(model)
    for _ in range(2):
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert not _unmet(notes)


@torch.no_grad()
def test_a_call_of_a_frozen_graph_looks_at_versions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.Linear(64, 64), torch.randn(20, 64)
    made: list[CompiledGraph] = []
    begin = CompiledGraph.__init__

    def noted(self: CompiledGraph, *args: Any) -> None:
        begin(self, *args)
        made.append(self)

    monkeypatch.setattr(CompiledGraph, "__init__", noted)
    for freezing in (False, True):
        _compiled(layer, freezing=freezing)[0](x)
    assert "refresh(" in made[0].text and "still(" not in made[0].text
    assert "refresh(" not in made[1].text and "still(" in made[1].text
    assert made[1].prepacked is not None and made[1].prepacked.made == 1
    assert len(made[1].constants) == 1  # the bias; of the weight there are panels alone
