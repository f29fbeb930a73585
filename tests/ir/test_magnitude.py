"""Which arithmetic is exact in 64 bits."""

from __future__ import annotations

import pytest

from litz.ir.expr import Expr, apply, axis, integer, size
from litz.ir.index import simplify, simplify_values
from litz.ir.magnitude import is_exact, magnitude

I0, S0 = axis("i0", 40), size("s0", 2)
GIVEN = size("n", -(1 << 62))
READ = size("u0", 0, (1 << 63) - 1)


def times(x: Expr, factor: int) -> Expr:
    return apply("mul", x, integer(factor))


@pytest.mark.parametrize(
    "value, most",
    [
        (I0, 40),
        (times(I0, 2**57), 40 * 2**57),
        (times(I0, 2**58), None),
        (apply("neg", times(I0, 2)), 80),
        (apply("mod", times(I0, 2), integer(7)), 7),
        (apply("floordiv", times(I0, 2**58), integer(7)), None),
        (apply("floordiv", I0, integer(-7)), None),
        (apply("check_index", times(I0, 2**58), integer(9)), 9),
        (times(S0, 2**16), None),
        (times(GIVEN, 1), None),
        (times(READ, 2), None),
    ],
)
def test_magnitudes(value: Expr, most: int | None) -> None:
    assert magnitude(value) == most
    assert is_exact(value) == (most is not None)


def test_loops_are_no_longer_than_memory() -> None:
    assert is_exact(times(axis("i1", READ), 2))
    assert is_exact(apply("sub", axis("i2", apply("mul", S0, S0)), S0))


def test_values_that_may_wrap_stay_and_addresses_do_not() -> None:
    wraps = apply("floordiv", times(I0, 2**58), integer(2**50))
    assert simplify_values(wraps) is wraps
    assert simplify(wraps) is simplify(times(I0, 256))
    small = apply("floordiv", times(I0, 2**50), integer(2**48))
    assert simplify_values(small) is simplify(times(I0, 4))


def test_an_index_that_the_program_computed_may_wrap() -> None:
    wraps = apply("floordiv", times(I0, 2**58), integer(2**58))
    checked = apply("check_index", wraps, integer(40))
    assert simplify(checked) is checked
    fits = apply("check_index", apply("floordiv", times(I0, 4), integer(4)), integer(40))
    assert simplify(fits) is I0


def test_divisors_are_not_multiplied_beyond_64_bits() -> None:
    twice = apply("floordiv", apply("floordiv", READ, integer(2**40)), integer(2**40))
    assert simplify(twice) is twice
