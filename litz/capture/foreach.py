"""Ops over lists of tensors (`_foreach_*`, as optimizers use them) as one op per tensor.

In: nothing. Out: `foreach_decompositions()`, by overload. Example: `_foreach_mul.Scalar([a, b], 2)`
becomes `[mul(a, 2), mul(b, 2)]`, which fuse with their neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

aten = torch.ops.aten
PREFIX = "_foreach_"
One = Callable[..., torch.Tensor]


def _scaled(op: One, x: Any, y: Any, z: Any, value: Any = 1) -> torch.Tensor:
    """addcmul and addcdiv, whose factor may be a tensor of one number."""
    if isinstance(value, torch.Tensor):
        return op(x, y * value.to(y.dtype), z)
    return op(x, y, z, value=value)


def _limited(op: One, clamp: One, x: torch.Tensor, limit: Any) -> torch.Tensor:
    """maximum and minimum: over lists they also take a number, for which eager clamps."""
    return (op if isinstance(limit, torch.Tensor) else clamp)(x, limit)


def _norm(x: torch.Tensor, order: Any = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


def _copied(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    return aten.copy(x, source)  # type: ignore[no-any-return]


# Ops that torch has under another name or with other arguments.
NAMED: dict[str, One] = {
    "addcmul": partial(_scaled, torch.addcmul),
    "addcdiv": partial(_scaled, torch.addcdiv),
    "maximum": partial(_limited, torch.maximum, torch.clamp_min),
    "minimum": partial(_limited, torch.minimum, torch.clamp_max),
    "norm": _norm,
    "copy": _copied,
    "zero": torch.zeros_like,
    "max": torch.max,
}


NOT_DECOMPOSED_LISTS = ("mm",)  # a matmul stays ATen's op, in a list or alone


def _each(op: One, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """One call per tensor: from each list argument its item, any other argument as it is."""
    *first, last = args
    if len(args) == 4 and isinstance(last, torch.Tensor):  # one factor per tensor
        args = (*first, last.unbind())
    (count, *_) = (len(a) for a in args if isinstance(a, (list, tuple)))
    rows = [[a[k] if isinstance(a, (list, tuple)) else a for a in args] for k in range(count)]
    return [op(*row, **kwargs) for row in rows]


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """Every functional `_foreach_` op that torch also has for one tensor."""
    table: dict[Any, Callable[..., Any]] = {}
    known = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    for name in sorted(name for name in known if name.startswith(f"aten::{PREFIX}")):
        plain = name.removeprefix(f"aten::{PREFIX}")
        op = NAMED.get(plain) or getattr(torch, plain, None)
        if op is None or plain in NOT_DECOMPOSED_LISTS or plain.endswith("_"):
            continue
        packet = getattr(aten, PREFIX + plain)
        for overload in (getattr(packet, each) for each in packet.overloads()):
            if not overload._schema.is_mutable:
                table[overload] = partial(_each, op)
    return table
