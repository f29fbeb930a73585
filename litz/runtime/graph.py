"""A compiled graph: what AOTAutograd calls.

In: the list of inputs. Out: the list of outputs. All that differs from call to call is in a
`Workspace`; each call takes one from a list and puts it back, so that threads never share one.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from litz.config import Config
from litz.errors import (
    IndexOutOfRange,
    InputMismatch,
    IntegerDivisionByZero,
    InternalError,
)
from litz.ir.program import Buffer, Extern, Plan, ViewArg
from litz.ir.source import ARENA, ERROR_FLAG, Binary, Source
from litz.runtime.profile import moved_bytes, run_timed
from litz.runtime.steps import (
    ExternStep,
    NativeStep,
    Step,
    as_buffer_view,
    is_whole,
    numbers,
    torch_dtype,
)
from litz.trace import KERNELS, Trace

# The first call warms caches up; the second shows what a call costs.
TIMED_CALLS = 2


class Workspace:
    """The table of pointers, the arena and the error flag of one call at a time."""

    def __init__(self, plan: Plan, entries: int) -> None:
        self.table = (ctypes.c_void_p * (entries + ARENA + 1))()
        self.address = ctypes.addressof(self.table)
        self.error = ctypes.c_int(0)
        self.arena = torch.empty(max(plan.arena_bytes, 64), dtype=torch.uint8)
        self.table[ERROR_FLAG] = ctypes.addressof(self.error)
        self.table[ARENA] = self.arena.data_ptr()
        self.views: dict[Any, torch.Tensor] = {}  # windows on the arena, made once


class CompiledGraph:
    """Runs the steps in order. Holds no state of a call."""

    def __init__(
        self, plan: Plan, source: Source, binary: Binary, steps: list[Step],
        constants: dict[str, torch.Tensor], config: Config,
    ) -> None:  # fmt: skip
        # AOTAutograd then passes the inputs as one list; wrappers copy only instance attributes.
        self._boxed_call = True
        self.plan, self.source, self.binary, self.steps = plan, source, binary, steps
        self.config = config
        graph = plan.graph
        self.constants = [(b.name, constants[b.name]) for b in graph.constants]
        self.inputs = [b for b in graph.inputs if isinstance(b, Buffer)]
        self.input_names = [b.name for b in self.inputs]
        self.layouts = [(numbers(b.shape), numbers(b.strides)) for b in self.inputs]
        self.checked = [0] * len(self.inputs)
        self.allocated = self._outputs_to_allocate()
        self.free: list[Workspace] = []
        self.timed_calls = TIMED_CALLS if config.debug >= KERNELS else 0
        self.moved = moved_bytes(plan) if self.timed_calls else {}

    def _outputs_to_allocate(self) -> list[tuple[str, Any, Any, torch.dtype]]:
        """Outputs that kernels (or out= ops) write: fresh memory for each call."""
        graph = self.plan.graph
        own = {b for s in graph.body if isinstance(s, Extern) and not s.into for b in s.outputs}
        known = {*graph.inputs, *graph.constants, *own}
        shown = [o.value.buffer for o in graph.outputs if isinstance(o.value, ViewArg)]
        fresh = [b for b in dict.fromkeys(shown) if b not in known]
        return [(b.name, numbers(b.shape), numbers(b.strides), torch_dtype(b.dtype)) for b in fresh]

    # -- a call ------------------------------------------------------------------------------

    def __call__(self, args: list[Any]) -> list[Any]:
        tensors: dict[str, torch.Tensor] = dict(zip(self.input_names, args, strict=True))
        if self.config.size_asserts:
            self._check_inputs(args)
        args.clear()
        space = self.free.pop() if self.free else Workspace(self.plan, len(self.source.layout))
        try:
            self._fill(space, tensors)
            self._run(space, tensors)
            outputs = [self._output(o.value, tensors) for o in self.plan.graph.outputs]
        finally:
            self.free.append(space)
        return outputs

    def _fill(self, space: Workspace, tensors: dict[str, torch.Tensor]) -> None:
        for name, shape, strides, dtype in self.allocated:
            tensors[name] = torch.empty_strided(shape, strides, dtype=dtype)
        tensors.update(self.constants)
        layout, table = self.source.layout, space.table
        for name, tensor in tensors.items():
            if tensor is not None:  # an effect token is nothing at run time
                table[layout[name]] = tensor.data_ptr()

    def _run(self, space: Workspace, tensors: dict[str, torch.Tensor]) -> None:
        timed: list[str] = []
        for step in self.steps:
            if not isinstance(step, NativeStep):
                self._call_extern(step, space, tensors)
            elif self.timed_calls:
                timed += run_timed(step, space.address, self.moved)
            else:
                step.function(space.address)
        if self.timed_calls:
            self.timed_calls -= 1
            Trace(self.config.debug).note(KERNELS, "kernels of one call", "\n".join(timed))
        if space.error.value:
            code, space.error.value = space.error.value, 0
            raise _error(code)

    def _check_inputs(self, args: list[Any]) -> None:
        """Layouts the code was compiled for; a tensor already checked is not checked again."""
        for k, tensor in enumerate(args):
            if tensor is None or self.checked[k] == id(tensor):
                continue
            shape, strides = self.layouts[k]
            if tensor.shape != shape or (tensor.stride() != strides and tensor.numel() > 1):
                expected = f"shape {shape}, strides {strides}"
                got = f"shape {tuple(tensor.shape)}, strides {tensor.stride()}"
                raise InputMismatch(self.input_names[k], expected, got)
            self.checked[k] = id(tensor)

    # -- ATen calls --------------------------------------------------------------------------

    def _call_extern(
        self, step: ExternStep, space: Workspace, tensors: dict[str, torch.Tensor]
    ) -> None:
        extern = step.extern
        args = self._operand(extern.args, space, tensors)
        kwargs = {k: self._operand(v, space, tensors) for k, v in extern.kwargs}
        if extern.into:
            (made,) = extern.outputs
            assert made is not None
            out = self._tensor(made, space, tensors)
            step.op(*args, **kwargs, out=out)
            return
        results = step.op(*args, **kwargs)
        for buffer, result in zip(
            extern.outputs, [results] if extern.single else results or (), strict=True
        ):
            if buffer is not None:
                tensor = _laid_out(result, buffer, step.returns_alias)
                tensors[buffer.name] = tensor
                space.table[self.source.layout[buffer.name]] = tensor.data_ptr()
        for name in step.freed:
            tensors.pop(name, None)

    def _operand(self, value: Any, space: Workspace, tensors: dict[str, torch.Tensor]) -> Any:
        if isinstance(value, ViewArg):
            return self._view(value, space, tensors)
        if isinstance(value, tuple):
            return tuple(self._operand(v, space, tensors) for v in value)
        return value

    def _tensor(
        self, buffer: Buffer, space: Workspace, tensors: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        slot = self.plan.slots.get(buffer.name)
        if slot is None:
            return tensors[buffer.name]
        found = space.views.get(buffer.name)
        if found is None:
            storage = space.arena.untyped_storage()
            found = space.views[buffer.name] = as_buffer_view(storage, buffer, slot.offset)
        return found

    def _view(
        self, view: ViewArg, space: Workspace, tensors: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        in_arena = view.buffer.name in self.plan.slots
        if in_arena and view in space.views:
            return space.views[view]
        base = self._tensor(view.buffer, space, tensors)
        if not is_whole(view):
            start = base.storage_offset() + view.offset.attr
            base = base.as_strided(numbers(view.shape), numbers(view.strides), start)
        if in_arena:
            space.views[view] = base
        return base

    def _output(self, value: Any, tensors: dict[str, torch.Tensor]) -> Any:
        if not isinstance(value, ViewArg):
            return value
        base = tensors[value.buffer.name]
        if is_whole(value):
            return base
        start = base.storage_offset() + value.offset.attr
        return base.as_strided(numbers(value.shape), numbers(value.strides), start)


def _error(code: int) -> Exception:
    """What a kernel noted in the error flag."""
    if code & 4:
        return InternalError("a kernel accessed memory outside of a buffer (debug_index_asserts)")
    return IntegerDivisionByZero() if code & 2 else IndexOutOfRange()


def _laid_out(result: torch.Tensor, buffer: Buffer, returns_alias: bool) -> torch.Tensor:
    """An op's result with the strides the kernels were compiled for, and memory of its own."""
    strides = numbers(buffer.strides)
    if result.stride() == strides and not returns_alias:
        return result
    if result.numel() <= 1 and not returns_alias:
        return result
    exact = torch.empty_strided(numbers(buffer.shape), strides, dtype=result.dtype)
    return exact.copy_(result)
