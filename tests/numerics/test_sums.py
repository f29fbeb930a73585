"""Hard sums: long ones, of data far from zero, along rows, columns, both and in pieces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.draws import generator
from tests.dynamic.symbolic import Symbolic
from tests.numerics.table import held, hold, listed, measured, numbers
from tests.stages import compiled

Function = Callable[[torch.Tensor], Any]

# The mean is a million times the deviation, of which no digit of a square in float32 is left; and
# deviations of a hundred units in the last place.
NARROW = partial(numbers, 64, 3000, mean=1e3, std=1e-3)
FAR = partial(numbers, 64, 4096, mean=1e5)
ABOUT_ZERO = partial(numbers, 64, 3000)

REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "var": lambda x: x.var(1),
    "std": lambda x: x.std(1, correction=0),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, 1, keepdim=True),
    "columns, sum": lambda x: x.sum(0),
    "columns, mean": lambda x: x.mean(0),
    "columns, var": lambda x: x.var(0),
    "columns, var_mean": lambda x: torch.var_mean(x, 0, correction=0),
    "all, sum": lambda x: x.sum(),
    "all, mean": lambda x: x.mean(),
    "all, var": lambda x: x.var(),
    "all, std": lambda x: x.std(),
    "between, var": lambda x: x.view(8, 8, -1).var((0, 2)),
    "between, mean": lambda x: x.view(8, 8, -1).mean((0, 2)),
    "one axis of three": lambda x: x.view(4, 16, -1).var(1),
    "norm": lambda x: x.norm(dim=1),
    "columns, norm": lambda x: x.norm(dim=0),
    "norm of order 1": lambda x: x.norm(1, dim=1),
    "norm of order 3": lambda x: x.norm(3, dim=1),
    "all, norm": lambda x: x.norm(),
    "logsumexp": lambda x: x.logsumexp(1),
    "columns, logsumexp": lambda x: x.logsumexp(0),
    "softmax": lambda x: x.softmax(1),
    "columns, softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(1),
    "columns, log_softmax": lambda x: x.log_softmax(0),
    "cumsum": lambda x: x.cumsum(1),
    "columns, cumsum": lambda x: x.cumsum(0),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "mse_loss": lambda x: F.mse_loss(x, x.flip(0)),
    "l1_loss": lambda x: F.l1_loss(x, x.flip(0)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x.flip(0)),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x))),
    "pairwise_distance": lambda x: F.pairwise_distance(x, x.flip(0)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), dim=1),
    "cdist": lambda x: torch.cdist(x[:8], x[8:20], compute_mode="donot_use_mm_for_euclid_dist"),
    "cdist by products": lambda x: torch.cdist(x[:30], x[30:]),
    "cdist of order 1": lambda x: torch.cdist(x[:8], x[8:20], p=1),
    "adaptive_avg_pool": lambda x: F.adaptive_avg_pool1d(x[:, None], 7),
}
# Those of halves; what is summed in float32 and rounded once differs from the above in that alone.
HALF_DTYPES = [
    "sum", "var_mean", "columns, mean", "columns, var", "all, std", "norm", "logsumexp", "softmax",
    "columns, log_softmax", "cumsum", "columns, cumsum", "mse_loss", "cosine_similarity",
]  # fmt: skip
DATA = {"narrow": NARROW, "far": FAR, "about zero": ABOUT_ZERO}
# Results that are one number: of several draws.
OF_ALL = {name for name in REDUCTIONS if name.startswith("all") or name.endswith("_loss")}
OF_ALL.add("cross_entropy")
# So is what rows far from zero share: their norms are one and the same number, the rounding of its
# root is in every row, and whether a similarity is one, or the number before or behind it, is luck.
# (Eager's root is MKL's, on some processors the second nearest number, which is luckier here.)
OF_ALL.add("cosine_similarity")
# What is far from zero has other values in halves: 1e5 is none of float16.
HALF_DATA = {
    "far": partial(numbers, 64, 3000, mean=300, std=2),
    "about zero": ABOUT_ZERO,
}


def _draws(name: str, draw: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    return [draw(seed=k) for k in range(8 if name in OF_ALL else 1)]


# The mean of data about zero is what little a sum leaves. With a variance, eager adds it up in
# float64, Litz in float32: see the next test.
WITH_MEANS = {"var_mean", "std_mean", "columns, var_mean"}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_single(name: str, data: str) -> None:
    function = REDUCTIONS[name]
    variance_alone = data == "about zero" and name in WITH_MEANS
    hold((lambda x: function(x)[0]) if variance_alone else function, *_draws(name, DATA[data]))


@pytest.mark.parametrize("name", sorted(WITH_MEANS))
def test_means_about_zero(name: str) -> None:
    """Off by less than half a unit in the last place of the deviation."""
    x = ABOUT_ZERO()
    (_, exact), (deviation, mean) = REDUCTIONS[name](x.double()), compiled(REDUCTIONS[name])(x)
    apart = (mean.double() - exact).abs().max() / deviation.max()
    assert apart <= torch.finfo(torch.float32).eps / 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", HALF_DTYPES)
def test_halves(name: str, dtype: torch.dtype) -> None:
    for draw in HALF_DATA.values():
        hold(REDUCTIONS[name], *(x.to(dtype) for x in _draws(name, draw)))


# Lengths about those at which sums are written out, put aside and added in f64.
LENGTHS = [2, 5, 9, 16, 32, 33, 63, 64, 100, 128, 200, 1000]


@pytest.mark.parametrize("mean", [0, 1000])
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(length: int, mean: float) -> None:
    x = numbers(4096, length, mean=mean, seed=length)
    hold(lambda x: (x.sum(1), torch.var_mean(x, 1)[0]), x)
    hold(lambda x: (x.sum(0), torch.var_mean(x, 0)[0]), x.T.contiguous())


@pytest.mark.parametrize("bits", [128, 256])
def test_narrow_vectors(bits: int) -> None:
    given = {"cpp__simdlen": bits}
    for x in (numbers(64, 3000, mean=3), numbers(64, 100, mean=1000), NARROW()):
        hold(lambda x: (x.sum(1), x.var(1)), x, **given)
        hold(lambda x: (x.sum(0), x.var(0)), x, **given)


# 2^24 elements: in one row, in a few rows and columns, in many.
SHAPES = [(1 << 24,), (4096, 4096), (32, 1 << 19), (1 << 19, 32)]
LONG = {torch.float32: SHAPES, torch.bfloat16: SHAPES[1:2], torch.float16: SHAPES[1:2]}


@pytest.fixture(scope="module")
def sixteen_million() -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers, and the same in float64."""
    x = torch.randn(1 << 24, generator=generator()) + 3
    return x, x.double()


