"""Numbers outside a type's range: eager refuses some of them, so such ops are left to ATen.

In: an op of torch, its arguments and a type. Out: whether one of its numbers is outside the type's
range. Such an op is left whole to ATen, which raises "value cannot be converted to type int8_t
without overflow", or computes the result. Example:
`overflows(aten.full.default, ((3,), 300), {}, torch.uint8)` is True.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

# Arguments that eager converts to tensors, which wrap or round like any cast, and those of arange,
# which it computes in 64 bits.
WRAPPED = frozenset({"self", "other", "start", "end", "step"})
HALF_DTYPES = (torch.float16, torch.bfloat16)
# A symbolic number may have any value: these types hold all of them, or all but the largest floats.
WIDE = (torch.int64, torch.bool, torch.float64, torch.float32, torch.bfloat16)


def overflows(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dtype: torch.dtype) -> bool:
    """Whether eager might refuse a number among the arguments, because the type cannot hold it."""
    if not isinstance(op, OpOverload) or dtype.is_complex:
        return False
    if op is torch.ops.aten.scalar_tensor.default and dtype in HALF_DTYPES:
        return False  # too large a number becomes infinite
    return any(not is_representable(dtype, number) for number in _numbers(op, args, kwargs))


def is_representable(dtype: torch.dtype, number: Any) -> bool:
    """Whether eager converts a number to a type without an error. Negative numbers wrap in unsigned
    types; infinities and NaN are floats."""
    if dtype is torch.bool:
        return True
    if not isinstance(number, (int, float)):
        return dtype in WIDE
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    info = torch.iinfo(dtype)
    least = -info.max if isinstance(number, int) and not info.min else info.min
    return bool(least <= number <= info.max)


def _numbers(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    for place, name in _places(op):
        given = args[place] if place < len(args) else kwargs.get(name)
        if given is not None and not isinstance(given, (torch.Tensor, torch.fx.Node, complex)):
            yield given


@cache
def _places(op: OpOverload) -> tuple[tuple[int, str], ...]:
    """Where an op takes numbers that its kernel converts."""
    given = enumerate(op._schema.arguments)
    found = ((k, a.name) for k, a in given if str(a.type) in ("number", "Optional[number]"))
    return tuple((k, name) for k, name in found if name not in WRAPPED)
