"""Writes through indices, against eager: every op, type and mode, points that meet, bad indices."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz
from litz.errors import IndexOutOfRange
from tests import draws
from tests.stages import compiled

RAISE = {"on_error": "raise"}
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.uint8]


def _tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    draws.seed(0)
    return {
        "x": (torch.randn(8, 6) * 5).to(dtype),
        "s": (torch.randn(4, 6) * 5).to(dtype),
        "i": torch.tensor([1, 3, 1, 7]),
        "j": torch.randint(0, 8, (4, 6)),
    }


CASES: dict[str, Callable[..., Any]] = {
    "index_add": lambda x, s, i, j: x.index_add(0, i, s),
    "index_copy": lambda x, s, i, j: x.index_copy(0, torch.tensor([0, 2, 5, 7]), s),
    "index_fill": lambda x, s, i, j: x.index_fill(1, i % 6, 3),
    "index_put": lambda x, s, i, j: x.index_put((torch.tensor([0, -2, 5, 7]),), s),
    "index_put_two": lambda x, s, i, j: x.index_put((i, i % 6), s[:, 0], accumulate=True),
    "index_put_apart": lambda x, s, i, j: torch.ops.aten.index_put(
        x[:, None], [i, None, i % 6], s[:, :1], True
    ),
    "index_put_mask": lambda x, s, i, j: x.index_put((x > 0,), s[0, 0]),
    "index_put_rows": lambda x, s, i, j: x.index_put((x[:, 0] > 0,), s[0]),
    "index_put_rows_add": lambda x, s, i, j: x.index_put((x[:, 0] > 0,), s[:1], accumulate=True),
    "put": lambda x, s, i, j: x.put(torch.tensor([40, -3, 0]), s[0, :3]),
    "put_add": lambda x, s, i, j: x.put(j, s, accumulate=True),
    "scatter_src": lambda x, s, i, j: x.scatter(0, torch.arange(4)[:, None].expand(4, 6), s),
    "scatter_value": lambda x, s, i, j: x.scatter(0, j, 2),
    "scatter_add": lambda x, s, i, j: x.scatter_add(0, j, s),
    "scatter_add_smaller_index": lambda x, s, i, j: x.scatter_add(1, j[:2, :3] % 6, s),
    "scatter_zero_d": lambda x, s, i, j: x[0, 0].scatter_add(0, i[0] * 0, s[0, 0]),
    "scatter_zero_d_read": lambda x, s, i, j: x[0, 0].scatter_add(0, i[0] * 0, s[0, 0] * 2) * 3,
    "masked_scatter": lambda x, s, i, j: x.masked_scatter(x > 0, s.flatten().repeat(3)),
    "setitem": lambda x, s, i, j: x.clone().index_put_((i,), s[0]),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_scatters(case: str, dtype: torch.dtype) -> None:
    tensors = _tensors(dtype)
    litz.reset()
    explanation = litz.explain(CASES[case], **tensors)
    assert not explanation.aten_ops and not explanation.fallbacks
    run = torch.compile(CASES[case], backend="litz", options=RAISE)
    torch.testing.assert_close(run(**tensors), CASES[case](**tensors))


def _assigned(x: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[where] = torch.arange(6.0)
    return y


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
def test_bytes_are_a_mask() -> None:
    x, mask = torch.randn(5, 6), torch.tensor([0, 1, 3, 0, 1], dtype=torch.uint8)
    assert torch.equal(compiled(_assigned)(x, mask), _assigned(x, mask))


INDEXED: dict[str, Callable[..., Any]] = {
    "assigned": _assigned,
    "index_put": lambda x, i: x.index_put((i, i), x[0, 0]),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x[:3]),
    "index_reduce": lambda x, i: x.index_reduce(0, i, x[:3], "prod"),
    "put": lambda x, i: x.put(i, x[0, :3]),
}


@pytest.mark.parametrize("index", ["int8", "int16", "uint8"])
@pytest.mark.parametrize("case", INDEXED)
@pytest.mark.filterwarnings("ignore:index")
def test_types_that_eager_refuses_as_indices(case: str, index: str) -> None:
    x, places = torch.randn(5, 6), torch.tensor([0, 1, 1], dtype=getattr(torch, index))
    with pytest.raises((IndexError, RuntimeError)) as eager:
        INDEXED[case](x, places)
    with pytest.raises(type(eager.value), match=re.escape(str(eager.value))):
        compiled(INDEXED[case])(x, places)


@pytest.mark.parametrize("mask", [[True], [True, False, True], [True] * 6])
def test_a_mask_of_another_shape_is_refused(mask: list[bool]) -> None:
    with pytest.raises(IndexError, match="The shape of the mask"):
        compiled(_assigned)(torch.randn(5, 6), torch.tensor(mask))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16], ids=str)
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, s: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, j, s, reduce, include_self=include_self)

    tensors = _tensors(dtype)
    tensors.pop("i")
    litz.reset()
    run = torch.compile(function, backend="litz", options=RAISE)
    torch.testing.assert_close(run(**tensors), function(**tensors))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["prod", "amax", "amin", "mean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bfloat16], ids=str)
def test_index_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    def function(
        x: torch.Tensor, s: torch.Tensor, i: torch.Tensor, j: torch.Tensor
    ) -> list[torch.Tensor]:
        how = {"include_self": include_self}
        rows = x.index_reduce(0, i, s, reduce, **how)
        one = x[0, 0].index_reduce(0, i[:1] * 0, s[0, 0], reduce, **how)
        return [rows, x.T.index_reduce(-1, i, s.T, reduce, **how), one]

    tensors = _tensors(dtype)
    litz.reset()
    assert not litz.explain(function, **tensors).aten_ops
    run = torch.compile(function, backend="litz", options=RAISE)
    torch.testing.assert_close(run(**tensors), function(**tensors))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int16], ids=str)
@pytest.mark.parametrize("alpha", [0, 1, 2, -1, 100])
def test_index_add_with_a_factor_stays_in_its_type(alpha: int, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, s: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        rows = x.index_add(0, i, s, alpha=alpha)
        line = x[:, 0].index_add(0, i, s[:, 0], alpha=alpha)
        one = x[0, 0].index_add(0, i[:1] * 0, s[0, 0], alpha=alpha)
        return [rows, line, one, x.T.index_add(-1, i, s.T, alpha=alpha)]

    tensors = _tensors(torch.int64)
    x, s = ((tensors[name] * 20).to(dtype) for name in "xs")
    litz.reset()
    compiled = torch.compile(function, backend="litz", options=RAISE)
    found, expected = (run(x, s, tensors["i"]) for run in (compiled, function))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("alpha", [-300, 256])
def test_index_add_refuses_a_factor_that_its_type_does_not_hold(alpha: int) -> None:
    def function(x: torch.Tensor, s: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, i, s, alpha=alpha)

    tensors = _tensors(torch.uint8)
    litz.reset()
    for run in (function, torch.compile(function, backend="litz", options=RAISE)):
        with pytest.raises(RuntimeError, match="without overflow"):
            run(tensors["x"], tensors["s"], tensors["i"])


def test_large_scatters_do_not_depend_on_threads() -> None:
    draws.seed(0)
    x, s = torch.zeros(50, 512), torch.randn(4000, 512)
    index = torch.randint(0, 50, (4000,))

    def function(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, index, s)

    results = []
    for threads in (1, 2):
        litz.reset()
        options = {**RAISE, "cpp.threads": threads}
        results.append(torch.compile(function, backend="litz", options=options)(x, s))
    assert torch.equal(*results)
    expected = x.double().index_add(0, index, s.double())
    torch.testing.assert_close(results[0].double(), expected, rtol=1e-4, atol=1e-4)


def test_an_index_outside_writes_nothing_foreign() -> None:
    litz.reset()
    run = torch.compile(
        lambda x, i: x.index_put((i,), torch.ones(2)), backend="litz", options=RAISE
    )
    with pytest.raises(IndexOutOfRange):
        run(torch.zeros(4), torch.tensor([1, 4]))


def test_embedding_gradient_adds_up_rows() -> None:
    litz.reset()
    weight = torch.randn(10, 64, requires_grad=True)
    index = torch.tensor([1, 3, 1, 1])

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(index, weight).pow(2).sum()

    run = torch.compile(loss, backend="litz", options=RAISE)
    (found,) = torch.autograd.grad(run(weight), weight)
    (expected,) = torch.autograd.grad(loss(weight), weight)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("points", [126, 127, 255, 256, 257, 512])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_means_of_integers_count_in_their_type(dtype: torch.dtype, points: int) -> None:
    """Eager's count wraps, too: of 256 points there are none, and none is taken for one."""
    x = torch.tensor([10, -7, 5]).to(dtype)
    index = torch.zeros(points + 1, dtype=torch.int64)
    index[-1] = 1

    def program(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> list[torch.Tensor]:
        return [
            made
            for own in (True, False)
            for made in (
                x.scatter_reduce(0, i, s, "mean", include_self=own),
                x.index_reduce(0, i, s, "mean", include_self=own),
            )
        ]

    for number in (3, -5, -128):
        source = torch.full((points + 1,), number).to(dtype)
        litz.reset()
        found = torch.compile(program, backend="litz", options=RAISE)(x, index, source)
        for a, b in zip(found, program(x, index, source), strict=True):
            assert torch.equal(a, b), (number, a, b)
