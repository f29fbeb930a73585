"""Reductions, softmax, norms and scans against eager: types, dimensions, ties, NaN, nothing."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from tests import draws
from tests.lower.agreement import DTYPES, FLOATS, Function, agree, numbers, takes
from tests.stages import compiled

DIMS: list[tuple[str, dict[str, object]]] = [
    ("row", {"dim": -1}),
    ("column", {"dim": 0}),
    ("middle, kept", {"dim": 1, "keepdim": True}),
]


def over(name: str, many: bool = True) -> dict[str, Function]:
    """A reduction over each set of dimensions."""
    function = getattr(torch, name)
    table = {f"{name} {w}": lambda x, k=k: function(x, **k) for w, k in DIMS}
    if many:
        table[f"{name} two"] = lambda x: function(x, dim=(0, 2))
        table[f"{name} all, kept"] = lambda x: function(x, dim=(0, 1, 2), keepdim=True)
    return table


REDUCTIONS: dict[str, Function] = {
    **over("sum"), **over("mean"), **over("amax"), **over("amin"), **over("any"), **over("all"),
    **over("argmax", False), **over("argmin", False), **over("max", False), **over("min", False),
    **over("logsumexp"), **over("cumsum", False),
    "sum": torch.sum, "mean": torch.mean, "max": torch.max, "min": torch.min, "any": torch.any,
    "all": torch.all, "argmax": torch.argmax, "argmin": torch.argmin, "aminmax": torch.aminmax,
    "sum as": lambda x: x.sum(1, dtype=torch.float64),
    "count": lambda x: (x != 0).sum(0),
    "count_nonzero": torch.count_nonzero,
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, dim=(0, 2)),
    "norm inf": lambda x: torch.linalg.vector_norm(x, float("inf")),
}  # fmt: skip
KEPT = {"cumsum middle, kept"}  # a scan keeps its dimension anyway


@pytest.mark.parametrize("shape", [(3, 5, 37), (2, 3, 4)], ids=["long", "written out"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = numbers(dtype, *shape)
    table = {n: f for n, f in REDUCTIONS.items() if n not in KEPT and takes(f, x)}
    assert len(table) >= 30
    agree(table, x, wide=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products(dtype: torch.dtype) -> None:
    x = numbers(dtype, 3, 4, 5)
    x = x / 3 if dtype.is_floating_point else x
    agree({"prod": torch.prod, **over("prod", False)}, x, wide=True)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("correction", [0, 1, 2])
def test_moments(dtype: torch.dtype, correction: int) -> None:
    x = numbers(dtype, 3, 5, 37) + 4
    table: dict[str, Function] = {
        "var": lambda x: x.var(correction=correction),
        "var row": lambda x: x.var(-1, correction=correction),
        "var two": lambda x: x.var((0, 2), correction=correction, keepdim=True),
        "std column": lambda x: x.std(0, correction=correction),
        "var_mean": lambda x: torch.var_mean(x, 1, correction=correction),
        "std_mean": lambda x: torch.std_mean(x, (0, 1), correction=correction),
    }
    agree(table, x, wide=True)


def test_variance_far_from_zero_keeps_its_digits() -> None:
    """One pass over squares would have none left."""
    x = 1e4 + torch.randn(64, 100, generator=draws.generator(0))
    exact = x.double().var(1).float()
    torch.testing.assert_close(compiled(lambda x: x.var(1))(x), exact, rtol=1e-5, atol=0)


EXTREMES: dict[str, Function] = {
    "argmax": lambda x: x.argmax(1),
    "argmin": lambda x: x.argmin(1),
    "flat argmax": lambda x: x.argmax(),
    "flat argmin": lambda x: x.argmin(),
    "column argmax": lambda x: x.argmax(0),
    "max": lambda x: x.max(1),
    "min": lambda x: x.min(0),
    "amax": lambda x: x.amax(1),
    "amin": lambda x: x.amin(0),
    "cummax": lambda x: x.cummax(1)[0],
}


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("columns", [3, 16, 45])
def test_the_first_of_equals_wins(dtype: torch.dtype, columns: int) -> None:
    agree(EXTREMES, (numbers(dtype, 20, columns) / 25).to(dtype).trunc())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("at", [0, 17, 44])
def test_nan_beats_everything(dtype: torch.dtype, at: int) -> None:
    x = numbers(dtype, 20, 45)
    x[3, at] = torch.nan
    x[4, at] = torch.nan
    x[4, -1] = torch.nan
    x[5] = torch.nan
    agree(EXTREMES, x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_infinities(dtype: torch.dtype) -> None:
    x = numbers(dtype, 6, 40)
    x[0], x[1] = -torch.inf, torch.inf
    x[2, 7], x[3, 9] = torch.inf, -torch.inf
    x[4, 1], x[4, 2] = torch.inf, -torch.inf
    table = {"sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1), "prod": lambda x: x.prod(0)}
    norms = {"softmax": lambda x: x.softmax(1), "logsumexp": lambda x: x.logsumexp(1)}
    agree({**EXTREMES, **table, **norms}, x)


EMPTY: dict[str, Function] = {
    "sum": lambda x: x.sum(1),
    "sum all": lambda x: x.sum(),
    "prod": lambda x: x.prod(1),
    "mean": lambda x: x.mean(1),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(1),
    "var": lambda x: x.var(1),
    "no rows": lambda x: x.mT.sum(1),
    "cumsum": lambda x: x.cumsum(1),
    "softmax": lambda x: x.softmax(1),
    "amax of rows": lambda x: x.mT.amax(1),
    "one": lambda x: (x.mT[:, :1] * 1).sum(1),
}


def test_nothing_is_reduced_to_the_identity() -> None:
    agree(EMPTY, torch.empty(4, 0))


@pytest.mark.parametrize("shape", [(1,), (1, 1), (5, 1), (1, 9)], ids=str)
def test_one_element_along_the_dimension(shape: tuple[int, ...]) -> None:
    x = numbers(torch.float32, *shape)
    table: dict[str, Function] = {
        f"{f.__name__} {d}": lambda x, f=f, d=d: f(x, dim=d, keepdim=d == 0)
        for f in (torch.sum, torch.mean, torch.amax, torch.argmax, torch.max, torch.logsumexp)
        for d in (0, -1)
    }
    table |= {"var": lambda x: x.var(0, correction=0), "softmax": lambda x: x.softmax(-1)}
    agree({**table, "cumsum": lambda x: x.cumsum(0), "all": torch.sum, "at": torch.argmax}, x)


def norms(width: int) -> dict[str, Function]:
    return {
        "softmax": lambda x, w: x.softmax(-1),
        "softmax columns": lambda x, w: x.softmax(0),
        "softmax middle": lambda x, w: x.softmax(1),
        "log_softmax": lambda x, w: x.log_softmax(-1),
        "softmax as": lambda x, w: x.softmax(-1, dtype=torch.float32),
        "softmin": lambda x, w: F.softmin(x, 1),
        "layer_norm": lambda x, w: F.layer_norm(x, (width,), w, w + 1),
        "layer_norm plain": lambda x, w: F.layer_norm(x, (width,)),
        "layer_norm two": lambda x, w: F.layer_norm(x, x.shape[1:]),
        "rms_norm": lambda x, w: F.rms_norm(x, (width,), w, 1e-5),
        "group_norm": lambda x, w: F.group_norm(x, 2),
        "instance_norm": lambda x, w: F.instance_norm(x),
        "batch_norm": lambda x, w: F.batch_norm(x, x[0, :, 0], x[0, :, 1].abs() + 0.1),
        "normalize": lambda x, w: F.normalize(x, dim=1),
        "residual": lambda x, w: F.layer_norm(x + w, (width,), w) * x.sigmoid(),
    }


@pytest.mark.parametrize("width", [5, 48, 67])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_and_norms(dtype: torch.dtype, width: int) -> None:
    table, inputs = norms(width), (numbers(dtype, 3, 4, width), numbers(dtype, width, seed=1))
    residual = {"residual": table.pop("residual")}
    agree(table, *inputs, wide=True)
    # What two phases of the norm read is rounded as eager rounds it (tests/fuse/test_rounding.py):
    # it is as far off as eager's.
    agree(residual, *inputs, wide=True, as_far_as_eager=True)


def test_softmax_neither_overflows_nor_loses_the_small() -> None:
    x = torch.tensor([[1e4, 1e4 - 1, -1e4], [-1e5, -1e5, -1e5], [88.0, -88.0, 0.0]])
    agree({"softmax": lambda x: x.softmax(1), "log": lambda x: x.log_softmax(1)}, x)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32, torch.bool], ids=str)
def test_scans(dtype: torch.dtype) -> None:
    table: dict[str, Function] = {
        "rows": lambda x: x.cumsum(2),
        "columns": lambda x: x.cumsum(0),
        "middle": lambda x: x.cumsum(1),
        "scaled": lambda x: (x * 2).cumsum(-1) + 1,
        "of a sum": lambda x: x.sum(0).cumsum(0),
        "one": lambda x: x[:, :1].cumsum(1),
    }
    x = numbers(dtype, 3, 5, 37)
    agree(table, x, wide=True)
    agree(lambda x: x.cumsum(0).cumsum(1), x.float())


def test_a_sum_of_many_halves_is_carried_in_floats() -> None:
    x = torch.full((4, 5000), 0.1, dtype=torch.bfloat16)
    result = compiled(lambda x: x.sum(1))(x)
    assert torch.equal(result, x.float().sum(1).bfloat16())


@pytest.mark.parametrize("training", [False, True])
def test_batch_norms_lay_images_out_as_eager_does(training: bool) -> None:
    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, torch.zeros(5), torch.ones(5), training=training)

    plain = numbers(torch.float32, 2, 5, 4, 3)
    last = plain.contiguous(memory_format=torch.channels_last)
    rows = numbers(torch.float32, 2, 4, 5).transpose(1, 2)
    flat = numbers(torch.float32, 2, 1, 1, 5).permute(1, 3, 2, 0)  # dimensions of size one
    fast = torch.compile(norm, backend="litz", dynamic=False, options={"on_error": "raise"})
    for image in (plain, last, plain.transpose(2, 3), plain[:1].expand(2, 5, 4, 3), rows, flat):
        torch._dynamo.reset()
        agree(norm, image)
        x = image.detach().requires_grad_()
        ours, eager = (torch.autograd.grad(f(x).cos().sum(), x)[0] for f in (fast, norm))
        torch.testing.assert_close(ours, eager, check_stride=True)


NO_DIMENSION = ("any", "all", "sum", "mean", "nansum", "var", "amax", "amin", "logsumexp")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bool, torch.int64])
def test_over_no_dimension(dtype: torch.dtype, dynamic: bool) -> None:
    """Some take an empty list for all dimensions, others for none."""
    x = torch.tensor([[0, 1, 2], [3, 0, 0]]).to(dtype)
    every = [
        partial(getattr(torch, name), dim=dim, keepdim=kept)
        for name in NO_DIMENSION
        for dim in ((), [])
        for kept in (False, True)
    ]
    taken = [function for function in every if takes(function, x)]

    def all_of_them(x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in taken]

    torch._dynamo.reset()
    options = {"on_error": "raise"}
    made = torch.compile(all_of_them, backend="litz", dynamic=dynamic, options=options)
    for function, found in zip(taken, made(x), strict=True):
        torch.testing.assert_close(found, function(x), msg=str(function))


def test_what_eager_refuses_over_no_dimension_is_refused() -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: torch.logsumexp(x, ()), backend="litz")
    for call in (function, lambda x: torch.logsumexp(x, ())):
        with pytest.raises(RuntimeError, match="broadcast shape"):
            call(torch.ones(2, 3))
