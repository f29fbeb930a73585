"""The wrapper of a graph on a GPU: one call as Python text, as `wrapper` prints it for the CPU.

In: `CallPlan`, one of its bodies, the device. Out: the function's text and the values of its names.
The differences from the CPU: the arena is allocated by torch for each call and returned after it,
kernels run on torch's current stream, pointers are aligned as kernels expect, and a scalar tensor
of the CPU is copied to the GPU. For x + 1:

    def call(args):
        ...
        table[2] = stream()
        y1 = empty((8,), (1,), float32)
        table[4] = x0.data_ptr()
        table[5] = y1.data_ptr()
        code = segment_0(address)
        if code: failed("segment_0", code, segment_0, address)
        return [y1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from litz.config import Config
from litz.ir.aten import torch_dtype
from litz.ir.call_plan import (
    ARENA,
    COUNTERS,
    STREAM,
    Allocate,
    Body,
    CallPlan,
    Segment,
    SetPointer,
    changed_in,
    moves,
)
from litz.ir.index import ONE
from litz.ir.program import Buffer, Extern, ViewArg
from litz.runtime.counters import Counters
from litz.runtime.launch_graphs import LaunchGraphCache
from litz.runtime.poison import with_poison
from litz.runtime.size_exprs import local_name, number_text, tuple_text
from litz.runtime.wrapper import LETTERS, NAMED, Native, Wrapper, region_lines, region_names

ALIGNMENT = 16  # bytes: Triton compiles kernels for pointers that are multiples of it


class DeviceWrapper(Wrapper):
    """Prints the function of a body on `device`; `arena` gives the arena that partitions share."""

    def __init__(
        self, call: CallPlan, body: Body, segments: Mapping[str, Native],
        constants: dict[str, torch.Tensor], device: Any, config: Config,
        arena: Callable[[], torch.Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(call, body, segments, constants, config)
        self.shared, self.device = arena, device
        self.names.update(empty=device.empty, empty_large=device.empty, to_device=device.to_device)
        if self.poisons:
            make = with_poison(device.empty)
            self.names.update(empty=make, empty_large=make)
        self.names.update(aligned=aligned, stream=device.stream)
        self.arenas: dict[torch.dtype, str] = {}  # the arena as elements of a type
        self.windows: dict[ViewArg, str] = {}
        changed = changed_in(call, body)
        self.updated = [b for b in body.buffers if b in changed]
        self.given_back: set[Buffer] = set()
        self.checks = any(k.checks for k in call.kernels)
        self.constants = {name: aligned(t) for name, t in self.constants.items()}

    def text(self) -> str:
        """The function `call(args)`."""
        self.lines.append(f"table[{STREAM}] = stream()")
        if self.plan.slots:
            self.lines.append(self._arena_line())
            self.lines.append(f"table[{ARENA}] = arena.data_ptr()")
        self._name_tensors()
        for step in self.body.steps:
            self._printers[type(step)](step)
        for buffer in (b for b in self.updated if b.name in self.body.points):
            self.lines.append(f"give_{self.local[buffer.name]}()")
            self.given_back.add(buffer)
        self.lines.append(f"return [{self._results()}]")
        resize = self._resize() if self.body.symbols else ""
        lines = [f"    {line}" for line in self._whole()]
        return "\n".join(["def call(args):", *lines, "", resize])

    def _whole(self) -> list[str]:
        """The whole function: device and inputs, a table taken, the lines, the table returned."""
        symbolic = bool(self.body.symbols)
        return [
            *self._on_device(), *self._unpacked(),
            "try:", "    space = take()", "except IndexError:", "    space = new_space()", "try:",
            *(["    if space.sizes != sizes: resize(space, sizes)"] if symbolic else []),
            "    table, address = space.table, space.address",
            *(f"    {line}" for line in self.lines),
            *NAMED, *(["    forget(error)"] if self.checks else []), "    raise",
            "finally:", "    give_back(space)",
        ]  # fmt: skip

    def _on_device(self) -> list[str]:
        """Lines that select the device, and raise an error recorded by an earlier call."""
        return [
            f"if current() != {self.device.index}: return call_on_device(call, args)",
            *(["if flag.value: check()"] if self.checks else []),
        ]

    def _arena_line(self) -> str:
        if self.shared is not None:
            self.names["shared"] = self.shared
            return "arena = shared()"
        kind = self._name("dtype", torch.uint8)
        moving = any(unit is not ONE for unit, _ in self.plan.regions)
        size = "space.bytes" if moving else self.plan.arena_bytes
        return f"arena = empty(({size},), (1,), {kind})"

    def _resize(self) -> str:
        """The function that fills a table for new sizes: the entries that follow from them, and the
        addresses of arena slots."""
        plan = self.plan
        lines = ["space.sizes = ()"]  # until all of it fits
        lines.append(f"{''.join(f'{local_name(s)}, ' for s in self.body.symbols)} = sizes")
        lines += ["table = space.table", *self._entered_lines(self.body.enters)]
        lines += [*region_lines(plan), "space.bytes = end"]
        places = region_names(plan)
        for name, slot in plan.slots.items():
            if name in plan.table:
                start, unit = places[slot.unit]
                lines.append(f"table[{plan.table[name]}] = {start} + {unit} * {slot.offset}")
        lines.append("space.sizes = sizes")
        return "\n".join(["def resize(space, sizes):", *(f"    {line}" for line in lines), ""])

    def _alignment(self, buffer: Buffer) -> int:
        return ALIGNMENT

    # -- inputs ------------------------------------------------------------------------------

    def _point(self, step: SetPointer) -> None:
        """Enter the address of an input, of an aligned copy if it is unaligned. The name stays that
        of the caller's tensor, for outputs that are views of it. But for an input that kernels
        write to, the name means the copy until it is copied back, so that calls see the writes."""
        buffer = step.buffer
        if self._on_other_device(buffer) or buffer.name in self.constants:
            self._enter_constant(buffer) if buffer.name in self.constants else self._enter(buffer)
            return
        name, entry = self.local[buffer.name], self.plan.table[buffer.name]
        if buffer in self.updated:
            self.names.update(nothing=_nothing, aligned_copy=aligned_copy)
            self.lines.append(f"own_{name}, give_{name} = {name}, nothing")
            here, take = name, f"{name}, give_{name} = aligned_copy({name})"
        else:
            here, take = f"near_{name}", f"near_{name} = aligned({name})"
        self.lines.append(f"table[{entry}] = p = {name}.data_ptr()")
        self.lines.append(f"if p % {ALIGNMENT}: {take}; table[{entry}] = {here}.data_ptr()")
        self._assert_aligned(buffer)

    def _enter_constant(self, buffer: Buffer) -> None:
        """Enter the address of a constant; one on the CPU is copied to the GPU once."""
        if not self._on_other_device(buffer):
            self._enter(buffer)
            return
        here = self._name("constant", self.device.to_device(self.constants[buffer.name]))
        self.lines.append(f"table[{self.plan.table[buffer.name]}] = {here}.data_ptr()")

    def _on_other_device(self, buffer: Buffer) -> bool:
        return bool(buffer.device != self.device.name)

    def _enter(self, buffer: Buffer) -> None:
        """Enter a tensor's address; a scalar tensor of the CPU is copied to the GPU first."""
        if buffer.name not in self.body.points or buffer.name not in self.plan.table:
            return
        name = self.local[buffer.name]
        if self._on_other_device(buffer):
            self.lines.append(f"here_{name} = to_device({name})")
            name = f"here_{name}"
        self.lines.append(f"table[{self.plan.table[buffer.name]}] = {name}.data_ptr()")
        self._assert_aligned(buffer)

    def _keep(self, op: Extern, buffer: Buffer | None, source: str) -> None:
        """Name a call's result. It may be unaligned, for example a view into a larger tensor: one
        that kernels take is replaced by an aligned copy, also for a buffer that later reuses it."""
        super()._keep(op, buffer, source)
        if buffer is None or buffer.name not in self.body.points or self._on_other_device(buffer):
            return
        name, entry = self.local[buffer.name], self.plan.table.get(buffer.name)
        if entry is not None and not self.config.alignment_asserts:
            take = f"{name} = aligned({name}); table[{entry}] = {name}.data_ptr()"
            self.lines.append(f"if (table[{entry}] or 0) % {ALIGNMENT}: {take}")

    # -- memory ------------------------------------------------------------------------------

    def _allocate(self, step: Allocate) -> None:
        buffer = step.buffer
        if step.kind == COUNTERS:
            self._count(buffer)
            return
        sizes, strides = tuple_text(buffer.shape), tuple_text(buffer.strides)
        dtype = self._name("dtype", torch_dtype(buffer.dtype))
        name = self._new(buffer, LETTERS[step.kind])
        self.lines.append(f"{name} = empty({sizes}, {strides}, {dtype})")
        if buffer.name in self.plan.table:  # otherwise it has no elements, and no kernel uses it
            self.lines.append(f"table[{self.plan.table[buffer.name]}] = {name}.data_ptr()")

    def _count(self, buffer: Buffer) -> None:
        """Enter counters that are zero, those of the current stream."""
        counters = self._name("counters", Counters(buffer.shape[0].number, self.device))
        name = self._new(buffer, "w")
        self.lines.append(f"{name} = {counters}(table[{STREAM}])")
        self.lines.append(f"table[{self.plan.table[buffer.name]}] = {name}.data_ptr()")

    def _view(self, view: ViewArg) -> str:
        slot = self.plan.slots.get(view.buffer.name)
        if slot is None:
            return super()._view(view)
        if view not in self.windows:
            dtype = torch_dtype(view.buffer.dtype)
            start = str(slot.offset // dtype.itemsize)
            if moves(slot):
                start = f"(table[{self.plan.table[view.buffer.name]}] or 0) // {dtype.itemsize}"
            start = f"{start} + {number_text(view.offset)}"
            place = f"{tuple_text(view.shape)}, {tuple_text(view.strides)}, {start}"
            base = self._arena(dtype)
            self.windows[view] = name = f"a{len(self.windows)}"
            self.lines.append(f"{name} = reinterpret({base}, {place})")
        return self.windows[view]

    def _arena(self, dtype: torch.dtype) -> str:
        if dtype not in self.arenas:
            self.arenas[dtype] = name = f"arena_{str(dtype).removeprefix('torch.')}"
            self.lines.append(f"{name} = arena.view({self._name('dtype', dtype)})")
        return self.arenas[dtype]

    def _tensor(self, buffer: Buffer) -> str:
        name = super()._tensor(buffer)
        return f"own_{name}" if buffer in self.given_back else name

    def _launch(self, segment: str) -> None:
        given = "table, address" if isinstance(self.names[segment], LaunchGraphCache) else "address"
        self.lines.append(f"code = {segment}({given})")
        self.lines.append(f"if code: failed({segment!r}, code, {segment}, {given})")

    def _raise_recorded_error(self, segment: Segment) -> None:
        """Nothing: a call does not wait for the GPU, so that a later call raises."""


def _nothing() -> None:
    """Copies nothing back: the input was used in place."""


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or an aligned copy from which kernels can load several elements at once."""
    if tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    return _copied(tensor)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, gaps between the elements included."""
    flat = tensor.as_strided((_span(tensor),), (1,)).clone()
    return flat.as_strided(tensor.shape, tensor.stride())


def aligned_copy(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """An aligned copy of an input that is written to, and the function that copies it back. Only
    the input's own elements are copied back: the gaps between them may be another input."""
    copy = _copied(tensor)
    sizes = [min(n, 1) if s == 0 else n for n, s in _steps(tensor)]  # expanded elements once
    there, here = (t.as_strided(sizes, tensor.stride()) for t in (tensor, copy))
    return copy, lambda: there.copy_(here)


def _span(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return int(1 + sum((n - 1) * step for n, step in _steps(tensor)))


def _steps(tensor: torch.Tensor) -> Iterator[tuple[int, int]]:
    return zip(tensor.shape, tensor.stride(), strict=True)
