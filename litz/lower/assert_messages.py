"""Messages of failed asserts: the text that the program gave to `torch._check`.

In: the steps of a program, and the graph they come from. Out: the same steps, with two changes. A
check with the user's message comes before the checks that torch derived from it. If torch dropped
the user's check because it assumes it, a derived check gets the user's message. Example:
`torch._check(n < 3, lambda: "large")` arrives as two assertions, `u0 <= 2` with torch's text and
`u0 < 3` with "large"; of `n == 3` only torch's is left, since torch writes 3 for `u0` afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
import torch.fx
from torch.fx.experimental import symbolic_shapes

from litz.ir.expr import Expr
from litz.ir.graph import origin_of
from litz.ir.program import Extern, Loop, Origin
from litz.ir.sizes import roots
from litz.lower.symbols import environment_of

# Prefixes of messages that no user wrote.
TORCH_ASSERT_PREFIXES = (
    "Runtime assertion failed for expression",
    "torch compiled this program for",
)
ASSERT = torch.ops.aten._assert_scalar.default
Message = tuple[str, Origin]


def restore_assert_messages(
    body: Iterable[Loop | Extern], nodes: Iterable[torch.fx.Node]
) -> Iterator[Loop | Extern]:
    """The steps, with checks in the order and with the messages that the user expects."""
    taken = assumed_messages(nodes)
    for is_check, steps in groupby(body, lambda s: isinstance(s, Extern) and s.checks):
        if is_check:
            checks: list[Any] = [_named(step, taken) for step in steps]  # type: ignore[arg-type]
            yield from sorted(checks, key=_is_torch_assert)  # stable: each kind keeps its order
        else:
            yield from steps


def _is_torch_assert(step: Extern) -> bool:
    return str(step.args[-1]).startswith(TORCH_ASSERT_PREFIXES)


def _named(step: Extern, taken: dict[str, Message]) -> Extern:
    """A check that torch derived, with the user's message if the user's own check is gone."""
    condition = step.args[0]
    if not isinstance(condition, Expr) or not _is_torch_assert(step):
        return step
    found = sorted(str(n.attr[0]) for n in roots(condition) if str(n.attr[0]) in taken)
    if not found:
        return step
    message, origin = taken[found[0]]
    return replace(step, args=(condition, message), origins=(origin,))


def assumed_messages(nodes: Iterable[torch.fx.Node]) -> dict[str, Message]:
    """Messages of user checks that torch by now assumes to hold, by the unbacked sizes that they
    are about."""
    found: dict[str, Message] = {}
    for node in nodes:
        if node.target is not ASSERT or str(node.args[1]).startswith(TORCH_ASSERT_PREFIXES):
            continue
        condition = node.args[0]
        if isinstance(condition, torch.fx.Node) and _is_true(condition.meta.get("val")):
            for symbol in _unbacked_sizes(condition):
                found.setdefault(symbol, (str(node.args[1]), origin_of(node)))
    return found


def _is_true(value: Any) -> bool:
    """Whether torch knows without a check that a condition holds."""
    if not isinstance(value, torch.SymBool):
        return value is True
    return bool(value.node.shape_env.replace(value.node.expr) == True)  # noqa: E712  (of sympy)


def _unbacked_sizes(node: torch.fx.Node) -> Iterator[str]:
    """The unbacked sizes that a number is computed from, found at the calls that bind them."""
    waiting, seen = [node], set()
    while waiting:
        top = waiting.pop()
        if top in seen:
            continue
        seen.add(top)
        found = top.meta.get("unbacked_bindings")
        environment = environment_of(top.meta.get("val")) if found else None
        if environment is None:
            waiting += top.all_input_nodes
            continue
        # A graph that was traced twice has a second symbol for a size it still calls by the first.
        yield from map(str, symbolic_shapes.resolve_unbacked_bindings(environment, found))
