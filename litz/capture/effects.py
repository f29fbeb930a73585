"""Ops that stay in the traced graph though nothing uses their results.

In: nothing. Out: a context in which torch's own dead-code elimination leaves these ops alone. A
custom op may count its calls or talk to another process, so it runs as often as in eager. Where
random numbers must equal eager's, a random op stays too: every draw shifts the draws after it.
Example: of `torch.rand(3); return torch.rand(4)`, both draw.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch._ops import OpOverload
from torch.fx.node import _side_effectful_functions

from litz.ir.calls import KNOWN_NAMESPACES

_LOCK = threading.Lock()
_IN_USE: Counter[OpOverload] = Counter()  # added by the compiles now running in any thread
_KNOWN = tuple(f"{namespace}::" for namespace in KNOWN_NAMESPACES)


@contextmanager
def keep_effects(random: bool) -> Iterator[None]:
    """Custom ops stay in graphs traced inside this context; random ops too, if `random`."""
    ops = set(_foreign()).union(_random() if random else ())
    with _LOCK:
        mine = [op for op in ops if op in _IN_USE or op not in _side_effectful_functions]
        _IN_USE.update(mine)
        _side_effectful_functions.update(mine)
    try:
        yield
    finally:
        with _LOCK:
            _IN_USE.subtract(mine)
            for op in [op for op in mine if not _IN_USE[op]]:
                del _IN_USE[op]
                _side_effectful_functions.discard(op)


def _foreign() -> Iterator[OpOverload]:
    """All custom ops registered so far: a graph may call ops that the program does not, such as
    those of a gradient formula."""
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith(_KNOWN):
            op = _op(name)
            if op is not None:
                yield op


@cache
def _random() -> frozenset[OpOverload]:
    """ATen's ops that draw from a generator."""
    ops = (_op(n) for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    tag = torch.Tag.nondeterministic_seeded
    return frozenset(op for op in ops if op is not None and tag in op.tags)


def _op(name: str) -> OpOverload | None:
    """The op with this name, if Python can call it."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        ops = getattr(getattr(torch.ops, namespace), packet)
        return getattr(ops, overload or "default")  # type: ignore[no-any-return]
    except AttributeError:
        return None
