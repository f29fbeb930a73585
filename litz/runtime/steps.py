"""The steps of a compiled graph, resolved once: native functions, ATen's ops, lifetimes.

In: `Plan`, `Source`, `Binary`. Out: what `entry` writes its lines with. Example: the step
`aten.mm.default` that has a place for its result calls `torch.mm`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from litz.errors import InputMismatch
from litz.ir.dtypes import DType
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.program import Extern, Plan, ViewArg
from litz.ir.source import Binary, Source

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
NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Native = Callable[[int], None]


def torch_dtype(dtype: DType) -> torch.dtype:
    """An opaque type keeps torch's own name."""
    return TO_TORCH.get(dtype.name) or getattr(torch, dtype.name)


def numbers(sizes: tuple[Expr, ...]) -> tuple[int, ...]:
    return tuple(s.number for s in sizes)


def segments_of(source: Source, binary: Binary) -> list[Native]:
    """The native functions, each for the kernels between two ATen calls."""
    return [NATIVE(binary.address[segment.name]) for segment in source.segments]


def op_of(step: Extern) -> Callable[..., Any]:
    """The function that an extern calls."""
    if step.target == "aten._local_scalar_dense.default":
        return torch.Tensor.item  # type: ignore[no-any-return]  # behind a cheaper door
    namespace, name, *overload = step.target.split(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    if not overload:  # higher-order ops have no overloads
        return packet  # type: ignore[no-any-return]
    if step.into:
        # torch.mm(a, b, out=c) is the same op behind a cheaper door
        return getattr(torch, name, packet.out)  # type: ignore[no-any-return]
    return getattr(packet, overload[0])  # type: ignore[no-any-return]


def returns_alias(step: Extern) -> bool:
    """Whether a result may share memory with an operand."""
    op = op_of(step)
    schema = getattr(op, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def freed_after(plan: Plan) -> dict[int, list[str]]:
    """For each step, what nothing uses any more: ATen's own results, their heirs, what was lent."""
    body = plan.graph.body
    calls = [s for s in body[plan.graph.prepared :] if isinstance(s, Extern) and not s.into]
    own = {b.name for s in calls for b in s.writes} | set(plan.heirs) | plan.lent
    shown = {o.value.buffer.name for o in plan.graph.outputs if isinstance(o.value, ViewArg)}
    found: dict[int, list[str]] = {}
    for name, position in plan.last_use.items():
        if name in own and name not in shown:
            found.setdefault(position, []).append(name)
    return found


def is_whole(view: ViewArg) -> bool:
    """Whether a window shows its buffer exactly."""
    buffer = view.buffer
    return view.shape == buffer.shape and view.strides == buffer.strides and view.offset is ZERO


def has_steps(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape has these strides wherever they are stepped along."""
    steps = zip(shape, strides, tensor.stride(), strict=False)
    return tensor.numel() == 0 or all(n <= 1 or a == b for n, a, b in steps)


def mismatch(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...],
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """Raise, unless the strides that differ are never stepped along."""
    if tensor.dtype is not dtype:
        raise InputMismatch(name, str(dtype), str(tensor.dtype))
    if tensor.shape == shape and has_steps(tensor, shape, strides):
        return
    expected = f"shape {shape}, strides {strides}"
    raise InputMismatch(name, expected, f"shape {tuple(tensor.shape)}, strides {tensor.stride()}")
