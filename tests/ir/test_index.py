"""The index algebra: a table of what it must find, and properties over random expressions."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from litz.ir.expr import Expr, apply, axis, integer, size, walk
from litz.ir.index import (
    bounds,
    coefficient,
    flat_index,
    from_poly,
    is_nonnegative,
    ravel,
    simplify,
    size_product,
    to_poly,
    unravel,
)
from litz.ir.interpret import Environment, evaluate
from litz.ir.parse import Scope, parse_expr, parse_program

S0, S1 = size("s0", 1), size("s1", 2, 64)
NUMBERS = {"s0": 5, "s1": 3}

# -- the table -------------------------------------------------------------------------------

AXES = {"b": 4, "h": 12, "s": 128, "d": 64, "i": 8, "j": 128, "k": 6, "n": S0, "m": S1, "w": 1024}
NAMES = {name: axis(name, extent) for name, extent in AXES.items()} | {"s0": S0, "s1": S1}

SIMPLIFICATIONS = [
    # sums and products
    ("i + 0", "i"),
    ("i * 1 + j * 0", "i"),
    ("i + i", "i * 2"),
    ("i - i", "0"),
    ("(i + 1) * (i - 1)", "i * i - 1"),
    ("2 * (i + 3) - 6", "i * 2"),
    ("-(-i)", "i"),
    # floor division and remainder of what is smaller
    ("i // 8", "0"),
    ("i % 8", "i"),
    ("i // 1", "i"),
    ("i % 1", "0"),
    ("(i * 128 + j) // 1024", "0"),
    # multiples
    ("((i * 128 + j) // 128) * 768", "i * 768"),
    ("(i * 128 + j) % 128", "j"),
    ("(i * 128 + j + 256) // 128", "i + 2"),
    ("(b * 98304 + h * 64 + s * 768 + d) // 768 % 128", "s"),
    ("(b * 98304 + h * 64 + s * 768 + d) // 98304", "b"),
    ("(b * 98304 + h * 64 + s * 768 + d) % 768 // 64", "h"),
    ("(b * 98304 + h * 64 + s * 768 + d) % 64", "d"),
    # common factors
    ("(i * 6 + 4) // 12", "(i * 3 + 2) // 6"),
    ("(i * 64 + d) // 128", "i // 2"),
    ("(i * 64 + d) % 128", "i % 2 * 64 + d"),
    # nests
    ("w // 4 // 8", "w // 32"),
    ("w % 128 % 32", "w % 32"),
    ("w % 128 // 32", "w // 32 % 4"),
    ("w // 16 * 16 + w % 16", "w"),
    ("w // 16 % 4 * 16 + w % 16", "w % 64"),
    # symbolic sizes
    ("(i * s0 + n) // s0", "i"),
    ("(i * s0 + n) % s0", "n"),
    ("(i * s0 * s1 + n * s1 + m) // s1 % s0", "n"),
    ("(i * s0 * s1 + n * s1 + m) // (s0 * s1)", "i"),
    ("n // s0", "0"),
    ("(w * 64 + d) // (s0 * 64)", "w // s0"),
    ("(w * 64 + d) % (s0 * 64)", "w % s0 * 64 + d"),
    ("(h * s0 * 16 + n * 16 + i) // (s0 * 32)", "h // 2"),
    ("(h * s0 * 16 + n * 16 + i) % (s0 * 32)", "h % 2 * s0 * 16 + n * 16 + i"),
    ("(i * (s0 + 1) + n) // (s0 + 1)", "i"),
    ("(i * (s0 + 1) + n) % (s0 + 1)", "n"),
    ("w // s0 * s0 + w % s0", "w"),
    ("w // s0 * s0 * 64 + w % s0 * 64 + d", "w * 64 + d"),
    ("check_index(n, s0)", "n"),
    # left alone: nothing is known
    ("w // 3", "w // 3"),
    ("check_index(w, 5)", "check_index(w, 5)"),
    ("n % 4", "n % 4"),
    # a number from memory may be anything: products of it wrap, and then division is not exact
    ("x[i] * 8 // 8", "x[i] * 8 // 8"),
    ("x[i] * x[j] % x[j]", "x[i] * x[j] % x[j]"),
    ("x[i] * 9223372036854775807 * 3", "x[i] * 9223372036854775805"),
    ("check_index(x[i], 8) * 16 // 8", "check_index(x[i], 8) * 2"),
]
MEMORY = {"x": parse_program("input x: i64[128]").inputs[0]}


@pytest.mark.parametrize(("before", "after"), SIMPLIFICATIONS)
def test_simplify(before: str, after: str) -> None:
    scope = Scope(NAMES, MEMORY)
    expected = parse_expr(after, scope)
    result = simplify(parse_expr(before, scope))
    # `expected` may order its terms differently; its own simplification must not change more.
    assert result is simplify(expected)
    assert len(list(walk(result))) <= len(list(walk(expected)))


def test_coefficient_of_a_strided_index() -> None:
    stride, rest = coefficient(parse_expr("(i * 128 + j) * 3 + 5", Scope(NAMES)), NAMES["i"])
    assert (repr(stride), repr(rest)) == ("384", "j * 3 + 5")
    assert coefficient(parse_expr("w // 3 + i", Scope(NAMES)), NAMES["w"]) is None
    assert coefficient(parse_expr("i * i", Scope(NAMES)), NAMES["i"]) is None


def test_flat_index_uses_strides() -> None:
    program = parse_program("input x: f32[8, 128] strides (1, 8)")
    assert repr(flat_index(program.inputs[0], (NAMES["i"], NAMES["j"]))) == "i + j * 8"


def test_repeated_squares_stay_small() -> None:
    """Written out as a sum, the last of them would have 2^40 terms."""
    value = NAMES["w"]
    for _ in range(40):
        square = apply("mul", value, value)
        value = apply("add", square, NAMES["i"])
    assert len(list(walk(simplify(value)))) < 4000


def test_nested_divisions_cost_linear_time() -> None:
    value = NAMES["w"]
    for k in range(60):
        quotient, rest = (apply(op, value, integer(2 + k)) for op in ("floordiv", "mod"))
        value = apply("add", quotient, rest)
    start = time.process_time()
    simplify(value)
    assert time.process_time() - start < 5  # takes 0.1 s; without a memo it would take years


# -- properties ------------------------------------------------------------------------------

LOOP_AXES = (axis("a", 7), axis("b", 4), axis("c", 6), axis("n", S0), axis("m", S1), axis("o", 1))


def values(e: Expr) -> np.ndarray:
    """The value at every point of the axes."""
    env = Environment(sizes=dict(NUMBERS))
    for k, variable in enumerate(LOOP_AXES):
        shape = [1] * len(LOOP_AXES)
        shape[k] = -1
        env.axes[variable] = np.arange(env.number(variable.extent)).reshape(shape)
    return np.broadcast_to(evaluate(e, env), [len(a.ravel()) for a in env.axes.values()])


DIVISORS = st.sampled_from([*map(integer, (1, 2, 3, 4, 6, 7, 8, 12, 24)), S0, S1])
LEAVES = st.sampled_from([*LOOP_AXES, S0, S1, *map(integer, (-7, -1, 0, 1, 2, 3, 4, 6, 12, 24))])


def _larger(smaller: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def binary(ops: list[str], right: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.builds(apply, st.sampled_from(ops), smaller, right)

    return st.one_of(
        binary(["add", "sub"], smaller),
        binary(["mul"], LEAVES),
        binary(["floordiv", "mod"], DIVISORS),
        st.builds(apply, st.just("neg"), smaller),
    )


INDICES = st.recursive(LEAVES, _larger, max_leaves=10)


@settings(max_examples=400)
@given(INDICES)
def test_simplify_keeps_every_value(e: Expr) -> None:
    np.testing.assert_array_equal(values(simplify(e)), values(e))


@settings(max_examples=200)
@given(INDICES)
def test_simplify_is_idempotent(e: Expr) -> None:
    once = simplify(e)
    for node in walk(once):
        node.simple = None  # or the answer would only be remembered
    assert simplify(once) is once


@settings(max_examples=200)
@given(INDICES)
def test_bounds_hold(e: Expr) -> None:
    poly = to_poly(simplify(e))
    span = bounds(poly)
    if span is not None:
        at, (low, high) = values(e), (values(from_poly(p)) for p in span)
        assert low.max() <= at.min()
        assert high.min() >= at.max()
        assert at.min() >= 0 or not is_nonnegative(span[0])


@settings(max_examples=200)
@given(INDICES, st.sampled_from(LOOP_AXES))
def test_coefficient_splits_exactly(e: Expr, variable: Expr) -> None:
    found = coefficient(e, variable)
    if found is not None:
        stride, rest = found
        assert variable not in stride.axes and variable not in rest.axes
        again = apply("add", apply("mul", stride, variable), rest)
        np.testing.assert_array_equal(values(again), values(e))


EXTENTS = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@settings(max_examples=100)
@given(EXTENTS)
def test_unravel_inverts_ravel(extents: list[int]) -> None:
    shape = tuple(map(integer, extents))
    index = tuple(axis(f"x{k}", n) if n > 1 else integer(0) for k, n in enumerate(extents))
    assert unravel(ravel(index, shape), shape) == index


@settings(max_examples=100)
@given(st.permutations([2, 3, 4, 5]), st.permutations([2, 3, 4, 5]), st.integers(1, 3))
def test_reshape_agrees_with_numpy(old: list[int], new: list[int], merged: int) -> None:
    """An index of one shape, raveled and unraveled into another, is NumPy's reshape."""
    new = [int(np.prod(new[:merged])), *new[merged:]]
    old_shape, new_shape = tuple(map(integer, old)), tuple(map(integer, new))
    index = tuple(axis(f"x{k}", n) for k, n in enumerate(new))
    places = unravel(ravel(index, new_shape), old_shape)
    env = Environment()
    env.axes = dict(zip(index, np.ix_(*map(np.arange, new)), strict=True))
    numbers = np.arange(size_product(old_shape).attr)
    found = numbers.reshape(old)[tuple(evaluate(p, env) for p in places)]
    np.testing.assert_array_equal(np.broadcast_to(found, new), numbers.reshape(new))
