"""Simplification of stored values: every rule table and the index algebra, in one pass.

In: the `Expr` that a store writes. Out: an equal one, cheaper or the same.
Example: `where(i0 < 128, x[i0 * 1 + 0] * 1.0, 0.0)` becomes `x[i0]` if i0 runs over 128.
"""

from __future__ import annotations

from functools import cache

from litz.ir.expr import Expr, load, rebuild, transform
from litz.ir.index import simplify
from litz.ir.magnitude import ARITHMETIC, is_exact
from litz.rewrite.cast_rules import CAST_RULES, ROUNDING_RULES
from litz.rewrite.engine import Rewriter, Rule, RuleIndex
from litz.rewrite.fold_rules import FOLD_RULES
from litz.rewrite.index_facts import DECIDABLE, decide
from litz.rewrite.logic_rules import LOGIC_RULES
from litz.rewrite.strength_rules import STRENGTH_RULES
from litz.rewrite.value_rules import INTEGER_RULES, VALUE_RULES

TABLES: dict[str, list[Rule]] = {
    "fold": FOLD_RULES,
    "value": VALUE_RULES,
    "integer": INTEGER_RULES,
    "logic": LOGIC_RULES,
    "cast": CAST_RULES,
    "strength": STRENGTH_RULES,
    "rounding": ROUNDING_RULES,
}


@cache
def _rule_index(emulate_precision_casts: bool) -> RuleIndex:
    left_out = {"rounding"} if emulate_precision_casts else set()
    return RuleIndex(r for name, table in TABLES.items() if name not in left_out for r in table)


class Simplifier:
    """The simplifier of one compile. Its memo makes each distinct node cost once."""

    def __init__(self, emulate_precision_casts: bool = False) -> None:
        self._rewriter = Rewriter(_rule_index(emulate_precision_casts))
        self._memo: dict[Expr, Expr] = {}

    @property
    def hits(self) -> dict[str, int]:
        """How often each rule was used."""
        return dict(self._rewriter.hits)

    def __call__(self, root: Expr) -> Expr:
        """The simplified value."""
        result = self._index(transform(root, self._change, self._memo))
        self._memo[root] = self._memo[result] = result
        return result

    def _change(self, node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op in ("axis", "size"):
            return node  # the definition of a size is computed by the call, where nothing wraps
        if node.op == "load":
            # An index addresses memory, so it cannot wrap: the algebra holds for all of it.
            count = len(node.index)
            index = tuple(simplify(i) for i in args[:count])
            return self._rewriter.settle(load(node.buffer, index, *args[count:]))
        result = rebuild(node, args)
        if result.op not in ARITHMETIC or not is_exact(result):
            result = rebuild(result, tuple(self._index(a) for a in args))
        if result.op in DECIDABLE:
            result = decide(result) or result
        return self._rewriter.settle(result)

    def _index(self, value: Expr) -> Expr:
        """The value through the index algebra if it is arithmetic on axes and sizes."""
        if value.op in ARITHMETIC and is_exact(value):
            return simplify(value)
        return value


def simplify_value(expr: Expr, emulate_precision_casts: bool = False) -> Expr:
    """An equal, cheaper expression; `emulate_precision_casts` keeps roundings to storage types."""
    return Simplifier(emulate_precision_casts)(expr)
