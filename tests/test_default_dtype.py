"""`torch.set_default_dtype` holds inside compiled code: for new tensors and for promotion."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional as F

Tensors = list[torch.Tensor]
PLACES = [[0.0, 1.0], [-0.5, 0.25]]


@pytest.fixture(autouse=True)
def _default_restored() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch._dynamo.reset()
    yield
    torch.set_default_dtype(before)
    torch._dynamo.reset()


def _created(i: torch.Tensor) -> Tensors:
    counted = [torch.ones(3), torch.zeros(2), torch.full((2,), 1.5), torch.eye(3)]
    return [*counted, torch.arange(0, 1, 0.1), torch.linspace(0, 1, 7), torch.tensor(PLACES)]


def _promoted(i: torch.Tensor) -> Tensors:
    """An integer meets a float of Python's, or a function whose results are floats."""
    floats = [i * 0.1, i / 3, i + 1.5, torch.where(i > 2, 0.1, i), i / 7]
    functions = [i.sin(), i.exp2(), torch.sigmoid(i), i.reciprocal(), i.rsqrt()]
    return [*floats, *functions, torch.lerp(i / 3, i / 7, 0.1)]


def _reduced(i: torch.Tensor) -> Tensors:
    wide = i / 3
    return [wide.sum(), wide.std(), F.softmax(wide, 0), F.layer_norm(wide, (len(i),))]


def _random(i: torch.Tensor) -> Tensors:
    return [torch.rand(5), torch.randn(4), torch.rand_like(i / 3), F.dropout(i / 3)]


FUNCTIONS: dict[str, Callable[[torch.Tensor], Tensors]] = {
    "created": _created,
    "promoted": _promoted,
    "reduced": _reduced,
}


@pytest.mark.parametrize("default", [torch.float64, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_of_the_default_type(name: str, default: torch.dtype) -> None:
    torch.set_default_dtype(default)
    function, i = FUNCTIONS[name], torch.arange(1, 12)
    expected = function(i)
    found = torch.compile(function, backend="litz", options={"on_error": "raise"})(i)
    assert all(t.dtype is default for t in expected)
    # In a half type eager rounds after every op, Litz where it stores: a unit of the numbers' size.
    loose = {"rtol": 0.0, "atol": 2e-2} if default.itemsize == 2 else {}
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **loose)  # types too


def test_random_numbers_are_of_the_default_type() -> None:
    torch.set_default_dtype(torch.float64)
    found = torch.compile(_random, backend="litz", options={"on_error": "raise"})(torch.arange(9))
    assert all(t.dtype is torch.float64 for t in found)
    assert (found[0] * 2**32 % 1).any(), "a float64 has more than the bits of a float32"


def test_a_new_default_compiles_anew() -> None:
    def thirds(i: torch.Tensor) -> torch.Tensor:
        return i / 3

    run, i = torch.compile(thirds, backend="litz"), torch.arange(5)
    assert run(i).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    assert run(i).dtype is torch.float64
    assert torch.equal(run(i), i.double() / 3)
