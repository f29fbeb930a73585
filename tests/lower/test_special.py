"""Special functions, the bits of floats and common divisors against eager, and the interpreter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.lower.agreement import (
    DTYPES,
    FLOATS,
    HALF_DTYPES,
    INTEGERS,
    Function,
    agree,
    numbers,
    takes,
    tensors_of,
)
from tests.stages import compiled, stages

S = torch.special
WIDER = {**dict.fromkeys(HALF_DTYPES, torch.float32), torch.float32: torch.float64}
ONE: dict[str, Function] = {
    "lgamma": torch.lgamma,
    "digamma": torch.digamma,
    **{f"polygamma {n}": lambda x, n=n: torch.polygamma(n, x) for n in (0, 2, 3, 4)},
    "mvlgamma": lambda x: torch.mvlgamma(x.abs() + 2, 3),
    "erfinv": torch.erfinv,
    "erfcx": S.erfcx,
    "ndtri": S.ndtri,
    "log_ndtr": S.log_ndtr,
    "i0": torch.i0,
    "i0e": S.i0e,
    "i1": S.i1,
    "i1e": S.i1e,
    "modified_bessel_i0": S.modified_bessel_i0,
    "modified_bessel_i1": S.modified_bessel_i1,
    "modified_bessel_k0": S.modified_bessel_k0,
    "modified_bessel_k1": S.modified_bessel_k1,
    "scaled_modified_bessel_k0": S.scaled_modified_bessel_k0,
    "scaled_modified_bessel_k1": S.scaled_modified_bessel_k1,
    "spherical_bessel_j0": S.spherical_bessel_j0,
}
EXACT: dict[str, Function] = {
    "angle": torch.angle,
    "round 2": lambda x: torch.round(x, decimals=2),
    "round -1": lambda x: torch.round(x, decimals=-1),
    "frexp": torch.frexp,
}
# Of f64 eager's own error is 1e-6, so these stay eager's there.
WAVES: dict[str, Function] = {
    "bessel_j0": S.bessel_j0,
    "bessel_j1": S.bessel_j1,
    "bessel_y0": S.bessel_y0,
    "bessel_y1": S.bessel_y1,
    "airy_ai": S.airy_ai,
}
TWO: dict[str, Function] = {
    "fmin": torch.fmin,
    "fmax": torch.fmax,
    "hypot": torch.hypot,
    "nextafter": torch.nextafter,
    "gcd": torch.gcd,
    "lcm": torch.lcm,
    "zeta": lambda x, y: S.zeta(x.abs() + 1.5, y.abs() + 0.5),
    "zeta of a number": lambda x, y: S.zeta(3, x),
    "xlogy": torch.xlogy,
    "logaddexp": torch.logaddexp,
}
CHEBYSHEV = [f"chebyshev_polynomial_{kind}" for kind in "tuvw"]
POLYNOMIALS = [
    *CHEBYSHEV,
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    *(f"shifted_{name}" for name in CHEBYSHEV),
]


def close(table: dict[str, Function], *inputs: torch.Tensor, aten: tuple[str, ...] = ()) -> None:
    """To torch's own tolerances, against eager in the next wider type, rounded once: eager's own
    special functions are off by more than that."""

    def together(*args: torch.Tensor) -> list[torch.Tensor]:
        return [t for function in table.values() for t in tensors_of(function(*args))]

    run = compiled(together)
    got, eager = run(*inputs), together(*inputs)
    wide = together(*(i.to(WIDER.get(i.dtype, i.dtype)) for i in inputs))
    names = [n for n, f in table.items() for _ in tensors_of(f(*inputs))]
    for name, ours, theirs, exact in zip(names, got, eager, wide, strict=True):
        want = exact.to(theirs.dtype) if theirs.dtype in WIDER else theirs
        assert ours.dtype is theirs.dtype
        torch.testing.assert_close(
            ours, want, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}"
        )
    assert sorted(set(run.aten_ops)) == sorted(aten)


def plain(dtype: torch.dtype) -> torch.Tensor:
    """Numbers over which functions have something to show, by less than a unit apart."""
    if not dtype.is_floating_point:
        return numbers(dtype, 37)
    return torch.cat([torch.linspace(-8.93, 8.91, 83), torch.linspace(0.011, 0.989, 50)]).to(dtype)


def strange(dtype: torch.dtype) -> torch.Tensor:
    """Poles, ends of domains, infinities, NaN."""
    some = [0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -0.5, -torch.inf, torch.nan, 30.0, 1e-30]
    return torch.tensor(some, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_one_number(dtype: torch.dtype) -> None:
    x = plain(dtype)
    table = {name: f for name, f in ONE.items() if takes(f, x)}
    assert len(table) >= (10 if dtype in HALF_DTYPES else 18)
    close(table, x)
    agree({name: f for name, f in EXACT.items() if takes(f, x)}, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_poles_and_infinities(dtype: torch.dtype) -> None:
    close(ONE, strange(dtype))
    agree(EXACT, strange(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_trigamma_is_eagers_beside_its_poles_too(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -1.0, -2.0, 3.0]).to(dtype)
    for values in (plain(dtype), x):
        got = compiled(lambda x: torch.polygamma(1, x))(values)
        torch.testing.assert_close(got, torch.polygamma(1, values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bool], ids=str)
def test_waves(dtype: torch.dtype) -> None:
    close(WAVES, plain(dtype))
    if dtype.is_floating_point:
        close(WAVES, strange(dtype))


def test_waves_of_f64_are_left_to_aten() -> None:
    close(WAVES, plain(torch.float64), aten=tuple(f"special_{name}" for name in WAVES))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_two(dtype: torch.dtype) -> None:
    x, y = numbers(dtype, 5, 37), numbers(dtype, 37, seed=1)
    table = {name: f for name, f in TWO.items() if takes(f, x, y)}
    assert table
    close(table, x, y)
    close(table, x.t(), y[:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_pairs_of_strange_numbers(dtype: torch.dtype) -> None:
    x, y = (a.reshape(-1) for a in torch.meshgrid(strange(dtype), strange(dtype), indexing="ij"))
    table = {name: TWO[name] for name in ("fmin", "fmax", "hypot", "nextafter")}
    agree({name: f for name, f in table.items() if takes(f, x, y)}, x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_neighbour_of_every_kind_of_number_is_eagers_bit_by_bit(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    tiny = limits.smallest_normal
    some = [0.0, -0.0, 1.0, -1.0, tiny, -tiny, limits.max, torch.inf, -torch.inf, tiny / 2, 3.0]
    x = torch.tensor(some, dtype=dtype)
    x, y = (a.reshape(-1).contiguous() for a in torch.meshgrid(x, x, indexing="ij"))
    word = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    got = compiled(torch.nextafter)(x, y)
    assert torch.equal(got.view(word), torch.nextafter(x, y).view(word))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_divisors_of_extreme_integers(dtype: torch.dtype) -> None:
    bounds = torch.iinfo(dtype)
    some = torch.tensor([0, 1, 2, 6, 9, 60, bounds.max, bounds.min, bounds.min + 2], dtype=dtype)
    if dtype in (torch.int32, torch.int64):
        some = some[some != bounds.min]  # the least integer by -1 ends eager's process
    x, y = (a.reshape(-1) for a in torch.meshgrid(some, some, indexing="ij"))
    agree({"gcd": torch.gcd, "lcm": torch.lcm}, x, y)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("exponent", [torch.int32, torch.int64, torch.int8, torch.float32], ids=str)
def test_ldexp(dtype: torch.dtype, exponent: torch.dtype) -> None:
    x = torch.cat([numbers(dtype, 20), torch.tensor([0.0, torch.inf, torch.nan, 1.0], dtype=dtype)])
    y = torch.arange(-12, 12).to(exponent)
    agree(torch.ldexp, x, y)
    agree(torch.ldexp, numbers(torch.int32, 24), y)


def test_ldexp_rounds_once_and_does_not_overflow_on_the_way() -> None:
    x = torch.tensor([2.0**-100, 1.1 * 2.0**-120, 1.7, 1e38, -3.3, 0.0, 5.0, math.inf])
    y = torch.tensor([200, -25, -149, -250, -140, 2**30, -(2**31), -5])
    got = compiled(torch.ldexp)(x, y)
    assert torch.equal(got, torch.ldexp(x, y))
    wide = x.double() * 2.0**-900
    got = compiled(torch.ldexp)(wide, y - 150)
    assert torch.equal(got, torch.ldexp(wide, y - 150))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_frexp_of_subnormals(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal
    x = torch.tensor([tiny, tiny / 2, -tiny / 4096, tiny * torch.finfo(dtype).eps, 3 * tiny])
    agree(torch.frexp, x.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_orthogonal_polynomials(name: str, dtype: torch.dtype) -> None:
    function = getattr(S, name)
    x = torch.tensor([-2.0, -1.0, -0.9, -0.1, 0.0, 0.3, 0.5, 0.99, 1.0, 1.5], dtype=dtype)
    degrees = torch.tensor([-1.0, 0.0, 1.0, 2.0, 2.7, 3.0, 5.0], dtype=dtype)
    close({"both": function}, x[:, None], degrees)
    close({"degree": lambda x: function(x, 4), "argument": lambda x: function(0.3, x)}, degrees)
    inside = torch.tensor([0.1, 0.4, 0.8], dtype=dtype)
    high = compiled(lambda x: function(x, 12))(inside)
    torch.testing.assert_close(high, function(inside, 12), rtol=2e-5, atol=2e-5)


def test_the_interpreter_means_the_same() -> None:
    x = torch.linspace(0.03, 0.93, 7, dtype=torch.float64)
    y = torch.tensor([-2.5, -0.3, 0.2, 1.0, 3.7, 9.2, 40.0], dtype=torch.float64)
    kept = ["polygamma 2", "polygamma 3", "erfinv", "ndtri", "erfcx", "i0", "i1e"]
    kept += ["lgamma", "digamma", "scaled_modified_bessel_k0", "modified_bessel_k1"]

    def table(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        ones = [ONE[name](v) for name in kept for v in (x, y)]
        polynomials = [getattr(S, name)(x, y) for name in POLYNOMIALS[:8]]
        pairs = [torch.nextafter(x, y), torch.hypot(x, y), S.zeta(y.abs() + 2, x)]
        mixed = [torch.ldexp(x, y.int()), torch.frexp(y), *ones, *polynomials, *pairs]
        return [t for m in mixed for t in (m if isinstance(m, tuple) else (m,))]

    found = stages(table, x, y).lowered()
    for ours, eager in zip(found, table(x, y), strict=False):
        np.testing.assert_allclose(ours, eager.numpy(), rtol=1e-9, atol=1e-12)


def test_the_interpreter_reads_the_bits_of_halves() -> None:
    x = torch.tensor([1.0, -2.5, 0.0, 3.3], dtype=torch.bfloat16)
    y = torch.tensor([2.0, -9.0, -1.0, 3.3], dtype=torch.bfloat16)
    found = stages(torch.nextafter, x, y).lowered()[0]
    np.testing.assert_array_equal(found, torch.nextafter(x, y).float().numpy())


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_to_any_number_of_decimals(dtype: torch.dtype) -> None:
    """A power of ten that no float holds is infinite, and what is divided by it NaN or zero."""
    x = torch.tensor([0.0, -0.0, 1.25, -3.457, 60000.0, 1e-8, 3e38, 1e300, math.inf, math.nan])
    x = x.double().to(dtype)
    counts = (1, 5, 38, 39, 308, 309, 310, 10**6)
    given = [sign * count for count in counts for sign in (1, -1)]

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.round(x, decimals=n) for n in given]

    for n, a, b in zip(given, compiled(program)(x), program(x), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=f"{n}: {a}, {b}")
