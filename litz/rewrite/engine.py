"""The engine: applies a table of rules to an expression until none applies.

In: a table of `Rule` rows and an `Expr`. Out: the equal expression in which no row matches any
more, and how often each row was used (`Rewriter.hits`). Each node is normalised once, operands
first, so the cost is linear in the number of nodes however deep or shared they are.
Example: `Rewriter([Rule("mul_one", "x * 1 -> x")]).rewrite(y * 1 * 1)` is `y`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from litz.ir.dtypes import DType
from litz.ir.expr import Expr, rebuild, transform
from litz.rewrite.pattern import Bindings, Make, TermPattern, build, match, orders, parse_equation

Condition = Callable[[Bindings], bool]
Computed = Callable[[Bindings], Expr | None]

FAMILIES: dict[str, Callable[[DType], bool]] = {
    "any": lambda d: True,
    "float": lambda d: d.is_float,
    "int": lambda d: d.is_int,
    "bool": lambda d: d.kind == "b",
    "number": lambda d: d.kind in "fiu",
    "integral": lambda d: d.kind in "iub",
    "signed": lambda d: d.kind in "fi",
}


@dataclass(frozen=True)
class Rule:
    """One row: left side, arrow, right side.

    `dtypes` names the type family of the last operand of the left side. `when` is a further
    condition on the bindings (`m["x"]`, and `m["root"]` for the whole). `let` computes names that
    only the right side has; if one of them is None, the rule does not apply.
    """

    name: str
    equation: str
    dtypes: str = "any"
    when: Condition | None = None
    let: Mapping[str, Computed] = field(default_factory=dict)
    left: TermPattern = field(init=False, repr=False)
    right: TermPattern = field(init=False, repr=False)

    def __post_init__(self) -> None:
        left, right = parse_equation(self.equation)
        object.__setattr__(self, "left", left)
        object.__setattr__(self, "right", right)

    def allows(self, dtype: DType) -> bool:
        """Whether the rule holds for operands of this type."""
        return FAMILIES[self.dtypes](dtype)

    def apply(self, left: TermPattern, node: Expr, make: Make) -> Expr | None:
        """The right side for a node that one order of the left side matches, or None."""
        bound: Bindings = {}
        if not match(left, node, bound):
            return None
        bound["root"] = node
        if self.when is not None and not self.when(bound):
            return None
        for name, compute in self.let.items():
            value = compute(bound)
            if value is None:
                return None
            bound[name] = value
        return build(self.right, bound, node.dtype, make)


Row = tuple[Rule, TermPattern]


class RuleIndex:
    """A rule table indexed for matching, by the op at the top of each left side."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._by_op: dict[str, list[Row]] = {}
        for rule in rules:
            assert rule.left.args, f"{rule.name}: the left side is a bare name or number"
            for left in orders(rule.left):
                self._by_op.setdefault(left.op, []).append((rule, left))
        self._by_shape: dict[tuple[object, ...], tuple[Row, ...]] = {}

    def candidates(self, node: Expr) -> tuple[Row, ...]:
        """The rows that may match, by the ops of a node and its operands; for most nodes none."""
        rows = self._by_op.get(node.op)
        if rows is None:
            return ()
        shape = (node.op, node.args[-1].dtype, *[a.op for a in node.args])
        found = self._by_shape.get(shape)
        if found is None:
            found = tuple(row for row in rows if _is_open(*row, node))
            self._by_shape[shape] = found
        return found


class Rewriter:
    """Applies rules. `hits` counts the uses of each since this rewriter was made."""

    def __init__(self, rules: RuleIndex | Iterable[Rule]) -> None:
        self.hits: Counter[str] = Counter()
        self._rules = rules if isinstance(rules, RuleIndex) else RuleIndex(rules)

    def rewrite(self, root: Expr, memo: dict[Expr, Expr] | None = None) -> Expr:
        """The expression in normal form; calls that share a `memo` normalise each node once."""
        return transform(root, self._change, memo)

    def _change(self, node: Expr, args: tuple[Expr, ...]) -> Expr:
        # The extent is part of an axis: rewriting it would make another axis. The definition of a
        # size is computed by the call, where integers have any length.
        return node if node.op in ("axis", "size") else self.settle(rebuild(node, args))

    def settle(self, node: Expr) -> Expr:
        """The normal form of a node whose operands are in normal form.

        The right side of a rule is normalised node by node as it is built, so no node is revisited.
        """
        for rule, left in self._rules.candidates(node):
            result = rule.apply(left, node, self.settle)
            if result is not None:
                self.hits[rule.name] += 1
                return result
        return node


def _is_open(rule: Rule, left: TermPattern, node: Expr) -> bool:
    return rule.allows(node.args[-1].dtype) and all(
        p.root_op in (None, a.op) for p, a in zip(left.args, node.args, strict=True)
    )
