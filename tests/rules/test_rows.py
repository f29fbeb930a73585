"""Every row of every table, proved on a grid of special values for every type it allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from litz.ir.dtypes import BF16, BOOL, DTYPES, F16, F32, F64, DType
from litz.ir.expr import Expr, apply, cast, const, integer, load, narrow
from litz.ir.interpret import Environment, convert, evaluate
from litz.ir.ops import OPS
from litz.ir.program import Buffer
from litz.rewrite import TABLES, Rewriter, Rule
from litz.rewrite.pattern import CONVERSIONS, TermPattern, is_literal

ROWS = [rule for table in TABLES.values() for rule in table]
TYPES = [d for d in DTYPES.values() if d.kind in "fiub"]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e-40, -1e30, 1e300, 1.1, np.inf, -np.inf, np.nan]
# Below the normal numbers of f64, at the borders of f32 and of f64.
FLOATS += [5e-324, -1e-310, 2.0**-126, -(2.0**-149), 3.4028234663852886e38, -1.7976931348623157e308]
INTEGERS = [0, 1, -1, 2, 3, -7, 100, 1 << 20]
LOGICAL = ("and", "or", "xor", "not", "shl", "shr")
# Powers that eager computes as products: NumPy's power may be a last bit away from them.
EAGER_POWERS = {"pow_two": 2, "pow_three": 3, "pow_minus_one": -1, "pow_minus_two": -2}
Bound = dict[str, Expr]


def special(dtype: DType) -> np.ndarray:
    """The values of a type at which rules break."""
    with np.errstate(all="ignore"):
        if dtype is BOOL:
            return np.array([False, True])
        if dtype.is_float:
            return convert(np.array(FLOATS), dtype)
        info = np.iinfo(dtype.numpy)
        return np.array([*INTEGERS, info.min, info.max, info.min + 1]).astype(dtype.numpy)


def instances(pattern: TermPattern, dtype: DType, bound: Bound) -> Iterator[tuple[Expr, Bound]]:
    """Every well-typed expression of type `dtype` that has the pattern's form."""
    if pattern.op == "any":
        node = bound.get(pattern.attr) or _variable(pattern.attr, dtype)
        if node.dtype is dtype:
            yield node, {**bound, pattern.attr: node}
    elif pattern.op == "constant":
        for value in special(dtype):
            node = const(value.item(), dtype)
            yield node, {**bound, pattern.attr: node}
    elif pattern.op == "literal":
        if (dtype is BOOL) == isinstance(pattern.attr, bool):
            node = const(pattern.attr, dtype)
            if is_literal(node, pattern.attr):
                yield node, bound
    elif pattern.op in CONVERSIONS:
        if pattern.op == "narrow" and not dtype.is_half:
            return
        for source in TYPES:
            if source is not dtype and pattern.attr in (None, dtype):
                for operand, names in instances(pattern.args[0], source, bound):
                    yield CONVERSIONS[pattern.op](operand, dtype), names
    else:
        yield from _op_instances(pattern, dtype, bound)


def _op_instances(pattern: TermPattern, dtype: DType, bound: Bound) -> Iterator[tuple[Expr, Bound]]:
    spec = OPS[pattern.op]
    if spec.result == "bool" and dtype is not BOOL:
        return
    for operand in TYPES if spec.result == "bool" else [dtype]:
        if not _computes(pattern.op, operand):
            continue
        types = [operand] * spec.arity
        if pattern.op == "where":
            types[0] = BOOL
        partial: list[tuple[list[Expr], Bound]] = [([], bound)]
        for argument, wanted in zip(pattern.args, types, strict=True):
            partial = [
                ([*args, node], names)
                for args, before in partial
                for node, names in instances(argument, wanted, before)
            ]
        for args, names in partial:
            yield apply(pattern.op, *args), names


def _computes(op: str, dtype: DType) -> bool:
    """Whether the IR ever has this op on operands of this type."""
    if op == "where":
        return True
    if dtype.is_narrow or (OPS[op].floats_only and not dtype.is_float):
        return False
    if op in LOGICAL:
        return not dtype.is_float and not (dtype is BOOL and op.startswith("sh"))
    integer_division = op in ("floordiv", "truncdiv", "mod")
    if dtype is BOOL:
        return not integer_division and op not in ("sub", "neg", "pow")
    return not (integer_division and dtype.is_float)


def _variable(name: str, dtype: DType) -> Expr:
    return load(Buffer(name, dtype, (integer(1),), (integer(1),)), (integer(0),))


