"""Poison: memory that is not written yet is NaN, and memory that must not be written is checked.

In: intermediates, new memory. Out: with `debug_poison_memory`, every byte of an arena and of a new
tensor is 255 before a call (a NaN of every float type, -1 of every signed integer): a kernel that
reads memory before it is written gives NaN each time, not once in a while. After each intermediate
and each output there are `REDZONE` bytes; a call that finds them changed at its end raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from litz.errors import InternalError
from litz.ir.expr import Expr
from litz.ir.program import Buffer, Slot
from litz.ir.sizes import extent_bytes
from litz.runtime.size_exprs import number_text

BYTE = 255
REDZONE = 64  # bytes after a tensor; `plan` leaves as many after each intermediate

Zone = tuple[int, int]
Placed = tuple[Buffer, Slot]


@_disable_current_modes()
def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, with all of its memory poisoned."""
    tensor.untyped_storage().fill_(BYTE)
    return tensor


def with_poison(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A function that allocates tensors and poisons them."""
    return lambda *args: poisoned(make(*args))


@_disable_current_modes()
def guarded(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A new poisoned tensor on the CPU, with a redzone after it."""
    span = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
    size = span * dtype.itemsize
    memory = torch.full((size + REDZONE,), BYTE, dtype=torch.uint8, device="cpu")
    made = torch.empty(0, dtype=dtype, device="cpu")
    made.set_(memory.untyped_storage(), 0, shape, strides)  # type: ignore[call-overload]
    if not made.is_inference():
        torch._C._autograd._unsafe_set_version_counter((made,), (0,))  # as of any new tensor
    return made


@_disable_current_modes()
def check_redzone(name: str, tensor: Any) -> None:
    """Raise if the redzone of a tensor that `guarded` made was written to."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return
    memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    if not bool((memory[-REDZONE:] == BYTE).all()):
        raise _overrun(f"behind {name}")


def arena_ranges(intermediates: Iterable[Placed]) -> list[Zone]:
    """The ranges of the arena that intermediates occupy, if no size is symbolic."""
    return [(slot.offset, slot.offset + extent_bytes(b).number) for b, slot in intermediates]


def arena_ranges_text(
    intermediates: Iterable[Placed], places: Mapping[Expr, tuple[str, str]]
) -> str:
    """The same as Python text, if sizes are symbolic: `places` has the names of the start and the
    unit of each region."""
    pairs = []
    for buffer, slot in intermediates:
        start, unit = places[slot.unit]
        place = f"{start} + {unit} * {slot.offset}"
        pairs.append(f"({place}, {place} + {number_text(extent_bytes(buffer))})")
    return f"[{', '.join(pairs)}]"


@_disable_current_modes()
def check_arena_gaps(arena: torch.Tensor, inside: Iterable[Zone]) -> None:
    """Raise if a byte of the arena was written that no intermediate ever occupies."""
    end = arena.numel()
    last = 0
    for low, high in (*sorted(inside), (end, end)):
        between = arena[last:low] if low > last else arena[:0]
        if not bool((between == BYTE).all()):
            at = last + int((between != BYTE).nonzero()[0])
            raise _overrun(f"at {at} of the arena, where no intermediate lies")
        last = max(last, high)


def _overrun(where: str) -> InternalError:
    return InternalError(f"a kernel wrote outside of a buffer: {where} (debug_poison_memory)")
