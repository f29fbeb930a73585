"""Memory of a call: new tensors for outputs, and a workspace for the call's own state.

In: a `CallPlan`. Out: tensors. A workspace has the table of pointers, the arena and the error
record of one call at a time. A call takes one from a list and puts it back, so that threads never
share one. Example: `Workspace(plan, (), True).table[ARENA]` is the address of the intermediates.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch._C._dynamo.guards import _empty_strided_cpu as empty  # type: ignore[attr-defined]
from torch._C._dynamo.guards import _reinterpret_tensor as reinterpret  # type: ignore[attr-defined]

from litz.errors import ScalarAssertion
from litz.ir.aten import torch_dtype
from litz.ir.call_plan import ARENA, ERROR_RECORD, CallPlan
from litz.ir.program import ViewArg
from litz.runtime.layouts import mismatch, static_sizes, strides_match
from litz.runtime.modes import without_modes

PAGE = 4096
MADV_HUGEPAGE = 14
# From this size on the system hands out new memory page by page, which costs more than filling it.
HUGE_PAGE_THRESHOLD = 4 << 20

Owner = TypeVar("Owner")
# Arenas that no call is using; the one used last is taken first. `pop` and `append` are atomic.
IDLE_ARENAS: list[torch.Tensor] = []
NO_ARENA = empty((0,), (1,), torch.uint8)

Empty = Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]


def _advise() -> Callable[[int, int, int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise  # type: ignore[no-any-return]


_MADVISE = _advise()


def use_huge_pages(tensor: torch.Tensor) -> torch.Tensor:
    """Ask for huge pages for a new tensor: a page fault for each 2 MiB instead of each 4 KiB.

    This is only advice: a system that cannot follow it uses normal pages.
    """
    if _MADVISE is not None:
        storage = tensor.untyped_storage()
        start = -(-storage.data_ptr() // PAGE) * PAGE
        _MADVISE(start, storage.data_ptr() + storage.nbytes() - start, MADV_HUGEPAGE)
    return tensor


def empty_large(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    return use_huge_pages(empty(shape, strides, dtype))


class ErrorRecord(ctypes.Structure):
    """The record of the first failed check of a call (`ir/checks.py`). `value` is the number of its
    site; 0 if none failed."""

    _fields_ = (("value", ctypes.c_int64), ("index", ctypes.c_int64), ("size", ctypes.c_int64))

    value: int
    index: int
    size: int


class Workspace:
    """The state of one call at a time. `views` are the views of the arena that ATen calls take;
    None if they depend on sizes. The arena is borrowed for each call: graphs that do not run at the
    same time, as a forward and a backward one, share one."""

    def __init__(
        self, plan: CallPlan, views: Sequence[ViewArg] | None, huge: bool
    ) -> None:  # fmt: skip
        self.table = (ctypes.c_void_p * (len(plan.table) + ARENA + 2))()
        self.address = ctypes.addressof(self.table)
        self.error = ErrorRecord()
        self.arena = NO_ARENA
        self.table[ERROR_RECORD] = ctypes.addressof(self.error)
        self.sizes: tuple[int, ...] | None = None  # the symbols of the last call, in order
        self.arena_ranges: list[
            tuple[int, int]
        ] = []  # of intermediates at these sizes, for the poison checks
        self.huge, self.grew = huge, False
        self.prepacked: Any = None  # the `PrepackedWeights` that the table points to
        self.views: list[torch.Tensor] = []
        self.bases: dict[torch.dtype, torch.Tensor] = {}  # the arena, by the type of its elements
        self._plan, self._windows = plan, views

    def bind_prepacked(self, tensors: dict[str, torch.Tensor], record: int) -> None:
        """Enter the addresses of prepacked weights, and of the record to detect changes with."""
        for name, tensor in tensors.items():
            self.table[self._plan.table[name]] = tensor.data_ptr()
        self.table[len(self._plan.table) + ARENA + 1] = record

    def borrow(self) -> None:
        """Take an arena for a call, the one of the last call if it is idle."""
        try:
            arena = IDLE_ARENAS.pop()
        except IndexError:
            arena = NO_ARENA
        if self._windows is not None and arena.numel() < self._plan.arena_bytes:
            arena = self._fresh(self._plan.arena_bytes)  # the smaller one is dropped
        if arena is not self.arena:
            self._enter(arena)

    def _enter(self, arena: torch.Tensor) -> None:
        self.arena, self.sizes, self.bases = arena, None, {}
        self.table[ARENA] = arena.data_ptr()
        self.views = [self._view(v) for v in self._windows or ()]

    def _view(self, view: ViewArg) -> torch.Tensor:
        offset, start = self._plan.slots[view.buffer.name].offset, view.offset.number
        layout = (
            static_sizes(view.shape),
            static_sizes(view.strides),
            torch_dtype(view.buffer.dtype),
        )
        return self.strided_view(offset, start, *layout)

    def strided_view(
        self, offset: int, start: int, shape: tuple[int, ...], strides: tuple[int, ...],
        dtype: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        """A view of the arena: `start` elements after an offset in bytes. Inference mode is off,
        since a tensor made in it could not be written to outside it."""
        if torch.is_inference_mode_enabled():
            with without_modes():
                return self.strided_view(offset, start, shape, strides, dtype)
        base = self.bases.get(dtype)
        if base is None:
            with without_modes():
                base = torch.empty(0, dtype=dtype, device="cpu")
                base.set_(self.arena.untyped_storage())  # type: ignore[call-overload]
            self.bases[dtype] = base
        place = offset // dtype.itemsize + start
        return reinterpret(base, shape, strides, place)  # type: ignore[no-any-return]

    def reserve(self, size: int) -> int:
        """Make sure that the arena has so many bytes; returns its address. One that had to grow
        before gets a quarter more, so that slowly growing sizes do not move it each time."""
        if self.arena.numel() < size:
            arena = self._fresh(size + size // 4 if self.grew else size)
            self.grew = True
            self._enter(arena)
        return int(self.arena.data_ptr())

    def _fresh(self, size: int) -> torch.Tensor:
        with without_modes():
            made = empty((size,), (1,), torch.uint8)
        return use_huge_pages(made) if self.huge and size >= HUGE_PAGE_THRESHOLD else made


def strided_view(base: torch.Tensor, view: ViewArg) -> torch.Tensor:
    """A view as a tensor, given the tensor of its buffer."""
    start = base.storage_offset() + view.offset.number
    return base.as_strided(static_sizes(view.shape), static_sizes(view.strides), start)


def with_layout(
    result: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype,
    op: str,
) -> torch.Tensor:  # fmt: skip
    """An op's result with the strides that kernels were compiled for, and memory of its own. An
    expanded result stays expanded: its elements share memory and cannot be written one by one, so
    its storage is copied as it is. A library's packed tensor has no strides, and only that library
    reads it."""
    if result.layout is not torch.strided:
        return result
    if result.shape != shape or result.dtype is not dtype:
        got = f"{result.dtype} of shape {tuple(result.shape)}"
        raise ScalarAssertion(f"it gave {got}, where torch predicted {dtype} of shape {shape}", op)
    if 0 in strides and result.stride() == strides:
        return copy_of(result)
    return _laid_out(result, strides)


def restrided(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """A tensor that a forward graph saved, with the strides that the backward kernels were compiled
    for: a user's hook may return it in another layout, and no guard checks that."""
    if tensor.shape != shape or tensor.dtype is not dtype or strides_match(tensor, shape, strides):
        mismatch(name, tensor, shape, strides, dtype)
        return tensor
    return _laid_out(tensor, strides)


def _laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """A copy with these strides. Elements that share memory are equal: the first is copied."""
    few = tensor[tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)]
    made = torch.empty_strided(few.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(few).expand(tensor.shape)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same values and layout in memory of its own."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * step for size, step in steps) if tensor.numel() else 0
    return tensor.as_strided((span,), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def on_storage_freed(
    tensors: Iterable[torch.Tensor], owner: Owner, forget: Callable[[Owner], Any]
) -> list[Any]:
    """Weak references that call `forget(owner)` when the storage of a tensor is freed. They do not
    keep the owner alive."""
    this = weakref.ref(owner)

    def freed(_: Any) -> None:
        found = this()
        if found is not None:
            forget(found)

    return [weakref.ref(t.untyped_storage(), freed) for t in tensors]
