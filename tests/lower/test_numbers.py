"""Numbers beside tensors: what a half is compared with, divided by, and what no type holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import litz
from tests.stages import compiled

RAISE = {"on_error": "raise"}
HALF_DTYPES = (torch.float16, torch.bfloat16)
NUMBERS = (0.3, -0.7, 3.3, 1e-3, 70000.0)
Function = Callable[[torch.Tensor, float], torch.Tensor]


def _all_of(dtype: torch.dtype) -> torch.Tensor:
    """Every number of a half type."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def _other(x: torch.Tensor, number: float) -> torch.Tensor:
    """A number as a tensor of no dimensions, of a wider type."""
    return torch.tensor(number, dtype=torch.float32, device=x.device)


def _same(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Element by element: the value, whether it is NaN, and the sign of a zero."""
    assert mine.dtype is theirs.dtype
    signs = torch.signbit(mine) == torch.signbit(theirs)
    return (mine == theirs) & signs | (mine.isnan() & theirs.isnan())


# An ulp of an operand decides about the result.
DECIDED: dict[str, Function] = {
    "number // x": lambda x, n: n // x,
    "x // number": lambda x, n: x // n,
    "floor_divide": lambda x, n: torch.floor_divide(x, n),
    "floor of a quotient": lambda x, n: torch.div(x, n, rounding_mode="floor"),
    "trunc of a quotient": lambda x, n: torch.div(x, n, rounding_mode="trunc"),
    "floor of a tensor's quotient": lambda x, n: torch.div(_other(x, n), x, rounding_mode="floor"),
    "trunc of a tensor's quotient": lambda x, n: torch.div(_other(x, n), x, rounding_mode="trunc"),
    "a tensor's quotient": lambda x, n: torch.div(_other(x, n), x),
    "a tensor's product": lambda x, n: torch.mul(_other(x, n), x),
    "x // one": lambda x, n: x // _other(x, n).to(x.dtype).reshape(1),
    "one // x": lambda x, n: _other(x, n).to(x.dtype).reshape(1) // x,
    "x // y": lambda x, n: x // x.flip(0).roll(77),
    "x // many": lambda x, n: x // (torch.zeros_like(x) + n),
    "trunc of x by y": lambda x, n: torch.div(x, x.flip(0).roll(77), rounding_mode="trunc"),
    "threshold": lambda x, n: F.threshold(x, n, 2.0),
    "hardshrink": lambda x, n: F.hardshrink(x, min(n, 1e4)),
    "hardtanh": lambda x, n: F.hardtanh(x, -1.7, min(abs(n), 1e4)),
    "clamp": lambda x, n: x.clamp(-0.1, min(n, 1e4)),
    "greater": lambda x, n: x > n,
    "equal": lambda x, n: x == n,
    "less than a tensor": lambda x, n: torch.lt(_other(x, n), x),
    "where": lambda x, n: torch.where(x > n, x, 0.1),
    "nextafter": lambda x, n: torch.nextafter(x, _other(x, n)),
    "heaviside": lambda x, n: torch.heaviside(x, _other(x, n).to(x.dtype)),
    "nan_to_num": lambda x, n: torch.nan_to_num(x, n, 2 * n, 3 * n),
}


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("name", DECIDED)
def test_an_ulp_of_a_half_decides_as_in_eager(name: str, dtype: torch.dtype) -> None:
    def all_numbers(x: torch.Tensor) -> list[torch.Tensor]:
        return [DECIDED[name](x, number) for number in NUMBERS]

    x = _all_of(dtype)
    for mine, theirs in zip(compiled(all_numbers)(x), all_numbers(x), strict=True):
        wrong = ~_same(mine, theirs)
        assert not wrong.any(), (x[wrong][:3], mine[wrong][:3], theirs[wrong][:3])


# Remainders whose quotient float32 does not hold: eager's vectors give NaN, its tails the number.
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("name", ["remainder", "fmod"])
def test_remainders_of_halves_and_numbers_are_eagers(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)

    def both(x: torch.Tensor) -> list[torch.Tensor]:
        pairs = [(function(x, n), function(_other(x, n), x)) for n in NUMBERS[:-1]]
        return [t for pair in pairs for t in pair]

    x = _all_of(dtype)
    x = x[(x.abs() < 1e30) & (x.abs() > 1e-30)]
    for mine, theirs in zip(compiled(both)(x), both(x), strict=True):
        assert _same(mine, theirs).all()


INTEGERS = (torch.uint8, torch.int8, torch.int32)
TYPES = (*INTEGERS, torch.float16, torch.float32)


def _at(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(0, 4, 2)


# Eager converts the number to the type of the tensor, or refuses.
CONVERTED: dict[str, Function] = {
    "full": lambda x, n: torch.full((3,), n, dtype=x.dtype),
    "full of one": lambda x, n: torch.full((), n, dtype=x.dtype),
    "full_like": lambda x, n: torch.full_like(x, n),
    "new_full": lambda x, n: x.new_full((2, 2), n),
    "fill": lambda x, n: x.clone().fill_(n),
    "clamp": lambda x, n: x.clamp(None, n),
    "clamp_min": lambda x, n: x.clamp_min(n),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "index_fill": lambda x, n: x.index_fill(0, _at(x), n),
    "pad": lambda x, n: F.pad(x, (1, 2), value=n),
    "scatter": lambda x, n: x.scatter(0, _at(x), n),
    "scatter_add": lambda x, n: x.scatter(0, _at(x), n, reduce="add"),
    "where": lambda x, n: torch.where(x > 1, x, n),
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "threshold": lambda x, n: F.threshold(x, 1, n),
    "hardtanh": lambda x, n: F.hardtanh(x, 0, abs(n)),
    "addcmul": lambda x, n: torch.addcmul(x, x, x, value=n),
    "index_add": lambda x, n: x.index_add(0, _at(x), x[:2], alpha=n),
}
# Eager makes a tensor of the number, and wraps.
WRAPPED: dict[str, Function] = {
    "add": lambda x, n: x + n,
    "subtract": lambda x, n: n - x,
    "multiply": lambda x, n: x * n,
    "less": lambda x, n: x < n,
    "equal": lambda x, n: x == n,
    "greater": lambda x, n: n > x,
}


def _result(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", [*CONVERTED, *WRAPPED])
def test_numbers_that_a_type_does_not_hold_are_eagers(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 100]).to(dtype)
    function = {**CONVERTED, **WRAPPED}[name]
    least = -1 if dtype in INTEGERS else -1e39
    for number in (300, least, -256, 1e39 if dtype.is_floating_point else 2**40, 10**5):
        fast = compiled(lambda x, number=number: function(x, number))
        mine, theirs = _result(fast, x), _result(function, x, number)
        if isinstance(theirs, str):
            assert isinstance(mine, str) and mine.startswith(theirs), (number, mine, theirs)
        else:
            torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_a_number_that_changes_is_refused_as_well() -> None:
    def filled(x: torch.Tensor, number: int) -> torch.Tensor:
        return torch.full_like(x, number) + x.masked_fill(x > 0, number)

    litz.reset()
    fast = torch.compile(filled, backend="litz", dynamic=True, options=RAISE)
    x = torch.tensor([0, 1, 2, 100], dtype=torch.int8)
    for number in (5, 100, 7):
        assert torch.equal(fast(x, number), filled(x, number))
    with pytest.raises(RuntimeError, match="without overflow"):
        fast(x, 300)


def test_numbers_that_a_type_holds_stay_in_the_kernel() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        hidden = x.masked_fill(x > 0, -1e4).clamp(-65504, 65504)
        return torch.where(x < 1e9, F.pad(hidden, (1, 1), value=-torch.inf)[1:-1], -1e9)

    x = torch.randn(64).half()
    fast = compiled(program)
    assert _same(fast(x), program(x)).all() and not fast.aten_ops


def test_lists_refuse_numbers_as_their_elements_do() -> None:
    x = [torch.tensor([0, 1, 100], dtype=torch.int8)]
    with pytest.raises(RuntimeError, match="without overflow"):
        compiled(lambda x: torch._foreach_maximum([x], 300))(x[0])
    (mine,) = compiled(lambda x: torch._foreach_maximum([x], 300.5))(x[0])
    assert torch.equal(mine, torch._foreach_maximum(x, 300.5)[0])
