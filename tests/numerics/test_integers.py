"""Integers that leave their type: what wraps in eager wraps here, and nothing is decided before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import litz

RAISE = {"on_error": "raise"}
Program = Callable[..., Any]


def _agrees(program: Program, *args: Any, dynamic: bool) -> None:
    litz.reset()
    compiled = torch.compile(program, backend="litz", dynamic=dynamic, options=RAISE)
    torch.testing.assert_close(compiled(*args), program(*args), rtol=0, atol=0)


# Each over a tensor of 40 numbers.
POSITIONS: dict[str, Program] = {
    "quotient": lambda x: torch.arange(40) * 2**58 // 2**50,
    "remainder": lambda x: torch.arange(40) * 2**58 % 3,
    "symbolic quotient": lambda x: torch.arange(len(x)) * 2**58 // 2**50,
    "symbolic remainder": lambda x: torch.arange(len(x)) * 2**58 % 2**60,
    "of a size": lambda x: torch.arange(40) * len(x) ** 8 * len(x) ** 3 // len(x),
    "of two quotients": lambda x: torch.arange(40) * 2**58 // 2**40 // 2**40,
    "through views": lambda x: (torch.arange(40) * 2**58).view(5, 8).mT.reshape(-1) // 2**50,
    "summed": lambda x: (torch.arange(40)[:, None] * 2**58 // 2**50 + torch.arange(7)).sum(0),
    "compared": lambda x: torch.arange(40) * 2**58 < torch.arange(40) * 2**57,
    "lesser": lambda x: torch.minimum(torch.arange(40) * 2**58, torch.arange(40)),
    "as an index": lambda x: x.cumsum(0)[torch.arange(40) * 2**58 // 2**58],
    "as a clamped index": lambda x: x.cumsum(0)[(torch.arange(40) * 2**58 // 2**50).clamp(0, 3)],
    "int32": lambda x: torch.arange(40, dtype=torch.int32) * 2**28 // 2**20,
    "int32 and back": lambda x: (torch.arange(40) * 2**30).int().long() // 5,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", POSITIONS)
def test_arithmetic_on_positions_wraps(name: str, dynamic: bool) -> None:
    _agrees(POSITIONS[name], torch.ones(40), dynamic=dynamic)


def _if_positive(x: torch.Tensor, n: int) -> Any:
    return (torch.arange(40) * n * 4 // 4, torch.arange(40) * n // 2**50) if n > 0 else x


NUMBERS: dict[str, Program] = {
    "quotient": lambda x, n: torch.arange(40) * n * 4 // 4,
    "quotient by a size": lambda x, n: torch.arange(40) * n * len(x) // len(x),
    "known to be positive": _if_positive,
}


@pytest.mark.parametrize("number", [2**62, 2**58, 2**40, -(2**61)])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_a_program_is_given_may_be_of_any_size(name: str, number: int) -> None:
    _agrees(NUMBERS[name], torch.ones(40), number, dynamic=True)


@pytest.mark.parametrize("number", [2**61, 2**58, 2**40])
def test_a_number_that_is_read_off_a_tensor_may_be_of_any_size(number: int) -> None:
    def program(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = t.item()
        torch._check(n >= 0)
        return torch.arange(40) * n * 4 // 4, torch.arange(40) * n // 2**50

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        _agrees(program, torch.tensor(number), dynamic=False)


# Each over a tensor of 40 numbers, and a number of the program's own.
TOO_LARGE: dict[str, Program] = {
    "a factor": lambda x, n: x * (len(x) * 2**62 * 4),
    "a power": lambda x, n: x * len(x) ** 30,
    "of integers": lambda x, n: torch.arange(40) + len(x) ** 30,
    "negative": lambda x, n: torch.arange(40) * (-len(x) * 2**62),
    "a bound": lambda x, n: x.clamp(max=len(x) ** 30),
    "compared": lambda x, n: x > len(x) ** 30,
    "filled": lambda x, n: torch.full((3,), len(x) ** 30),
    "given": lambda x, n: torch.arange(40) * (n * 4),
}
LARGE: dict[str, Program] = {
    "returned": lambda x, n: (x + 1, len(x) * 2**62 * 4, len(x) ** 30, n * 4),
    "a quotient": lambda x, n: x * (len(x) ** 30 // len(x) ** 29),
    "a float": lambda x, n: x * (len(x) ** 30 / len(x) ** 29),
    "that fits": lambda x, n: (x * len(x) ** 5, torch.arange(40) * len(x) ** 11 // 7),
    "an area": lambda x, n: x / (len(x) * x.stride(0) * len(x)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_symbolic_number_beyond_64_bits_is_refused_as_in_eager(name: str) -> None:
    program = TOO_LARGE[name]
    with pytest.raises(OverflowError):
        program(torch.ones(40), 2**62)
    litz.reset()
    with pytest.raises(OverflowError):
        torch.compile(program, backend="litz", dynamic=True)(torch.ones(40), 2**62)


@pytest.mark.parametrize("name", LARGE)
def test_a_symbolic_number_may_pass_beyond_64_bits(name: str) -> None:
    _agrees(LARGE[name], torch.ones(40), 2**62, dynamic=True)
