"""Calls whose values eager's kernels refuse: indices, divisors, targets and probabilities.

In: nothing. Out: `VALUES[name]`, a function and the inputs it is called with, which eager refuses;
`tests/ops/refusals.py` runs them. Names say what is wrong: 7 is too large, -1 counts from the end,
-9 is before the beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

Refused = tuple[Callable[..., Any], tuple[Any, ...]]
Entry = tuple[str, Callable[..., Any], tuple[Any, ...]]


def _numbers(*shape: int) -> torch.Tensor:
    """Distinct ones, which no test looks at: what is wrong are other operands."""
    return torch.linspace(-2, 3, math.prod(shape)).view(shape)


X, ROW, NUMBER = _numbers(5, 4), _numbers(5), torch.tensor(1.5)
ONE_ROW, WIDE = _numbers(1, 4), _numbers(40, 33)
ONES = torch.ones(2, 4)


def _scatter_reduced(kind: str, index: torch.Tensor) -> torch.Tensor:
    return X.scatter_reduce(0, index, torch.ones(1, 2), kind)


# Ops by the index they take: a vector of two, or a matrix of one row.
VECTOR: dict[str, Callable[..., Any]] = {
    "x[i]": lambda i: X[i] + 1,
    "x[:, i]": lambda i: X[:, i],
    "x[i, i]": lambda i: X[i, torch.zeros_like(i)],
    "x[i] of one row": lambda i: ONE_ROW[i],
    "x[i] in a sum": lambda i: X[i].sum(),
    "index_select": lambda i: X.index_select(0, i),
    "index_select 1": lambda i: X.index_select(1, i),
    "index_select of a row": lambda i: ROW.index_select(0, i),
    "index_select of a number": lambda i: NUMBER.index_select(0, i[1:]),
    "embedding": lambda i: F.embedding(i, X),
    "embedding padding": lambda i: F.embedding(i, X, padding_idx=0),
    "embedding_bag": lambda i: F.embedding_bag(i[None], X),
    "index_put": lambda i: X.index_put((i,), torch.tensor(1.0)),
    "index_put add": lambda i: X.index_put((i,), torch.tensor(1.0), accumulate=True),
    "index_put 1": lambda i: X.index_put((torch.zeros_like(i), i), torch.tensor(1.0)),
    "index_add": lambda i: X.index_add(0, i, ONES),
    "index_add 1": lambda i: X.index_add(1, i, torch.ones(5, 2)),
    "index_add twice": lambda i: X.index_add(0, i, ONES, alpha=2),
    "index_add to a row": lambda i: ROW.index_add(0, i, torch.ones(2)),
    "index_copy": lambda i: X.index_copy(0, i, ONES),
    "index_copy 1": lambda i: X.index_copy(1, i, torch.ones(5, 2)),
    "index_copy to a row": lambda i: ROW.index_copy(0, i, torch.ones(2)),
    "index_fill": lambda i: X.index_fill(0, i, 1.0),
    "index_reduce": lambda i: X.index_reduce(0, i, ONES, "amax"),
    "take": lambda i: X.take(i * 10),
    "put": lambda i: X.put(i * 10, torch.ones(2)),
    "gather of a number": lambda i: NUMBER.gather(0, i),
    "scatter_add to a number": lambda i: NUMBER.scatter_add(0, i, torch.ones(2)),
    "nll_loss": lambda i: F.nll_loss(X[:2], i),
    "nll_loss none": lambda i: F.nll_loss(X[:2], i, reduction="none"),
    "nll_loss weight": lambda i: F.nll_loss(X[:2], i, weight=torch.ones(4)),
    "nll_loss of images": lambda i: F.nll_loss(X[:2, :, None], i[:, None]),
    "nll_loss 2d": lambda i: F.nll_loss(X[:2, :, None, None], i[:, None, None]),
    "nll_loss of one": lambda i: F.nll_loss(X[0], i[1]),
    "cross_entropy": lambda i: F.cross_entropy(X[:2], i),
    "cross_entropy smooth": lambda i: F.cross_entropy(X[:2], i, label_smoothing=0.1),
    "multi_margin_loss": lambda i: F.multi_margin_loss(X[:2], i),
    "multilabel_margin_loss": lambda i: F.multilabel_margin_loss(X[0, :2], i),
    "one_hot": lambda i: F.one_hot(i, 5),
    "bincount": lambda i: torch.bincount(i),
    "repeat_interleave": lambda i: X[:2].repeat_interleave(i, 0),
    "max_unpool1d": lambda i: F.max_unpool1d(X[None, :1, :2], i[None, None], 2),
    "max_unpool2d": lambda i: F.max_unpool2d(X[None, :1, None, :2], i[None, None, None], (1, 2)),
    "max_unpool3d": lambda i: F.max_unpool3d(
        X[None, :1, None, None, :2], i[None, None, None, None], (1, 1, 2)
    ),
    "searchsorted": lambda i: torch.searchsorted(ROW[:2], ROW, sorter=i),
}
MATRIX: dict[str, Callable[..., Any]] = {
    "gather": lambda i: X.gather(0, i) + 1,
    "gather 1": lambda i: X.gather(1, i),
    "gather of one row": lambda i: ONE_ROW.gather(0, i),
    "take_along_dim": lambda i: torch.take_along_dim(X[:, :2], i.expand(5, 2), 0),
    "scatter": lambda i: X.scatter(0, i, 1.0),
    "scatter src": lambda i: X.scatter(0, i, torch.ones(1, 2)),
    "scatter multiply": lambda i: X.scatter(0, i, torch.ones(1, 2), reduce="multiply"),
    "scatter_add": lambda i: X.scatter_add(0, i, torch.ones(1, 2)),
    **{
        f"scatter_reduce {kind}": partial(_scatter_reduced, kind)
        for kind in ("sum", "prod", "mean", "amax", "amin")
    },
}
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
DIVISIONS: dict[str, Callable[..., Any]] = {
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "fmod": torch.fmod,
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
}


def _indices() -> Iterator[Entry]:
    for bad in (7, -1, -9):
        index = torch.tensor([0, bad])
        yield from ((f"{name} {bad}", f, (index,)) for name, f in VECTOR.items())
        yield from ((f"{name} {bad}", f, (index[None],)) for name, f in MATRIX.items())
    many = torch.arange(600) % 40
    many[-1] = 40  # behind whole vectors, in the last thread's part
    yield "many rows", lambda i: WIDE[i] * 2, (many,)
    yield "many columns", lambda i: WIDE.t().gather(1, i.expand(33, 600)), (many,)
    short = torch.tensor([0, 1], dtype=torch.int32)
    yield "index_copy int32", VECTOR["index_copy"], (short,)
    yield "index_fill int32", VECTOR["index_fill"], (short,)
    for name in ("index_add", "index_add 1", "index_reduce"):
        yield f"{name} int32 -1", VECTOR[name], (short - 1,)
    yield "index_add between", lambda i: X[:, None, :].index_add(1, i, X[:, None, :]), (short[1:],)
    z, ones, index = X.to(torch.complex64), ONES.to(torch.complex64), torch.tensor([0, -1])
    yield "index_add complex", lambda i: z.index_add(0, i, ones), (index,)
    yield "index_copy complex", lambda i: z.index_copy(0, i, ones), (index,)
    yield "an int32 index", lambda i: X[i], (torch.tensor([0, 7], dtype=torch.int32),)
    yield "an empty table", lambda x, i: x[i], (torch.zeros(0, 3), torch.tensor([0]))


def _divisions() -> Iterator[Entry]:
    for dtype in INTEGERS:
        x, y = torch.arange(1, 70, dtype=dtype), torch.ones(69, dtype=dtype)
        y[66] = 0
        for name, f in DIVISIONS.items():
            yield f"{name} {str(dtype)[6:]}", f, (x, y)
    for name, f in DIVISIONS.items():
        yield f"{name} a number", lambda x, f=f: f(x, 0), (torch.arange(5),)
    yield "a negative power", lambda x: x**-1, (torch.arange(1, 4),)


def _probabilities() -> Iterator[Entry]:
    good = torch.linspace(0, 1, 40)
    for name, value in {"above": 1.5, "below": -0.25, "nan": float("nan")}.items():
        bad = good.clone()
        bad[37] = value
        half = bad.bfloat16()
        loss = F.binary_cross_entropy
        yield f"binary_cross_entropy {name}", loss, (bad, good)
        yield f"binary_cross_entropy target {name}", loss, (good, bad)
        yield f"binary_cross_entropy bf16 {name}", loss, (half, good.bfloat16())
        yield f"binary_cross_entropy none {name}", _unreduced, (bad, good)
        yield f"bernoulli {name}", torch.bernoulli, (bad,)
        yield f"bernoulli f64 {name}", torch.bernoulli, (bad.double(),)
        yield f"bernoulli_ {name}", lambda x, p: x.bernoulli_(p), (good, bad)
        yield f"multinomial {name}", lambda p: torch.multinomial(p, 3), (bad - 1,)
        yield f"poisson {name}", torch.poisson, (-bad - 2,)
        yield f"normal {name}", lambda x, s: torch.normal(x, s), (good, -bad - 2)
        yield f"quantile {name}", lambda x, q: torch.quantile(x, q), (good, bad[36:38] * 2)
    yield "bernoulli_ of a number", lambda x: x.bernoulli_(1.5), (good,)
    yield "uniform_ backwards", lambda x: x.uniform_(2, 1), (good,)
    yield "uniform_ too far", lambda x: x.uniform_(0, 1e6), (good.half(),)
    yield "random_ of nothing", lambda x: x.random_(3, 3), (good,)
    yield "normal_ backwards", lambda x: x.normal_(0, -1), (good,)
    yield "exponential_", lambda x: x.exponential_(-1), (good,)
    yield "dropout", lambda x: F.dropout(x, 1.5), (good,)


def _unreduced(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy(x, y, reduction="none")


def _counts() -> Iterator[Entry]:
    mask = torch.ones(6, dtype=torch.bool)
    for n in (1, 4):
        yield f"masked_scatter of {n}", _masked_scatter, (torch.zeros(6), mask, torch.ones(n))
    bytes_ = mask.to(torch.uint8)
    yield "masked_scatter of bytes", _masked_scatter, (torch.zeros(6), bytes_, torch.ones(6))
    lengths = torch.tensor([1, 2])
    yield "segment_reduce", lambda x, n: torch.segment_reduce(x, "sum", lengths=n), (ROW, lengths)
    scale, zero = torch.ones(5), torch.full((5,), 300, dtype=torch.int32)
    yield "fake_quantize", _fake_quantized, (X, scale, zero)
    yield "an assertion", _asserted, (X,)
    yield "an assertion without a word", _asserted_in_silence, (X,)
    yield "a check of a size", _checked, (X,)


def _masked_scatter(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return x.masked_scatter(mask, source)


def _fake_quantized(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return torch.fake_quantize_per_channel_affine(x, scale, zero, 0, 0, 255)


def _asserted(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 100).all(), "too small")
    return x + 1


def _asserted_in_silence(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 100).all())
    return x + 1


def _checked(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] > 9, lambda: "too few rows")
    return x + 1


VALUES: dict[str, Refused] = {
    name: (function, inputs)
    for make in (_indices, _divisions, _probabilities, _counts)
    for name, function, inputs in make()
}
