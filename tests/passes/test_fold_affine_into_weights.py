"""What scales and shifts the channels of a layer goes into its weights, and follows them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

import litz
from litz.backend import litz as litz_backend
from litz.ir.expr import walk
from litz.ir.program import Kernel
from litz.report import Explanation
from tests import draws


def _norm(channels: int, kind: type[nn.Module] = nn.BatchNorm2d) -> nn.Module:
    norm = kind(channels)
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        nn.init.normal_(tensor)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
    return norm


class Scaled(nn.Module):
    """Numbers and factors on either side of the ops that fold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)
        self.gamma = nn.Parameter(torch.randn(8, 1, 1))
        self.beta = nn.Parameter(torch.randn(1, 8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (3 - self.conv(x) / 4 * self.gamma) * 0.5 + self.beta - 1


class LayerScale(nn.Module):
    """Rows in three dimensions, a factor a column, a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 40)
        self.gamma = nn.Parameter(torch.randn(40))

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.gamma + 0.5).relu()


class MatrixBias(nn.Module):
    """What is added differs from row to row: no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 40))
        self.bias, self.gamma = (nn.Parameter(torch.randn(n, 40)) for n in (30, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight) * self.gamma


X = torch.randn(2, 4, 9, 9)
ROWS = torch.randn(30, 24)

MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "bias": lambda: (nn.Sequential(nn.Conv2d(4, 8, 3), _norm(8), nn.ReLU()), X),
    "no bias": lambda: (nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), _norm(8)), X),
    "groups": lambda: (nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), _norm(8)), X),
    "one dimension": lambda: (
        nn.Sequential(nn.Conv1d(4, 8, 3), _norm(8, nn.BatchNorm1d)), torch.randn(2, 4, 9)
    ),
    "three dimensions": lambda: (
        nn.Sequential(nn.Conv3d(4, 8, 3), _norm(8, nn.BatchNorm3d)), torch.randn(2, 4, 5, 5, 5)
    ),
    "numbers and factors": lambda: (Scaled(), X),
    "linear": lambda: (nn.Sequential(nn.Linear(24, 40), _norm(40, nn.BatchNorm1d)), ROWS),
    "linear, no bias": lambda: (
        nn.Sequential(nn.Linear(24, 40, bias=False), _norm(40, nn.BatchNorm1d)), ROWS
    ),
    "tiny linear": lambda: (nn.Sequential(nn.Linear(24, 4), _norm(4, nn.BatchNorm1d)), ROWS),
    "rows in three dimensions": lambda: (LayerScale(), ROWS.view(3, 10, 24)),
    "a matrix for a bias": lambda: (MatrixBias(), ROWS),
}  # fmt: skip


# torch asks whether a convolution over three dimensions has one element, which symbols leave open.
WAYS = [*((name, None) for name in MODELS), ("three dimensions", True)]


@pytest.mark.parametrize(("name", "dynamic"), WAYS)
def test_models(name: str, dynamic: bool | None) -> None:
    torch._dynamo.reset()
    draws.seed(0)
    model, x = MODELS[name]()
    model.eval()
    options = {"on_error": "raise"}
    compiled = torch.compile(model, backend="litz", dynamic=dynamic, options=options)

    def agree() -> None:
        expected = copy.deepcopy(model).double()(x.double())
        torch.testing.assert_close(compiled(x).double(), expected, rtol=2e-5, atol=2e-5)

    with torch.no_grad():
        agree()
        for parameter in (*model.parameters(), *model.buffers()):
            if parameter.is_floating_point():
                parameter.mul_(1.5)  # weights follow
        agree()


def _explained(model: nn.Module, x: Tensor) -> Explanation:
    with torch.no_grad():
        return litz.explain(model, x)


def _ops_at_each_call(model: nn.Module, x: Tensor, **options: object) -> set[str]:
    """The ops of the kernels that a warm call runs."""
    with torch.no_grad(), litz.config.patch(options):
        (report,) = litz.explain(model, x).graphs
    graph = report.plan.graph
    kernels = [k for k in graph.body[graph.prepack_steps :] if isinstance(k, Kernel)]
    return {n.op for k in kernels for s in k.stores for n in walk(s.value)}


def test_a_batch_norm_costs_a_call_nothing() -> None:
    model, x = MODELS["bias"]()
    model.eval()
    assert _ops_at_each_call(model, x) <= {"load", "axis", "const", "max"}
    unfolded = _ops_at_each_call(model, x, **{"cpp.weight_prepack": False})
    assert unfolded >= {"mul", "sub", "rsqrt"}  # nothing is kept: then it is cheaper as it was


