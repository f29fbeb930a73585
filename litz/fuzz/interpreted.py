"""Programs of the loop IR interpreted over tensors, with kernels as any stage left them.

In: a program, its constants and the list of its inputs. Out: its results. Inputs are updated as by
the compiled code, and results share memory as the program says. Kernels run in the interpreter, or
as scheduled, or as machine code one at a time, over memory that nothing else uses. Example:
`interpreted(plan.graph, {}, [x])` runs the graph of a plan.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from litz.ir.aten import torch_dtype
from litz.ir.call_plan import ARENA, ERROR_RECORD, CallPlan
from litz.ir.checks import error_of
from litz.ir.interpret import Environment, RunKernel, execute, run_step
from litz.ir.program import Buffer, Extern, Kernel, KernelGraph, LoopProgram, ViewArg, written
from litz.ir.scheduled import ScheduledKernel
from litz.ir.source import Binary
from litz.runtime.layouts import native_step
from litz.runtime.memory import ErrorRecord
from litz.runtime.size_exprs import float_bits

Array = np.ndarray[Any, Any]
NARROW = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def interpreted(
    program: LoopProgram | KernelGraph, constants: Mapping[str, torch.Tensor], args: list[Any],
    kernel: RunKernel | None = None,
) -> list[Any]:  # fmt: skip
    """Run a program step by step; `kernel`, if given, runs its kernels."""
    given = list(args)
    args.clear()
    known = {name: as_array(t) for name, t in constants.items()}
    arrays = [as_array(t) if isinstance(t, torch.Tensor) else t for t in given]
    env = execute(program, arrays, known, call_aten, kernel)
    changed = {b for step in program.body for b in written(step)}
    memory: dict[str, torch.Tensor] = {}
    for item, tensor, array in zip(program.inputs, given, arrays, strict=True):
        if isinstance(item, Buffer):
            memory[item.name] = tensor
            if item in changed:
                tensor.copy_(as_tensor(array, tensor.dtype))
    return [_output(env, output.value, memory) for output in program.outputs]


def _output(env: Environment, value: Any, memory: dict[str, torch.Tensor]) -> Any:
    """A result as a view of its buffer's memory, so that two results of one buffer share it."""
    if not isinstance(value, ViewArg):
        return env.resolve(value)
    env.view(value)  # allocates the buffer, even if it is empty
    name = value.buffer.name
    if name not in memory:
        memory[name] = as_tensor(env.storage[name], torch_dtype(value.buffer.dtype))
    base = memory[name]
    shape, strides = env.shape(value.shape), env.shape(value.strides)
    return base.as_strided(shape, strides, base.storage_offset() + env.number(value.offset))


def as_array(tensor: torch.Tensor) -> Array:
    """A new array of the values; bf16 and narrower types as the float32 that the interpreter
    uses."""
    wide = tensor.float() if tensor.dtype in NARROW else tensor
    array: Array = wide.detach().cpu().numpy().copy()
    return array


def as_tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).reshape(array.shape).to(dtype)


# -- ATen calls ------------------------------------------------------------------------------------


def call_aten(step: Extern, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """An ATen call in the interpreter: the op itself over the operands' values."""
    namespace, name, overload = step.target.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    given = [_operand(a, meant) for a, meant in zip(args, step.args, strict=True)]
    named = {k: _operand(kwargs[k], meant) for k, meant in step.kwargs}
    results = op(*given, **named)
    if step.mutates:
        _write_back((args, given), step)
    listed = [results] if step.single else results or ()
    return [as_array(r) if isinstance(r, torch.Tensor) else r for r in listed]


def _write_back(pairs: tuple[list[Any], list[Any]], step: Extern) -> None:
    """Copy mutated operands back into their arrays."""
    for array, tensor, meant in zip(*pairs, step.args, strict=True):
        if isinstance(meant, ViewArg) and meant.buffer in step.mutates:
            array[...] = as_array(tensor)


def _operand(value: Any, meant: Any) -> Any:
    """An array as the tensor that its view of a buffer stands for."""
    if isinstance(meant, ViewArg):
        # An opaque type stays a torch tensor; all others get the strides that the call expects.
        dtype = torch_dtype(meant.buffer.dtype)
        return (
            as_tensor(value, dtype) if meant.buffer.dtype.kind == "x" else _laid_out(value, dtype)
        )
    if isinstance(meant, (list, tuple)):
        return [_operand(v, m) for v, m in zip(value, meant, strict=True)]
    return value


def _laid_out(window: Array, dtype: torch.dtype) -> torch.Tensor:
    """The values with a view's strides, in which elements may overlap."""
    shape, strides = window.shape, [step // window.itemsize for step in window.strides]
    span = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    flat = torch.empty(span if window.size else 0, dtype=dtype)
    flat[torch.arange(len(flat)).as_strided(shape, strides)] = as_tensor(window, dtype)
    return flat.as_strided(shape, strides)


# -- kernels of later stages -----------------------------------------------------------------------


def as_scheduled(kernels: Sequence[Kernel], made: Sequence[ScheduledKernel[Any]]) -> RunKernel:
    """Runs each kernel by its schedule's loops over flat storage."""
    by_name = {k.name: s for k, s in zip(kernels, made, strict=True)}

    def run(kernel: Kernel, env: Environment) -> None:
        scheduled = by_name[kernel.name]
        storage = {f"b{k}": _storage(env, b) for k, b in enumerate(scheduled.arguments)}
        run_step(Environment(sizes=env.sizes, storage=storage), scheduled.kernel)

    return run


def as_code(call: CallPlan, binary: Binary) -> RunKernel:
    """Runs each kernel as machine code, one at a time. No buffer is in an arena."""
    numbers = {k.name: number for number, k in enumerate(call.kernels)}

    def run(kernel: Kernel, env: Environment) -> None:
        number = numbers[kernel.name]
        buffers = dict.fromkeys((*kernel.writes, *kernel.reads))
        memory = {b: as_tensor(_storage(env, b), torch_dtype(b.dtype)).clone() for b in buffers}
        record = ErrorRecord()
        table = (ctypes.c_void_p * (len(call.table) + ARENA + 2))()
        table[ERROR_RECORD] = ctypes.addressof(record)
        for name, value in call.computed.items():
            found = env.resolve(value)
            table[call.table[name]] = float_bits(found) if value.dtype.is_float else found
        for buffer, tensor in memory.items():
            table[call.table[buffer.name]] = tensor.data_ptr()
        native_step(binary, number)(ctypes.addressof(table))
        if record.value:
            raise error_of(call.sites, record.value, record.index, record.size)
        for buffer in kernel.writes:
            env.storage[buffer.name][...] = as_array(memory[buffer])

    return run


def _storage(env: Environment, buffer: Buffer) -> Array:
    """The memory of a buffer, which may not have been written yet."""
    if buffer.name not in env.storage:
        env.allocate(buffer)
    return env.storage[buffer.name]
