"""Norms of hard data: far from zero, nearly constant, constant; and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests.numerics.table import Errors, held, hold, measured, numbers
from tests.stages import compiled

Norm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Each over rows x channels x points, with a factor and a shift for each channel.
NORMS: dict[str, Norm] = {
    "layer": lambda x, w, b: F.layer_norm(x.mT, x.shape[1:2], w, b),
    "layer, two axes": lambda x, w, b: F.layer_norm(x, x.shape[1:]) * w[:, None] + b[:, None],
    "group": lambda x, w, b: F.group_norm(x, 4, w, b),
    "instance": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "batch, columns": lambda x, w, b: F.batch_norm(x[:, :, 0], None, None, w, b, training=True),
    "rms": lambda x, w, b: F.rms_norm(x.mT, x.shape[1:2], w) + b,
    "by hand": lambda x, w, b: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5),
}
DATA = {
    "far": partial(numbers, 16, 64, 40, mean=1e5),
    "narrow": partial(numbers, 16, 64, 40, mean=1e3, std=1e-3),
    "about zero": partial(numbers, 16, 64, 40),
    "about one": partial(numbers, 16, 64, 40, mean=1, std=0.5),
    "constant": partial(torch.full, (16, 64, 40), 285.0),
}


def _plain(norm: Norm) -> Callable[[torch.Tensor], torch.Tensor]:
    """Without a factor: what a norm itself gives."""
    return lambda x: norm(x, x.new_ones(x.shape[1]), x.new_zeros(x.shape[1]))


@pytest.mark.parametrize("data", ["far", "narrow", "about zero", "about one"])
@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str, data: str) -> None:
    hold(_plain(NORMS[name]), DATA[data]())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_halves(name: str, dtype: torch.dtype) -> None:
    hold(_plain(NORMS[name]), numbers(16, 64, 40, mean=300, std=2, dtype=dtype))


def test_channels_last() -> None:
    for x in (numbers(8, 64, 10, 10, mean=1e5), numbers(8, 64, 10, 10, mean=1e3, std=1e-3)):
        last = x.contiguous(memory_format=torch.channels_last)
        hold(lambda x: F.batch_norm(x, None, None, training=True), last)
        hold(lambda x: F.group_norm(x, 8), last)


# Numbers with few and with many digits.
CONSTANTS = [285.0, 1e5 + 0.37, 0.1, -7.7e7]


@pytest.mark.parametrize("value", CONSTANTS)
@pytest.mark.parametrize("length", [3, 8, 31, 64, 285, 4097, 70000])
def test_rows_of_one_number(length: int, value: float) -> None:
    """A variance of zero and nothing else: no rounding makes up one."""
    x = torch.full((3, length), value)
    run = compiled(lambda x: (*torch.var_mean(x, 1), F.layer_norm(x, x.shape[1:])))
    variance, mean, normed = run(x)
    assert not variance.any() and not normed.any() and torch.equal(mean, x[:, 0])
    variance, mean = compiled(lambda x: torch.var_mean(x, 0))(x.T.contiguous())
    assert not variance.any() and torch.equal(mean, x[:, 0])


@pytest.mark.parametrize("value", CONSTANTS)
@pytest.mark.parametrize("length", [8, 64, 285, 4096])
def test_other_norms_of_one_number(length: int, value: float) -> None:
    x = torch.full((3, 8, length), value)
    norms = (
        lambda x: F.group_norm(x, 2),
        F.instance_norm,
        lambda x: F.batch_norm(x, None, None, training=True),
    )
    for norm in norms:
        assert not compiled(norm)(x).any()


@pytest.mark.parametrize("value", CONSTANTS)
@pytest.mark.parametrize("length", [8, 31, 285, 4097, 70000])
def test_rows_of_nearly_one_number(length: int, value: float) -> None:
    """One or two elements are the next float. For such data float64 has too few digits for its own
    way to a variance: the exact one is that of the distances from the constant."""
    x = torch.full((3, length), value)
    x[:, length // 2] = torch.nextafter(x[0, 0], torch.tensor(torch.inf))
    x[1, 0] = torch.nextafter(x[1, 1], torch.tensor(-torch.inf))

    def exact(x: torch.Tensor) -> torch.Tensor:
        return (x - float(torch.tensor(value))).var(1)

    hold(lambda x: x.var(1), x, exact=exact)
    hold(lambda x: x.var(0), x.T.contiguous(), exact=lambda x: exact(x.T))
    hold(lambda x: F.layer_norm(x, x.shape[1:]), x)


# -- gradients -------------------------------------------------------------------------------

GRADIENTS: dict[str, Norm] = {
    **NORMS,
    "var": lambda x, w, b: x.var(-1) * w,
    "std of several axes": lambda x, w, b: x.std((0, 2)) * w,
    "norm": lambda x, w, b: x.norm(dim=-1) * w,
    "normalize": lambda x, w, b: F.normalize(x, dim=1),
    "softmax": lambda x, w, b: x.softmax(-1),
    "log_softmax": lambda x, w, b: x.log_softmax(1),
    "logsumexp": lambda x, w, b: x.logsumexp(-1) * w,
    "cumsum": lambda x, w, b: x.cumsum(-1),
    "mse_loss": lambda x, w, b: F.mse_loss(x, x.flip(0) * w[:, None]),
}


def _gradients(function: Norm, x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """Of all that has one."""
    weight, bias = numbers(64, seed=1), numbers(64, seed=2)
    given = [t.to(dtype).detach().clone().requires_grad_() for t in (x, weight, bias)]
    result = function(*given)
    weights = numbers(*result.shape, seed=3).to(dtype)
    found = torch.autograd.grad(result, given, weights, allow_unused=True)
    return [t for t in found if t is not None]


CASES = [(name, data) for name in GRADIENTS for data in ("narrow", "about zero")]
CASES += [(name, data) for name in NORMS for data in ("far", "constant")]


@pytest.mark.parametrize(("name", "data"), CASES)
def test_gradients(name: str, data: str) -> None:
    """A gradient is a product of sums, each of them rounded: two units are allowed where eager is
    nearer than one."""
    x = DATA[data]()
    torch._dynamo.reset()
    ours = torch.compile(GRADIENTS[name], backend="litz", options={"on_error": "raise"})
    exact = _gradients(GRADIENTS[name], x, torch.float64)
    eager = _gradients(GRADIENTS[name], x, torch.float32)
    found = measured(exact, eager, _gradients(ours, x, torch.float32))
    held([Errors(max(e.eager, 1), e.litz) for e in found])