@pytest.mark.parametrize(
    ("dtype", "shape"), [(t, s) for t, shapes in LONG.items() for s in shapes], ids=str
)
def test_sixteen_million(
    dtype: torch.dtype, shape: tuple[int, ...], sixteen_million: tuple[torch.Tensor, ...]
) -> None:
    x, wide = sixteen_million
    if dtype is not x.dtype:
        x = x.to(dtype)
        wide = x.double()
    x, wide = x.view(shape), wide.view(shape)
    for dim in (*range(len(shape)), None):
        exact = [torch.mean(wide, dim), torch.var(wide, dim)]
        eager = [torch.mean(x, dim), torch.var(x, dim)]
        run = compiled(lambda x, dim=dim: (x.mean(dim), x.var(dim)))
        held(measured(exact, eager, listed(run(x))))


@pytest.mark.parametrize("shape", [(64, 3000), (16, 1 << 16), (1, 1 << 20)], ids=str)
def test_products(shape: tuple[int, ...]) -> None:
    """Of factors near one, so that all of them count."""
    x = numbers(*shape, mean=1, std=1e-3)
    hold(lambda x: x.prod(1), x)
    hold(lambda x: x.prod(0), x.T.contiguous())
    hold(lambda x: x.prod(), x[:1])


FUNCTIONS: dict[str, Function] = {
    "rows": lambda x: (x.sum(1), *torch.var_mean(x, 1)),
    "columns": lambda x: (x.sum(0), *torch.var_mean(x, 0)),
    "all": lambda x: (x.sum(), *torch.var_mean(x)),
    "windows": lambda x: torch.var_mean(x[:, :-1]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_symbolic_sizes(name: str) -> None:
    """One compile for all of them: short rows of which there are many, and the other way round."""
    function, symbolic = FUNCTIONS[name], Symbolic(FUNCTIONS[name])
    for rows, columns in ((64, 3000), (3000, 33), (20000, 7), (16, 100), (5, 40000)):
        for mean, std in ((1e3, 1e-3), (3.0, 1.0)):
            x = numbers(rows, columns, mean=mean, std=std, seed=columns)
            ours = listed(symbolic(x))
            held(measured(listed(function(x.double())), listed(function(x)), ours))


@pytest.mark.parametrize("length", [1000, 5000, 40000])
def test_the_error_of_a_sum_does_not_grow_with_its_length(length: int) -> None:
    """The root of the mean square over many sums, beside eager's: of one sum it may be luck."""
    x = numbers(200, length, seed=length)
    exact, eager = x.double().sum(1), torch.stack([row.sum() for row in x])
    one = compiled(torch.sum)
    ours = torch.stack([one(row) for row in x])
    errors = [(found.double() - exact).pow(2).mean().sqrt() for found in (eager, ours)]
    assert errors[1] <= 1.5 * errors[0]


@pytest.mark.parametrize("length", [20, 64, 300, 1000, 3000, 10000])
@pytest.mark.parametrize("dim", [0, 1], ids=["columns", "rows"])
def test_sums_of_nearly_equal_numbers(dim: int, length: int) -> None:
    """All additions of a run round to the same side, in every lane: of runs of 64, sums were off
    by 2.8 times as much as eager's. The root of the mean square over sums of many such numbers."""
    about = 1 + numbers(1000, 1, std=0.1, dtype=torch.float64, seed=length)
    rows = about * (1 + numbers(1000, length, std=1e-7, dtype=torch.float64, seed=length + 1))
    x = (rows if dim else rows.T.contiguous()).float()
    exact, eager, ours = x.double().sum(dim), x.sum(dim), compiled(lambda x: x.sum(dim))(x)
    errors = [(found.double() / exact - 1).pow(2).mean().sqrt() for found in (eager, ours)]
    assert errors[1] <= 2 * errors[0]
