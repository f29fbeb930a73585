"""Random tensors: reproducible by seed, different between calls, distributed as they should be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import litz
from litz.ir.philox import random_bits
from tests import draws

RAISE = {"on_error": "raise"}
N = 40_000


def _compiled(function: Callable[..., torch.Tensor], **options: object) -> Callable[..., object]:
    litz.reset()
    return torch.compile(function, backend="litz", options={**RAISE, **options})


def test_philox_gives_its_published_numbers() -> None:
    """The test vectors of Random123 for philox4x32-10."""
    assert random_bits(0, 0) & 0xFFFFFFFF == 0x6627E8D5
    assert (int(random_bits(0, 0)) >> 32) & 0xFFFFFFFF == 0xE169C58D


CASES: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(N),
    "rand64": lambda: torch.rand(N, dtype=torch.float64),
    "rand16": lambda: torch.rand(N, dtype=torch.bfloat16),
    "uniform": lambda: torch.ops.aten.uniform(torch.empty(N), -3.0, 5.0),
    "randn": lambda: torch.randn(N),
    "randn64": lambda: torch.randn(N, dtype=torch.float64),
    "randint": lambda: torch.randint(-3, 9, (N,)),
    "bernoulli": lambda: torch.bernoulli(torch.full((N,), 0.3)),
    "dropout": lambda: F.dropout(torch.ones(N), 0.3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_seed_fixes_the_numbers_and_calls_differ(case: str) -> None:
    explanation = litz.explain(CASES[case])
    assert set(explanation.aten_ops) == {"aten.randint.low"} and explanation.kernels == 1
    compiled = _compiled(CASES[case])
    draws.seed(7)
    first, second = compiled(), compiled()
    draws.seed(7)
    assert torch.equal(compiled(), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("case", CASES)
def test_the_moments_are_those_of_eager(case: str) -> None:
    """Mean and spread within five standard errors of the distribution eager draws from."""
    draws.seed(0)
    found, expected = _compiled(CASES[case])().double(), CASES[case]().double()
    spread = expected.std()
    assert abs(found.mean() - expected.mean()) < 5 * spread / N**0.5 * 2**0.5
    assert abs(found.std() - spread) < 0.03 * spread
    lag = ((found[1:] - found.mean()) * (found[:-1] - found.mean())).mean() / spread**2
    assert abs(lag) < 5 / N**0.5


def test_uniform_numbers_fill_their_range_evenly() -> None:
    draws.seed(0)
    found = _compiled(CASES["rand"])()
    counts = torch.histc(found, bins=64, min=0, max=1)
    chi_squared = ((counts - N / 64) ** 2 / (N / 64)).sum()
    assert found.min() >= 0 and found.max() < 1
    assert chi_squared < 63 + 5 * (2 * 63) ** 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_numbers_never_round_up_to_one(dtype: torch.dtype) -> None:
    """They are the multiples of the type's last place below one, as eager's are."""
    bits = {torch.bfloat16: 8, torch.float16: 11}[dtype]
    found = _compiled(lambda: torch.rand(N, dtype=dtype))().double() * 2**bits
    assert found.max() == 2**bits - 1
    assert torch.equal(found, found.round())


def test_fallback_random_is_eager_bit_for_bit() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.rand_like(x), torch.randn_like(x)
        return F.dropout(x, 0.5) + a * b + torch.rand(x.shape)

    x = torch.randn(64, 33)
    draws.seed(3)
    expected = function(x)
    compiled = _compiled(function, fallback_random=True)
    draws.seed(3)
    assert torch.equal(compiled(x), expected)


def test_dropout_scales_what_it_keeps_and_its_gradient_uses_the_same_mask() -> None:
    x = torch.ones(N, requires_grad=True)
    compiled = _compiled(lambda x: F.dropout(x, 0.25) * 2)
    draws.seed(1)
    y = compiled(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, y.detach())
    assert set(y.detach().unique().tolist()) == {0.0, torch.tensor(2 / 0.75).item()}


def test_a_call_advances_the_generator() -> None:
    """What comes after a compiled draw is not what would have come without it."""
    compiled = _compiled(CASES["rand"])
    compiled()
    draws.seed(5)
    untouched = torch.rand(4)
    draws.seed(5)
    compiled()
    assert not torch.equal(torch.rand(4), untouched)


def test_normal_numbers_have_the_tails_they_should() -> None:
    """Shares beyond 1, 2 and 3 deviations, within five standard errors."""
    draws.seed(0)
    found = _compiled(CASES["randn"])().abs()
    for limit, share in ((1, 0.3173), (2, 0.0455), (3, 0.0027)):
        error = (share * (1 - share) / N) ** 0.5
        assert abs((found > limit).double().mean() - share) < 5 * error


def test_integers_are_drawn_evenly() -> None:
    draws.seed(0)
    counts = torch.bincount(_compiled(CASES["randint"])() + 3, minlength=12).double()
    chi_squared = ((counts - N / 12) ** 2 / (N / 12)).sum()
    assert len(counts) == 12 and chi_squared < 11 + 5 * (2 * 11) ** 0.5


def test_integers_of_the_whole_range_differ() -> None:
    found = _compiled(lambda: torch.randint(-(2**63), 2**63 - 1, (100,)))()
    assert len(found.unique()) == 100 and found.min() < 0 < found.max()


def test_what_a_checkpoint_draws_again_is_the_same() -> None:
    """Every op that is drawn from a seed: the gradient is the factor that the forward drew."""

    def region(x: torch.Tensor) -> torch.Tensor:
        drawn = torch.rand_like(x) + torch.randn_like(x) + torch.bernoulli(x.detach(), 0.5)
        return F.dropout(x, 0.25) * drawn

    x = torch.full((N,), 0.5, requires_grad=True)
    compiled = _compiled(lambda x: checkpoint(region, x, use_reentrant=False) * x)
    draws.seed(2)
    y = compiled(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    factor = y.detach() / 0.25  # of x twice: once in the region, once behind it
    torch.testing.assert_close(gradient, factor)
    kept = factor != 0
    assert abs(kept.double().mean() - 0.75) < 5 * (0.75 * 0.25 / N) ** 0.5
    drawn = factor[kept] * 0.75  # a mean of 1/2 + 0 + 1/2, a variance of 1/12 + 1 + 1/4
    assert abs(drawn.mean() - 1) < 5 * (4 / 3 / len(drawn)) ** 0.5
    assert abs(drawn.var() - 4 / 3) < 0.05


def test_complex_numbers_of_a_checkpoint_have_imaginary_parts() -> None:
    """They are drawn once and kept: one seeded draw would make a real number of each."""

    def region(x: torch.Tensor) -> torch.Tensor:
        drawn = torch.randn(N, dtype=torch.complex64) + torch.rand(N, dtype=torch.complex64)
        return x * drawn.imag

    x = torch.ones(N, requires_grad=True)
    draws.seed(4)
    y = _compiled(lambda x: checkpoint(region, x, use_reentrant=False))(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())
    variance = 1 / 2 + 1 / 12
    assert abs(y.mean() - 0.5) < 5 * (variance / N) ** 0.5
    assert abs(y.var() - variance) < 0.05


@pytest.mark.parametrize("chance", [None, 1.5, -0.5])
def test_no_probability_is_refused_in_a_checkpoint_too(chance: float | None) -> None:
    def region(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return x * (torch.bernoulli(p) if chance is None else torch.bernoulli(p, chance))

    def called(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        return checkpoint(region, x, p, use_reentrant=False)

    x, good, bad = torch.ones(4, requires_grad=True), torch.ones(4), torch.full((4,), 1.5)
    if chance is None:
        assert torch.equal(_compiled(called)(x, good), x)
    for function in (called, _compiled(called)):
        with pytest.raises(RuntimeError, match=r"p_in <= 1|to be in"):
            function(x, bad)
