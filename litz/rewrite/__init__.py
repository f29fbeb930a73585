"""Rewriting of expressions: rules are table rows, and one engine applies them.

In: an `Expr`. Out: an equal, cheaper one. Example: `simplify_value(x * 1)` is `x`. README.md beside
this file has the laws that a row must keep.
"""

from litz.rewrite.engine import Rewriter, Rule
from litz.rewrite.simplify import TABLES, Simplifier, simplify_value

__all__ = ["TABLES", "Rewriter", "Rule", "Simplifier", "simplify_value"]
