"""Rules are applied until none applies, and counted."""

from __future__ import annotations

from litz.ir.dtypes import BOOL, F32, I32, DType
from litz.ir.expr import Expr, apply, axis, const, integer, load, reduce, size
from litz.ir.program import Buffer
from litz.rewrite import Rewriter, Rule

NOT_NOT = Rule("not_not", "~~b -> b")
MUL_ONE = Rule("mul_one", "x * 1 -> x")


def variable(name: str, dtype: DType) -> Expr:
    return load(Buffer(name, dtype, (integer(1),), (integer(1),)), (integer(0),))


X, Y, B = variable("x", F32), variable("y", F32), variable("b", BOOL)
ONE = const(1, F32)


def test_a_chain_collapses_and_is_counted() -> None:
    value = X
    for _ in range(10):
        value = apply("mul", ONE, apply("mul", value, ONE))
    rewriter = Rewriter([MUL_ONE, NOT_NOT])
    assert rewriter.rewrite(value) is X
    assert rewriter.hits == {"mul_one": 20}


def test_what_a_rule_builds_is_rewritten_too() -> None:
    swap = Rule("where_not", "where(~c, x, y) -> where(c, y, x)")
    same = Rule("where_neg", "where(c, x, -y) -> x")
    value = apply("where", apply("not", B), apply("neg", X), Y)
    assert Rewriter([swap, same]).rewrite(value) is Y


def test_conditions_types_and_computed_names() -> None:
    value = apply("mul", X, ONE)
    assert Rewriter([Rule("never", "x * 1 -> x", when=lambda m: False)]).rewrite(value) is value
    assert Rewriter([Rule("ints", "x * 1 -> x", "int")]).rewrite(value) is value
    undefined = Rule("undefined", "x * A -> K", let={"K": lambda m: None})
    assert Rewriter([undefined]).rewrite(value) is value
    doubled = Rule("doubled", "x * A -> K", let={"K": lambda m: const(2 * m["A"].attr, F32)})
    assert Rewriter([doubled]).rewrite(value) is const(2, F32)


def test_the_first_row_that_matches_wins() -> None:
    rows = [Rule("first", "x * 1 -> x"), Rule("second", "x * 1 -> 1")]
    rewriter = Rewriter(rows)
    assert rewriter.rewrite(apply("mul", X, ONE)) is X
    assert rewriter.hits == {"first": 1}


def test_a_memo_shared_between_calls_settles_each_node_once() -> None:
    memo: dict[Expr, Expr] = {}
    rewriter = Rewriter([MUL_ONE])
    value = apply("mul", X, ONE)
    assert rewriter.rewrite(apply("exp", value), memo) is apply("exp", X)
    assert rewriter.rewrite(apply("sin", value), memo) is apply("sin", X)
    assert rewriter.hits == {"mul_one": 1}


def test_axes_keep_their_identity_and_reductions_their_axes() -> None:
    odd = axis("i0", apply("mul", size("s0"), integer(1)))
    value = reduce("sum", (odd,), apply("mul", load(X.buffer, (odd,)), ONE))
    result = Rewriter([MUL_ONE]).rewrite(value)
    assert result is reduce("sum", (odd,), load(X.buffer, (odd,)))
    assert result.axes == frozenset()


def test_a_guard_that_becomes_constant_is_dropped() -> None:
    always = apply("not", apply("not", const(True, BOOL)))
    guarded = load(X.buffer, (integer(0),), always)
    assert Rewriter([NOT_NOT]).rewrite(guarded) is X


def test_deep_expressions_need_no_stack() -> None:
    value = variable("n", I32)
    for _ in range(4000):
        value = apply("not", value)
    assert Rewriter([NOT_NOT]).rewrite(value) is variable("n", I32)
