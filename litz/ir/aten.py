"""ATen's ops and types, by the names that the IR has for them.

In: an `Extern`, a `DType`. Out: the torch function or `torch.dtype`. Example: an extern
`aten.mm.default` that writes `into` given storage calls `torch.mm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from litz.ir.dtypes import DTYPES, DType
from litz.ir.program import Extern

TO_TORCH: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
FROM_TORCH = {theirs: DTYPES[name] for name, theirs in TO_TORCH.items()}


def dtype_of(dtype: torch.dtype) -> DType:
    """The IR's type. One that we never compute with is opaque: only extern calls use it."""
    found = FROM_TORCH.get(dtype)
    if found is None:
        found = DType(str(dtype).removeprefix("torch."), "x", dtype.itemsize, bytes)
        FROM_TORCH[dtype] = found
    return found


def dtype_named(name: str) -> DType | None:
    """The type of that name in a program's text, if there is one."""
    theirs = getattr(torch, name, None)
    return DTYPES.get(name) or (dtype_of(theirs) if isinstance(theirs, torch.dtype) else None)


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch type; an opaque type has torch's own name."""
    return TO_TORCH.get(dtype.name) or getattr(torch, dtype.name)


def op_of(step: Extern) -> Callable[..., Any]:
    """The function that an extern calls."""
    if step.target == "aten._local_scalar_dense.default":
        return torch.Tensor.item  # type: ignore[no-any-return]  # the same op, faster to call
    namespace, name, *overload = step.target.split(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    if not overload:  # higher-order ops have no overloads
        return packet  # type: ignore[no-any-return]
    if step.into:
        # torch.mm(a, b, out=c) is the same op, faster to call
        return getattr(torch, name, packet.out)  # type: ignore[no-any-return]
    return getattr(packet, overload[0])  # type: ignore[no-any-return]


def returns_alias(step: Extern) -> bool:
    """Whether a result may share memory with an operand."""
    op = op_of(step)
    schema = getattr(op, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)
