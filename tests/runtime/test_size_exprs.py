"""Numbers in the text of a call: what Python reads is what was meant, bit for bit."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from litz.errors import SizeUnknown
from litz.ir.dtypes import BOOL, F32, F64, I64
from litz.ir.expr import Expr, apply, cast, const, integer, size
from litz.ir.program import Buffer
from litz.runtime.size_exprs import float_bits, number_text, source_of, table_text

FLOATS = [0.0, -0.0, 0.1, -2.5, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan]
INTEGERS = [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)]


def _read(text: str, **known: Any) -> Any:
    scope = {"math_floor": math.floor, "math_ceil": math.ceil, "float_bits": float_bits}
    return eval(text, {**scope, **{f"n_{k}": v for k, v in known.items()}})


def _bits(number: float) -> bytes:
    return struct.pack("<d", number)


@pytest.mark.parametrize("number", FLOATS)
def test_a_float_is_itself(number: float) -> None:
    constant = const(number, F64)
    assert _bits(_read(number_text(constant))) == _bits(number)
    (back,) = struct.unpack("<d", struct.pack("<q", _read(table_text(constant))))
    assert _bits(back) == _bits(number)


@pytest.mark.parametrize("number", INTEGERS)
def test_an_integer_is_itself(number: int) -> None:
    assert _read(number_text(integer(number))) == number
    assert _read(number_text(const(number, I64))) == number


def test_signs_bind_as_they_should() -> None:
    u = size("u0")
    power = apply("pow", const(-2.0, F64), cast(u, F64))
    assert _read(number_text(power), u0=2) == 4.0
    assert _read(number_text(apply("sub", u, integer(-3))), u0=2) == 5
    assert _read(number_text(apply("neg", integer(-3)))) == 3
    assert _read(number_text(apply("mul", const(-0.0, F64), cast(u, F64))), u0=2) == 0.0
    assert _read(number_text(apply("and", const(True, BOOL), apply("lt", u, integer(3)))), u0=2)


@pytest.mark.parametrize("divisor", [2.5, -2.5])
def test_a_remainder_is_pythons(divisor: float) -> None:
    rest = apply("remainder", cast(size("u0"), F64), const(divisor, F64))
    assert _read(number_text(rest), u0=12) == 12 % divisor


def test_a_size_is_solved_from_what_shows_it() -> None:
    s, t = size("s0"), size("s1")
    more, twice = apply("add", s, integer(1)), apply("mul", s, integer(2))
    odd = apply("sub", twice, integer(3))

    def source(*shape: Expr) -> str:
        return source_of(s, [(Buffer("x", F32, shape, shape, "cpu"), "x0")])

    assert source(integer(4), more) == "x0.shape[1] - 1"
    assert source(more, s) == "x0.shape[1]"
    assert source(twice) == "(x0.shape[0]) // 2"
    assert source(odd) == "(x0.shape[0] + 3) // 2"
    assert source_of(s, [(more, "a0")]) == "a0 - 1"
    for unknown in (apply("add", s, t), apply("mul", s, s), apply("floordiv", s, integer(2))):
        with pytest.raises(SizeUnknown):
            source(unknown)
