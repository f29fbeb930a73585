"""Rewriting of expressions: rules are table rows, and one engine applies them.

In: an `Expr`. Out: an equal, cheaper one. Example: `simplify_value(x * 1)` is `x`. The laws that a
row must keep stand in README.md.
"""

from litz.rewrite.engine import Rewriter, Rule
from litz.rewrite.simplify import TABLES, Simplifier, simplify_value

__all__ = ["TABLES", "Rewriter", "Rule", "Simplifier", "simplify_value"]
