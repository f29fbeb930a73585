"""Ops that stay though nothing uses their results, while torch traces.

In: Dynamo's graph. Out: a context in which torch's own removal of dead code leaves them alone. An
op of a library may count its calls or talk to another process, so it runs as often as eager runs
it; and where random numbers are to be eager's, an op that draws some moves all drawn after it.
Example: of `torch.rand(3); return torch.rand(4)`, both draw.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx.node import _side_effectful_functions

from litz.ir.calls import KNOWN

_LOCK = threading.Lock()
_IN_USE: Counter[OpOverload] = Counter()  # what compiles under way, in any thread, have added


@contextmanager
def effects_stay(module: torch.fx.GraphModule, random: bool) -> Iterator[None]:
    """Ops of libraries stay in what torch traces meanwhile; `random` ones do if that is asked."""
    ops = set(_foreign(module)).union(_random() if random else ())
    with _LOCK:
        _IN_USE.update(op for op in ops if op in _IN_USE or op not in _side_effectful_functions)
        mine = [op for op in ops if op in _IN_USE]
        _side_effectful_functions.update(mine)
    try:
        yield
    finally:
        with _LOCK:
            _IN_USE.subtract(mine)
            for op in [op for op in mine if not _IN_USE[op]]:
                del _IN_USE[op]
                _side_effectful_functions.discard(op)


def _foreign(module: torch.fx.GraphModule) -> Iterator[OpOverload]:
    """The ops of libraries that a graph calls, or a graph inside of it."""
    graphs = (m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule))
    for node in (n for graph in graphs for n in graph.nodes if n.op == "call_function"):
        for op in _overloads(node.target):
            if op.namespace not in KNOWN:
                yield op


def _overloads(target: Any) -> list[OpOverload]:
    if isinstance(target, OpOverloadPacket):
        return [getattr(target, name) for name in target.overloads()]
    return [target] if isinstance(target, OpOverload) else []


@cache
def _random() -> frozenset[OpOverload]:
    """ATen's ops that draw from a generator."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        if not name.startswith("aten::"):
            continue
        known = torch._C._get_operation_overload(f"aten::{packet}", overload)
        if known is not None and torch.Tag.nondeterministic_seeded in known[2]:
            found.add(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return frozenset(found)
