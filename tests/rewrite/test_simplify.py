"""Value rules and index algebra in one pass."""

from __future__ import annotations

import cProfile
import itertools
from collections.abc import Callable

import numpy as np
import pytest

from litz.ir.dtypes import BF16, BOOL, F32, I64, DType
from litz.ir.expr import Expr, apply, axis, cast, const, integer, load, narrow, size
from litz.ir.index import simplify, simplify_values
from litz.ir.interpret import Environment, evaluate
from litz.ir.program import Buffer
from litz.rewrite import Simplifier, simplify_value

I0, I1 = axis("i0", 8), axis("i1", 16)
S = size("s0", 2, None)
IS = axis("i2", S)
TRUE, FALSE = const(True, BOOL), const(False, BOOL)


def add(x: Expr, y: Expr | int) -> Expr:
    return apply("add", x, integer(y) if isinstance(y, int) else y)


def mul(x: Expr, y: int) -> Expr:
    return apply("mul", x, integer(y))


def buffer(name: str, dtype: DType, length: int = 128) -> Buffer:
    return Buffer(name, dtype, (integer(length),), (integer(1),))


@pytest.mark.parametrize(
    "op, x, y, expected",
    [
        ("lt", I0, integer(8), TRUE),
        ("lt", I0, integer(7), None),
        ("ge", I0, integer(0), TRUE),
        ("gt", I0, integer(7), FALSE),
        ("le", I0, integer(7), TRUE),
        ("lt", add(mul(I0, 16), I1), integer(128), TRUE),
        ("eq", add(mul(I0, 2), 1), integer(0), FALSE),
        ("ne", add(I0, 8), I0, TRUE),
        ("eq", add(I0, I1), add(I1, I0), TRUE),
        ("lt", IS, S, TRUE),
        ("lt", IS, add(S, -1), None),
        ("ge", add(IS, 1), integer(1), TRUE),
        ("lt", integer(1), S, TRUE),
    ],
)
def test_comparisons_of_indices_are_decided(
    op: str, x: Expr, y: Expr, expected: Expr | None
) -> None:
    comparison = apply(op, x, y)
    assert simplify_value(comparison) is (expected or comparison)


def test_decisions_agree_with_every_value() -> None:
    env = Environment(axes={I0: np.arange(8)[:, None], I1: np.arange(16)[None, :]})
    forms = [add(mul(I0, a), mul(I1, b)) for a, b in itertools.product((-1, 0, 2), (-3, 1))]
    forms += [apply("floordiv", f, integer(3)) for f in forms]
    forms += [apply("mod", f, integer(5)) for f in forms]
    decided = 0
    for form, op, limit in itertools.product(forms, ("lt", "ge", "eq", "max"), (-50, 0, 4, 40)):
        value = apply(op, form, integer(limit))
        simple = simplify_value(value)
        decided += simple.is_const
        before, after = np.broadcast_arrays(evaluate(value, env), evaluate(simple, env))
        np.testing.assert_array_equal(before, after)
    assert decided > 50


def test_clamps_inside_the_range_vanish() -> None:
    clamped = apply("min", apply("max", add(I0, 1), integer(0)), integer(8))
    assert simplify_value(clamped) is add(I0, 1)


def test_load_indices_are_simplified() -> None:
    index = apply("floordiv", add(mul(I0, 16), I1), integer(16))
    assert simplify_value(load(buffer("x", F32), (index,))) is load(buffer("x", F32), (I0,))


def test_a_guard_that_always_holds_is_dropped_and_one_that_never_does_is_zero() -> None:
    x = buffer("x", F32)
    assert simplify_value(load(x, (I0,), apply("lt", I0, integer(8)))) is load(x, (I0,))
    assert simplify_value(load(x, (I0,), apply("ge", I0, integer(8)))) is const(0, F32)


def test_a_choice_by_a_decided_comparison() -> None:
    x = load(buffer("x", F32), (I0,))
    padded = apply(
        "where", apply("lt", I0, integer(8)), apply("mul", x, const(1, F32)), const(0, F32)
    )
    assert simplify_value(padded) is x


def test_tensors_of_int64_wrap_and_are_left_to_the_exact_rules() -> None:
    data = load(buffer("n", I64), (I0,))
    halved = apply("floordiv", mul(data, 2), integer(2))
    assert simplify_value(halved) is halved
    # An axis that user arithmetic takes past 64 bits wraps like any other tensor.
    huge = apply("floordiv", mul(mul(I0, 1 << 40), 1 << 23), integer(1 << 23))
    result = simplify_value(cast(huge, F32))
    env = Environment(axes={I0: np.arange(8)})
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(result, env), evaluate(cast(huge, F32), env))
    assert simplify_value(apply("lt", apply("mod", data, integer(-3)), integer(0))).op == "lt"


def test_values_made_of_axes_are_simplified() -> None:
    ramp = cast(apply("mod", add(mul(I0, 16), I1), integer(16)), F32)
    assert simplify_value(ramp) is cast(I1, F32)


def test_axes_keep_their_identity() -> None:
    odd = axis("i0", add(S, 0))
    value = load(buffer("x", F32), (add(odd, 0),))
    assert simplify_value(value) is load(buffer("x", F32), (odd,))
    assert simplify_value(cast(add(odd, 0), F32)) is cast(odd, F32)


def test_storage_roundings_are_dropped_unless_emulated() -> None:
    x = load(buffer("x", F32), (I0,))
    value = cast(narrow(x, BF16), F32)
    assert simplify_value(value) is x
    assert simplify_value(value, emulate_precision_casts=True) is value


def test_one_simplifier_serves_a_program() -> None:
    simplifier = Simplifier()
    x = load(buffer("x", F32), (I0,))
    shared = apply("mul", x, const(1, F32))
    assert simplifier(apply("exp", shared)) is apply("exp", x)
    assert simplifier(apply("sin", shared)) is apply("sin", x)
    assert simplifier.hits == {"mul_one": 1}


@pytest.mark.parametrize("simplified", [simplify_value, simplify, simplify_values])
def test_gathers_through_gathers_take_linear_time(simplified: Callable[[Expr], Expr]) -> None:
    """Counted in calls."""

    def calls(count: int, name: str) -> int:
        indices = buffer(name, I64)
        value: Expr = I0
        for _ in range(count):
            checked = apply("check_index", add(value, 0), integer(128))
            value = load(indices, (checked,))
        profile = cProfile.Profile(builtins=False)
        result = profile.runcall(simplified, value)
        assert result.index[0].op == "check_index"
        assert simplified is not simplify_value or result.index[0].args[0].op == "load"
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(3000, "many") < 10.5 * calls(300, "few")
