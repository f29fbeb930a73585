"""Equations are read, matched and built."""

from __future__ import annotations

import pytest

from litz.ir.dtypes import BF16, BOOL, F32, I32, U8, DType
from litz.ir.expr import Expr, apply, cast, const, integer, load, narrow
from litz.ir.program import Buffer
from litz.rewrite.pattern import Bindings, TermPattern, build, match, orders, parse_pattern


def variable(name: str, dtype: DType) -> Expr:
    return load(Buffer(name, dtype, (integer(1),), (integer(1),)), (integer(0),))


X, Y = variable("x", F32), variable("y", F32)
B = variable("b", BOOL)


def matched(text: str, node: Expr) -> Bindings | None:
    bound: Bindings = {}
    found = any(match(p, node, bound := {}) for p in orders(parse_pattern(text)))
    return bound if found else None


def test_text_becomes_a_tree() -> None:
    x, two = TermPattern("any", (), "x"), TermPattern("literal", (), 2)
    assert parse_pattern("x * 2") == TermPattern("mul", (x, two))
    assert parse_pattern("~x") == TermPattern("not", (x,))
    assert parse_pattern("x <= K") == TermPattern("le", (x, TermPattern("constant", (), "K")))
    assert parse_pattern("cast.bf16(x)") == TermPattern("cast", (x,), BF16)
    assert parse_pattern("-0.0").attr.hex() == "-0x0.0p+0"


@pytest.mark.parametrize("text", ["x.y", "f(x)", "x < y < z", "[x]"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises((ValueError, AssertionError)):
        parse_pattern(text)


def test_names_bind_and_repeat() -> None:
    assert matched("x + y", apply("add", X, Y)) == {"x": X, "y": Y}
    assert matched("x + x", apply("add", X, X)) == {"x": X}
    assert matched("x + x", apply("add", X, Y)) is None


def test_commutative_ops_match_in_any_order_at_any_depth() -> None:
    product = apply("mul", const(2, F32), X)
    assert matched("x * 2 + y", apply("add", Y, product)) == {"x": X, "y": Y}
    assert matched("x - 2", apply("sub", const(2, F32), X)) is None
    assert len(orders(parse_pattern("x * 2 + y"))) == 4
    assert len(orders(parse_pattern("max(x, x)"))) == 1


def test_upper_case_names_bind_constants_alone() -> None:
    assert matched("x / K", apply("div", X, const(3, F32))) == {"x": X, "K": const(3, F32)}
    assert matched("x / K", apply("div", X, Y)) is None


@pytest.mark.parametrize(
    "text, value, dtype, expected",
    [
        ("0", 0.0, F32, True),
        ("0", -0.0, F32, False),
        ("-0.0", -0.0, F32, True),
        ("-0.0", 0.0, F32, False),
        ("1", 1, I32, True),
        ("1", True, BOOL, False),
        ("True", True, BOOL, True),
        ("True", 1, I32, False),
        ("-1", 255, U8, True),
        ("0.5", 0, I32, False),
        ("inf", float("inf"), F32, True),
        ("nan", float("nan"), F32, True),
    ],
)
def test_numerals_match_exactly(text: str, value: float, dtype: DType, expected: bool) -> None:
    assert match(parse_pattern(text), const(value, dtype), {}) is expected


def test_conversions_match_by_kind_and_type() -> None:
    half = cast(X, BF16)
    assert matched("cast(x)", half) == {"x": X}
    assert matched("cast.bf16(x)", half) == {"x": X}
    assert matched("cast.f32(x)", half) is None
    assert matched("cast(x)", narrow(X, BF16)) is None


@pytest.mark.parametrize(
    "text, dtype, expected",
    [
        ("x * 2", F32, apply("mul", X, const(2, F32))),
        ("1 / (x * x)", F32, apply("div", const(1, F32), apply("mul", X, X))),
        ("x < 0", BOOL, apply("lt", X, const(0, F32))),
        (
            "where(x < 0, 1, y)",
            F32,
            apply("where", apply("lt", X, const(0, F32)), const(1, F32), Y),
        ),
        ("~(b == True)", BOOL, apply("not", apply("eq", B, const(True, BOOL)))),
        ("cast(x)", BF16, cast(X, BF16)),
        ("-1", U8, const(255, U8)),
    ],
)
def test_numerals_take_the_type_of_their_place(text: str, dtype: DType, expected: Expr) -> None:
    bound = {"x": X, "y": Y, "b": B}
    assert build(parse_pattern(text), bound, dtype, lambda node: node) is expected
