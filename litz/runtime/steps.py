"""The steps of a compiled graph: native segments and ATen calls, resolved once.

In: `Plan`, `Source`, `Binary`. Out: a list of steps, each a callable over the tensors of one call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from litz.ir.dtypes import DType
from litz.ir.expr import Expr
from litz.ir.program import Buffer, Extern, Plan, ViewArg
from litz.ir.source import Binary, Source

TO_TORCH: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
NATIVE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def torch_dtype(dtype: DType) -> torch.dtype:
    """An opaque type keeps torch's own name."""
    return TO_TORCH.get(dtype.name) or getattr(torch, dtype.name)


def numbers(sizes: tuple[Expr, ...]) -> tuple[int, ...]:
    return tuple(s.number for s in sizes)


@dataclass(frozen=True)
class NativeStep:
    """One native call: the kernels between two ATen calls."""

    function: Callable[[int], None]
    kernels: tuple[tuple[str, Callable[[int], None]], ...]  # the same one by one, for timing


@dataclass(frozen=True)
class ExternStep:
    """One ATen call. `made` are the buffers of its results, `freed` those nobody needs after it."""

    op: Callable[..., Any]
    extern: Extern
    returns_alias: bool
    freed: tuple[str, ...]


Step = NativeStep | ExternStep


def make_steps(plan: Plan, source: Source, binary: Binary) -> list[Step]:
    """Kernels join into segments; every op name is looked up."""
    steps: list[Step] = []
    freed = _freed(plan)
    segments = iter(source.segments)
    in_segment = False
    for position, step in enumerate(plan.graph.body):
        if isinstance(step, Extern):
            steps.append(_extern_step(step, tuple(freed.get(position, ()))))
            in_segment = False
        elif not in_segment:
            steps.append(_native_step(plan, next(segments), binary))
            in_segment = True
    return steps


def _native_step(plan: Plan, segment: Any, binary: Binary) -> NativeStep:
    kernels = plan.graph.kernels
    singles = tuple(
        (kernels[k].name, NATIVE(binary.address[f"litz_step_{k}"])) for k in segment.kernels
    )
    return NativeStep(NATIVE(binary.address[segment.name]), singles)


def _extern_step(step: Extern, freed: tuple[str, ...]) -> ExternStep:
    namespace, name, *overload = step.target.split(".")
    op = getattr(getattr(torch.ops, namespace), name)
    returns_alias = False
    if overload:  # higher-order ops have none, nor a schema
        packet, op = op, getattr(op, overload[0])
        returns_alias = any(r.alias_info is not None for r in op._schema.returns)
        op = packet.out if step.into else op
    return ExternStep(op, step, returns_alias, freed)


def _freed(plan: Plan) -> dict[int, list[str]]:
    """For each step, ATen's own results that no later step and no output uses."""
    body = plan.graph.body
    own = {b.name for s in body if isinstance(s, Extern) and not s.into for b in s.writes}
    shown = {o.value.buffer.name for o in plan.graph.outputs if isinstance(o.value, ViewArg)}
    found: dict[int, list[str]] = {}
    for name, position in plan.last_use.items():
        if name in own and name not in shown:
            found.setdefault(position, []).append(name)
    return found


def as_buffer_view(arena: torch.UntypedStorage, buffer: Buffer, offset: int) -> torch.Tensor:
    """A tensor over bytes of the arena."""
    dtype = torch_dtype(buffer.dtype)
    start = offset // dtype.itemsize
    view = torch.empty(0, dtype=dtype)
    shape, strides = numbers(buffer.shape), numbers(buffer.strides)
    view.set_(arena, start, shape, strides)  # type: ignore[call-overload]
    return view


def is_whole(view: ViewArg) -> bool:
    """Whether a window shows its buffer exactly."""
    buffer = view.buffer
    return view.shape == buffer.shape and view.strides == buffer.strides and view.offset.attr == 0