def both_sides(left: Expr, right: Expr, bound: Bound) -> tuple[np.ndarray, np.ndarray]:
    """Left and right at every combination of special values of the variables."""
    variables = [node for node in bound.values() if node.op == "load"]
    grids = np.meshgrid(*(special(v.dtype) for v in variables), indexing="ij")
    points = {v: grid.ravel() for v, grid in zip(variables, grids, strict=True)}
    with np.errstate(all="ignore"):
        env = Environment(values=points)
        return evaluate(left, env), evaluate(right, env)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the last bit; every NaN is the same NaN."""
    a, b = np.broadcast_arrays(a, b)
    if a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    equal = (a == b) & (np.signbit(a) == np.signbit(b))
    return bool(np.all(equal | (np.isnan(a) & np.isnan(b))))


def reference(rule: Rule, value: np.ndarray, bound: Bound) -> np.ndarray:
    """What the left side must give: NumPy's meaning, or eager's where eager defines it."""
    x = bound.get("x")
    if rule.name in EAGER_POWERS and x is not None and x.dtype.is_float:
        points = torch.from_numpy(special(x.dtype))
        return torch.pow(points, EAGER_POWERS[rule.name]).numpy()
    return value


@pytest.mark.parametrize("rule", ROWS, ids=lambda r: r.name)
def test_row_is_exact(rule: Rule) -> None:
    rewriter = Rewriter([rule])
    always = rule.when is None and not rule.let
    is_rounding = rule in TABLES["rounding"]
    used = 0
    for dtype in TYPES:
        for left, bound in instances(rule.left, dtype, {}):
            before = rewriter.hits[rule.name]
            right = rewriter.settle(left)
            if rewriter.hits[rule.name] == before:
                assert not (always and rule.allows(left.args[-1].dtype)), f"missed {left}"
                continue
            used += 1
            assert right.dtype is left.dtype
            if not is_rounding:
                old, new = both_sides(left, right, bound)
                assert same_bits(reference(rule, old, bound), new), f"{left} is not {right}"
    assert used, f"nothing of the form {rule.equation} could be built"


@pytest.mark.parametrize("rule", ROWS, ids=lambda r: r.name)
def test_row_makes_work_less(rule: Rule) -> None:
    """Cost, then number of nodes, falls with every step: so rewriting ends."""

    def work(side: TermPattern) -> tuple[int, int]:
        # What stands for a constant is one: the fold of `A + B` is counted as done.
        nodes = [n for n in side.nodes() if n.op not in ("any", "constant", "literal")]
        computed = [n for n in nodes if any(a.op != "constant" for a in n.args)]
        kept = nodes if side is rule.left else computed
        return sum(OPS[n.op].cost if n.op in OPS else 1 for n in kept), len(list(side.nodes()))

    assert work(rule.right) < work(rule.left)


def test_names_are_unique_and_right_sides_are_bound() -> None:
    assert len({rule.name for rule in ROWS}) == len(ROWS)
    for rule in ROWS:
        names = {n.attr for n in rule.left.nodes() if n.op in ("any", "constant")}
        used = {n.attr for n in rule.right.nodes() if n.op in ("any", "constant")}
        assert used <= names | set(rule.let), rule.name


def test_rounding_rules_drop_a_rounding_and_nothing_else() -> None:
    x = _variable("x", F32)
    for half, target in itertools.product((F16, BF16), (F32, F64)):
        value = cast(narrow(x, half), target)
        assert Rewriter(TABLES["rounding"]).rewrite(value) is cast(x, target)
        asked_for = cast(cast(x, half), target)
        assert Rewriter(ROWS).rewrite(asked_for) is asked_for


@pytest.mark.parametrize(
    "wrong",
    [
        Rule("add_zero", "x + 0 -> x", "float"),
        Rule("mul_zero", "x * 0 -> 0", "float"),
        Rule("sub_same", "x - x -> 0", "float"),
        Rule("eq_same", "x == x -> True", "float"),
        Rule("not_lt", "~(x < y) -> x >= y", "bool"),
        Rule("abs_neg", "abs(-x) -> abs(x)", "number"),
        Rule("abs_sqrt", "abs(sqrt(x)) -> sqrt(x)", "float"),
        Rule("add_add", "x + A + B -> x + (A + B)", "float"),
        Rule("any_cast_back", "cast(cast(x)) -> x", when=lambda m: m["x"].dtype is m["root"].dtype),
        Rule("zero_sub", "0 - x -> -x", "float"),
    ],
    ids=lambda r: r.name,
)
def test_the_proof_finds_wrong_rules(wrong: Rule) -> None:
    with pytest.raises(AssertionError, match=" is not "):
        test_row_is_exact(wrong)
