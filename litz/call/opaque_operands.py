"""Opaque operands: operands of calls that have no text.

In: a `Plan`. Out: the same plan with an `OpaqueOperand` in the place of each such operand, and the
list of them, each with its reason. Example: `higher_order.cond` takes two modules; its plan says
`opaque(0)` and `opaque(1)`, and runs only in the process that made it.
"""

from __future__ import annotations

import ast
import cmath
from dataclasses import replace
from typing import Any

import torch

from litz.ir.call_plan import OpaqueOperand
from litz.ir.expr import Expr
from litz.ir.program import Extern, Plan, ViewArg

# Types whose text can be read back (`ir/parse.py`).
PLAIN = (
    type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout,
    torch.memory_format, ViewArg, Expr,
)  # fmt: skip


def with_opaque_operands(plan: Plan) -> tuple[Plan, tuple[OpaqueOperand, ...]]:
    """The plan with its opaque operands replaced, and these."""
    found: list[OpaqueOperand] = []
    body = tuple(_named(s, found) if isinstance(s, Extern) else s for s in plan.graph.body)
    if not found:
        return plan, ()
    return replace(plan, graph=replace(plan.graph, body=body)), tuple(found)


def _named(step: Extern, found: list[OpaqueOperand]) -> Extern:
    before = len(found)
    where = f" ({step.origins[0]})" if step.origins else ""

    def named(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(named, value))
        if type(value) in PLAIN or _round_trips(value):
            return value
        kind = "module" if isinstance(value, torch.nn.Module) else type(value).__name__
        reason = f"{step.target} is given a live {kind}{where}"
        found.append(OpaqueOperand(len(found), reason, value))
        return found[-1]

    args = tuple(map(named, step.args))
    kwargs = tuple((name, named(value)) for name, value in step.kwargs)
    return step if len(found) == before else replace(step, args=args, kwargs=kwargs)


def _round_trips(value: Any) -> bool:
    """Whether a complex number can be read back from its text; not all can."""
    if type(value) is not complex or not cmath.isfinite(value):
        return False
    return repr(ast.literal_eval(repr(value))) == repr(value)
