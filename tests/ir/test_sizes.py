"""What is known of sizes for every value of their symbols, and what is only a hint."""

from __future__ import annotations

import pytest

from litz.errors import SizeUnknown
from litz.ir.dtypes import F32
from litz.ir.expr import Expr, apply, axis, extent_of, integer, size
from litz.ir.index import row_major, simplify, to_poly
from litz.ir.interpret import Environment
from litz.ir.parse import parse_program
from litz.ir.program import Buffer
from litz.ir.sizes import (
    at_least,
    ceil_div,
    content,
    count_of,
    is_multiple,
    named,
    quotient,
    span,
    symbols,
)
from litz.ir.text import program_text

S, T = size("s", 2, None, 10), size("t", 1, 64, 3)


def _times(*factors: Expr | int) -> Expr:
    found = integer(1)
    for factor in factors:
        found = apply("mul", found, integer(factor) if isinstance(factor, int) else factor)
    return simplify(found)


def test_a_hint_is_for_choices_and_a_number_for_code() -> None:
    both = apply("add", _times(S, T, 4), integer(1))
    assert both.hint == 121 and extent_of([axis("i", both)]) == 121
    with pytest.raises(SizeUnknown, match="the value of the size s"):
        both.number  # noqa: B018
    with pytest.raises(SizeUnknown):
        int(S)


def test_quotients_leave_nothing_for_any_value() -> None:
    assert quotient(_times(S, 768), integer(64)) is quotient(_times(S, 12), integer(1))
    assert quotient(_times(S, T, 64), _times(S, 64)) is T
    assert quotient(S, integer(2)) is None and quotient(integer(7), S) is None
    assert quotient(integer(12), integer(4)) is integer(3)


def test_multiples_and_what_covers_a_size() -> None:
    assert is_multiple(_times(S, 16), 16) and not is_multiple(S, 16)
    assert ceil_div(_times(S, 16), 16) is S and ceil_div(integer(17), 16) is integer(2)
    env = Environment(sizes={"s": 33})
    assert env.number(ceil_div(S, 16)) == 3


def test_what_is_always_so() -> None:
    assert at_least(S, integer(2)) and not at_least(S, integer(3))
    assert at_least(_times(S, T), S) and not at_least(S, T)


def test_counts_and_spans_are_exact() -> None:
    axes = [axis("i", S), axis("j", T), axis("k", 4)]
    assert count_of(axes) is count_of(reversed(axes))
    shape = (S, T, integer(4))
    whole = Buffer("x", F32, shape, row_major(shape))
    assert span(whole) is count_of(axes)
    number, unit = content(to_poly(_times(span(whole), 4)))
    assert number == 16 and unit is _times(S, T)


def test_what_is_no_polynomial_becomes_a_size_made_of_others() -> None:
    half = named(apply("floordiv", S, integer(2)), low=1)
    assert half.op == "size" and half.hint == 5 and named(S) is S
    assert list(symbols(half)) == [half] and list(symbols(*half.args)) == [S]
    text = f"""
        size s in 2.. near 10
        size {half.attr[0]} in 1.. near 5 = s // 2
        input x: f32[s]
        buffer y: f32[{half.attr[0]}]
        loop i0 < {half.attr[0]}:
          y[i0] = x[i0]
        output y
    """
    program = parse_program(text)
    (loop,) = program.body
    assert loop.axes[0].extent is half
    assert parse_program(program_text(program)) == program