@pytest.mark.parametrize("name", ["linear", "rows in three dimensions"])
def test_factors_behind_a_linear_layer_cost_a_call_nothing(name: str) -> None:
    model, x = MODELS[name]()
    model.eval()
    rest = {"load", "axis", "const", "reduce", "floordiv", "mod"}
    assert _ops_at_each_call(model, x) <= rest | {"add", "mul", "max"}
    (report,) = _explained(model, x).graphs
    scaled = [k for k in report.kernels[report.plan.graph.prepack_steps :] if len(k.reads) > 3]
    assert not scaled  # rows, panels and a bias: no factors are read


class ZeroDivisor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 40)
        self.gamma = nn.Parameter(torch.tensor([0.0, 1.0, -0.0, 2.0] * 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) / self.gamma


FACTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "zero": lambda y: y / 0.0,
    "an integer": lambda y: y / 0,
    "infinity": lambda y: y * float("inf"),
}


@pytest.mark.parametrize("name", ["a parameter", *FACTORS])
@torch.no_grad()
def test_what_becomes_infinite_is_no_nan(name: str) -> None:
    """In a weight, an infinite factor would make a sum of infinities of either sign."""

    class Infinite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(24, 40)

        def forward(self, x: Tensor) -> Tensor:
            return FACTORS[name](self.linear(x))

    torch._dynamo.reset()
    model = ZeroDivisor() if name == "a parameter" else Infinite()
    expected = model(ROWS)
    assert expected.isinf().any() and not expected.isnan().any()
    run = torch.compile(model, backend="litz", options={"on_error": "raise"})
    torch.testing.assert_close(run(ROWS), expected)


def test_what_is_seen_elsewhere_stays() -> None:
    model, x = MODELS["bias"]()
    model.eval()

    class Seen(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            between = model[0](x)  # type: ignore[index]
            return between, model[1](between)  # type: ignore[index]

    assert "mul" in _ops_at_each_call(Seen(), x)


def test_training_graphs_are_left_alone() -> None:
    model, x = MODELS["bias"]()
    compiled = torch.compile(model, backend="litz", options={"on_error": "raise"})
    torch.testing.assert_close(compiled(x), copy.deepcopy(model)(x), rtol=1e-4, atol=1e-4)


# -- shapes ------------------------------------------------------------------------------------


class Times(nn.Module):
    """A layer, what is done to its result with a parameter, and what is done then."""

    def __init__(
        self, layer: nn.Module, shape: tuple[int, ...], then: Callable[[Tensor], Tensor],
        op: Callable[[Tensor, Tensor], Tensor] = torch.mul,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layer, self.then, self.op = layer, then, op
        self.factor = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self.op(self.layer(x), self.factor))


def _as_it_is(y: Tensor) -> Tensor:
    return y


WIDER: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a sum over a new dimension": (
        lambda: Times(nn.Linear(24, 40), (1, 1, 40), lambda y: y.sum(0)), (7, 24)
    ),
    "a result with a new dimension": (
        lambda: Times(nn.Linear(24, 40), (1, 1, 40), _as_it_is), (7, 24)
    ),
    "a sum with a new dimension": (
        lambda: Times(nn.Linear(24, 40, bias=False), (1, 1, 1, 40), lambda y: y.mean(1), torch.add),
        (7, 24),
    ),
    "rows that a parameter repeats": (
        lambda: Times(nn.Linear(24, 40), (5, 1, 40), lambda y: y.sum(0)), (7, 24)
    ),
    "channels in place of images": (
        lambda: Times(nn.Conv2d(4, 8, 3), (1, 8, 1, 1, 1), lambda y: y.sum(1)), (8, 4, 5, 5)
    ),
    "channels, and a new dimension before them": (
        lambda: Times(nn.Conv2d(4, 8, 3), (1, 1, 8, 1, 1), lambda y: y.amax(0)), (2, 4, 5, 5)
    ),
    "one number in many dimensions": (
        lambda: Times(nn.Conv2d(4, 8, 3), (1, 1, 1, 1, 1), lambda y: y.sum(2)), (2, 4, 5, 5)
    ),
    "a number for each line": (
        lambda: Times(nn.Conv2d(4, 8, 3), (3, 1), _as_it_is), (2, 4, 5, 5)
    ),
}  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WIDER)
@torch.no_grad()
def test_a_fold_keeps_the_shape(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    draws.seed(0)
    make, shape = WIDER[name]
    model = make()
    run = torch.compile(model, backend="litz", dynamic=dynamic, options={"on_error": "raise"})
    x = torch.randn(shape)
    expected = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(run(x).double(), expected, rtol=2e-5, atol=2e-5)
    assert run(x).stride() == model(x).stride()


class ParametersAlone(nn.Module):
    """Rows that are parameters too: what is behind them stands on the layer itself."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(30, 24))
        self.first, self.second = nn.Linear(24, 40), nn.Linear(24, 40, bias=False)
        self.gamma = nn.Parameter(torch.randn(40))

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.first(self.rows) * self.gamma
        return self.second(x) * scaled[0] + scaled


class Shown(nn.Module):
    """A factor that the caller gets is made at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 40)
        self.gamma = nn.Parameter(torch.randn(40))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        factor = self.gamma * 2
        return self.linear(x) * factor, factor


