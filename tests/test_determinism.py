"""Deterministic settings are respected; results are the same bits whatever runs them.

Kernels add in an order that is fixed when they are compiled, not by the threads that happen to run
them, so there is nothing to switch on. What eager refuses under `use_deterministic_algorithms`, and
what it fills empty tensors with, is the same compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests import draws
from tests.stages import compiled

Tensors = list[torch.Tensor]
N, ROWS, MANY = 97, 40, 60_000  # many enough that two threads share the work


@pytest.fixture(autouse=True)
def _settings_restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()


def _inputs() -> Tensors:
    made = draws.generator(0)
    table = torch.randn(N, 8, generator=made)
    places = torch.randint(0, N, (MANY,), generator=made)
    sources = torch.randn(MANY, 8, generator=made)
    return [table, places, sources]


def _embedding_backward(table: torch.Tensor, places: torch.Tensor, grad: torch.Tensor) -> Tensors:
    return [torch.ops.aten.embedding_dense_backward(grad, places, len(table), -1, False)]


FUNCTIONS: dict[str, Callable[..., Tensors]] = {
    "scatter_add": lambda t, i, s: [t.scatter_add(0, i[:, None].expand_as(s), s)],
    "scatter_reduce": lambda t, i, s: [t.scatter_reduce(0, i[:, None].expand_as(s), s, "mean")],
    "index_put": lambda t, i, s: [t.index_put((i,), s, accumulate=True)],
    "index_add": lambda t, i, s: [t.index_add(0, i, s)],
    "embedding_backward": _embedding_backward,
    "sum": lambda t, i, s: [s.sum(), s.sum(0), s.sum(1), s.double().sum(), s.half().sum(0)],
    "mean": lambda t, i, s: [s.mean(), s.mean(0), s.var(), s.std(0)],
    "norm": lambda t, i, s: [s.norm(), s.T.logsumexp(1), F.layer_norm(s, (8,))],
    "cumsum": lambda t, i, s: [s.cumsum(0), s[:, 0].cumsum(0)],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits_on_one_thread_and_on_two_again_and_again(name: str) -> None:
    function, inputs = FUNCTIONS[name], _inputs()
    first: Tensors | None = None
    for threads in (1, 2):
        torch.set_num_threads(threads)
        run = compiled(function, **{"cpp.threads": threads})
        for _ in range(3):
            found = run(*inputs)
            first = first or found
            for a, b in zip(first, found, strict=True):
                assert torch.equal(a, b), f"{(a - b).abs().max()} with {threads} threads"
    with torch.no_grad():
        for a, b in zip(first or [], function(*inputs), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_random_numbers_do_not_depend_on_threads() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + F.dropout(x, 0.5)

    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        draws.seed(3)
        found.append(torch.compile(draw, backend="litz")(torch.ones(ROWS, MANY)))
        torch._dynamo.reset()
    assert torch.equal(*found)


def _unpooled(x: torch.Tensor) -> torch.Tensor:
    pooled, places = F.max_pool1d(x.view(1, 1, -1), 2, return_indices=True)
    return F.max_unpool1d(pooled, places, 2)


def _put(x: torch.Tensor) -> torch.Tensor:
    return x.put(torch.tensor([0, 1, 1]), x[:3])


@pytest.mark.parametrize("refused", [_unpooled, _put])
@pytest.mark.parametrize("backend", ["aot_eager", "litz"])
def test_what_eager_refuses_is_refused(backend: str, refused: Callable[..., Any]) -> None:
    torch.use_deterministic_algorithms(True)
    for function in (refused, torch.compile(refused, backend=backend)):
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            function(torch.arange(8.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.bool])
def test_empty_tensors_hold_what_eager_fills_them_with(dtype: torch.dtype) -> None:
    def empties(x: torch.Tensor) -> Tensors:
        flat = torch.empty(5, dtype=dtype)
        return [flat, torch.empty_like(x), x.new_empty(2, 3), torch.empty_strided((2,), (3,))]

    torch.use_deterministic_algorithms(True)
    x = torch.zeros(4, dtype=dtype)
    for a, b in zip(torch.compile(empties, backend="litz")(x), empties(x), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_a_change_of_the_setting_compiles_anew() -> None:
    run = torch.compile(lambda x: torch.empty_like(x), backend="litz")
    run(torch.ones(3))
    torch.use_deterministic_algorithms(True)
    assert run(torch.ones(3)).isnan().all()
