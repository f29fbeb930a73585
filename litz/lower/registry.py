"""The table of lowering rules: which function lowers which op.

In: `@rule("add", ...)` above a function. Out: `RULES[overload] -> function`. A rule is
`(low: Lowering, like, *args, **kwargs) -> Value`, where tensors in args are `View`s and `like` is
the fake result of the captured node. Raising `FallbackToAten` hands the op to ATen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)
RULES: dict[Any, Rule] = {}
# Rules of ops that do not exist yet when this is imported: another torch has them, or another
# compiler defines them later, as TorchInductor does prims.fma.
LATE_RULES: dict[str, Rule] = {}


class FallbackToAten(Exception):
    """A rule does not cover its operands; the op becomes an ATen call and is counted as one."""


def rule(*names: str, namespace: str = "aten") -> Callable[[R], R]:
    """Register a function for every functional overload of the named ops.

    `"max.dim"` is one overload; `"add"` is every overload that neither mutates nor has `out=`.
    """

    def register(function: R) -> R:
        for name in names:
            found = _overloads(namespace, name)
            RULES.update(dict.fromkeys(found, function))
            if not found:
                LATE_RULES[f"{namespace}.{name.partition('.')[0]}"] = function
        return function

    return register


def rule_for(target: Any) -> Rule | None:
    """The rule of an op, even if the op was defined after the rules."""
    return RULES.get(target) or LATE_RULES.get(str(target).rpartition(".")[0])


def _overloads(namespace: str, name: str) -> list[Any]:
    packet_name, _, overload_name = name.partition(".")
    # This torch may not have the op (2.11 and 2.13 differ).
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    if packet is None:
        return []
    if overload_name:
        return [getattr(packet, overload_name)] if overload_name in packet.overloads() else []
    found = [getattr(packet, o) for o in packet.overloads()]
    return [o for o in found if not o._schema.is_mutable]