@pytest.mark.parametrize("kind", [ParametersAlone, Shown])
@torch.no_grad()
def test_what_is_made_of_parameters(kind: type[nn.Module]) -> None:
    torch._dynamo.reset()
    draws.seed(0)
    model = kind()
    run = torch.compile(model, backend="litz", options={"on_error": "raise"})
    torch.testing.assert_close(run(ROWS), model(ROWS), rtol=2e-5, atol=2e-5)


# -- numbers -----------------------------------------------------------------------------------

INF, NAN = float("inf"), float("nan")
ODD = (INF, -INF, NAN, 0.0, -0.0, 3e38, 1e-41, 1e-30, -1e30)


def _same_numbers(found: Tensor, expected: Tensor) -> None:
    """NaN, infinities and zeros of either sign where eager has them."""
    torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    zero = expected == 0
    assert torch.equal(found[zero].signbit(), expected[zero].signbit())


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 40)
        self.odd = nn.Parameter(torch.randn(40))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.odd


class Shift(Scale):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.odd + 3e38


class Affine(Scale):
    """The window of a pad sees zeros alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(4, 40, 1, padding=1, bias=False)  # type: ignore[assignment]
        self.beta = nn.Parameter(torch.randn(40))

    def forward(self, x: Tensor) -> Tensor:
        scaled = self.layer(x) * self.odd.view(-1, 1, 1)
        return scaled + self.beta.view(-1, 1, 1)


class Twice(Scale):
    """The second factor makes up for the first, but what overflows in between stays infinite."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.odd * (1 / self.odd)


class Weights(Scale):
    """The weights themselves are odd."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((40,), 3.0))
        self.odd = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.gamma


def _inputs(model: nn.Module) -> Tensor:
    draws.seed(1)
    x = torch.randn(2, 4, 5, 5) if isinstance(model, Affine) else torch.randn(7, 24)
    x[0] = 0
    return x


@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize("kind", [Scale, Twice, Shift, Affine, Weights])
@torch.no_grad()
def test_numbers_that_no_weight_may_carry(kind: type[Scale], freezing: bool) -> None:
    torch._dynamo.reset()
    draws.seed(0)
    model = kind()
    for k, number in enumerate(ODD):
        model.odd.view(-1)[k] = number
    x = _inputs(model)
    options = {"on_error": "raise", "freezing": freezing}
    _same_numbers(torch.compile(model, backend="litz", options=options)(x), model(x))


@pytest.mark.parametrize("kind", [Scale, Twice, Shift, Affine, Weights])
@torch.no_grad()
def test_numbers_that_become_so(kind: type[Scale]) -> None:
    """Parameters that change behind a compile: there, and back."""
    torch._dynamo.reset()
    draws.seed(0)
    model = kind()
    x = _inputs(model)
    run = torch.compile(model, backend="litz", options={"on_error": "raise"})
    usual = model.odd.clone()
    for number in (1.5, *ODD, 2.5):
        model.odd.copy_(usual)
        model.odd.view(-1)[3] = number
        for _ in range(2):
            _same_numbers(run(x), model(x))


@torch.no_grad()
def test_usual_numbers_are_folded() -> None:
    """A channel that is switched off is one of them, as at the start of a ResNet's training."""
    torch._dynamo.reset()
    draws.seed(0)
    model = nn.Sequential(nn.Conv2d(4, 8, 3), _norm(8)).eval()
    nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
    explanation = Explanation()
    run = torch.compile(model, backend=partial(litz_backend, explanation=explanation))
    torch.testing.assert_close(run(X), model(X))
    assert len(explanation.graphs) == 1  # none without folds
