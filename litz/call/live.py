"""Live values: operands of calls that no text can hold.

In: a `Plan`. Out: the same plan with a `Live` in the place of each such operand, and all of them
with the reason. Example: `higher_order.cond` is given two modules; its plan says `live(0)` and
`live(1)`, and runs only in the process that made it.
"""

from __future__ import annotations

import ast
import cmath
from dataclasses import replace
from typing import Any

import torch

from litz.ir.call_plan import Live
from litz.ir.expr import Expr
from litz.ir.program import Extern, Plan, ViewArg

# Types whose text gives them back (`ir/parse.py`).
PLAIN = (
    type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout,
    torch.memory_format, ViewArg, Expr,
)  # fmt: skip


def with_live_values(plan: Plan) -> tuple[Plan, tuple[Live, ...]]:
    """The plan with its live values named."""
    found: list[Live] = []
    body = tuple(_named(s, found) if isinstance(s, Extern) else s for s in plan.graph.body)
    if not found:
        return plan, ()
    return replace(plan, graph=replace(plan.graph, body=body)), tuple(found)


def _named(step: Extern, found: list[Live]) -> Extern:
    before = len(found)
    where = f" ({step.origins[0]})" if step.origins else ""

    def named(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(named, value))
        if type(value) in PLAIN or _is_spelt(value):
            return value
        kind = "module" if isinstance(value, torch.nn.Module) else type(value).__name__
        reason = f"{step.target} is given a live {kind}{where}"
        found.append(Live(len(found), reason, value))
        return found[-1]

    args = tuple(map(named, step.args))
    kwargs = tuple((name, named(value)) for name, value in step.kwargs)
    return step if len(found) == before else replace(step, args=args, kwargs=kwargs)


def _is_spelt(value: Any) -> bool:
    """Whether a complex number has a text that gives it back: not all have."""
    if type(value) is not complex or not cmath.isfinite(value):
        return False
    return repr(ast.literal_eval(repr(value))) == repr(value)
