"""The launcher: native functions that launch GPU kernels, so that Python makes one call for many.

In: a `CallPlan`. Out: LLVM IR text. Every function takes the table, whose entries are the kernels'
arguments: a parameter is the address of its entry, and nothing is packed. Only buffers inside the
arena need an address computed for them. `cuLaunchKernel` itself is an entry too. Triton's kernels
end with two more pointers: scratch memory, and one that our kernels never use. A function returns
the first error of the driver, or zero.
"""

from __future__ import annotations

from dataclasses import replace

from litz.ir.call_plan import (
    ARENA,
    ERROR_RECORD,
    LAUNCH,
    STREAM,
    CallPlan,
    KernelCall,
    Segment,
    moves,
)
from litz.ir.source import SCRATCH, DeviceSource

WARP = 32
TRITON_PARAMETERS = 2  # parameters that Triton adds
# The driver refuses to launch an empty grid.
_SKIP_EMPTY_GRID = (
    "  %programs = ptrtoint ptr %tasks to i32",
    "  %none.left = icmp eq i32 %programs, 0",
    "  br i1 %none.left, label %nothing, label %some",
    "nothing:",
    "  ret i32 0",
    "some:",
)


def with_driver(source: DeviceSource, call: CallPlan) -> DeviceSource:
    """The kernels with the functions that launch them."""
    return replace(
        source, text=launcher_text(call), exports=tuple(s.name for s in call.segments)
    )  # fmt: skip


def launcher_text(call: CallPlan) -> str:
    """One function a kernel, one function a segment."""
    parts = [_step(k, kernel, call) for k, kernel in enumerate(call.kernels)]
    return "\n".join([*parts, *(_segment(s) for s in call.segments)])


def _step(k: int, kernel: KernelCall, call: CallPlan) -> str:
    (launch,), table = kernel.launches, call.table
    handle, pointers = call.handles[launch.function], len(launch.arguments) + kernel.checks
    count = pointers + len(launch.sizes) + TRITON_PARAMETERS
    lines = [f"define i32 @litz_step_{k}(ptr %table) nounwind {{"]
    lines += [f"  %params = alloca [{count} x ptr]", "  %none = alloca i64"]
    lines += ["  store i64 0, ptr %none", *_entry("arena", ARENA)]
    for position, name in enumerate(launch.arguments):
        lines += _parameter(position, name, call)
    if kernel.checks:
        last = len(launch.arguments)
        lines.append(f"  %p{last} = getelementptr ptr, ptr %table, i64 {ERROR_RECORD}")
    for position, symbol in enumerate(launch.sizes, pointers):
        entry = table[f"size {symbol.attr[0]}"]
        lines.append(f"  %p{position} = getelementptr ptr, ptr %table, i64 {entry}")
    if launch.scratch:
        lines.append(f"  %scratch = getelementptr ptr, ptr %table, i64 {table[SCRATCH]}")
    hidden = ["%scratch" if launch.scratch else "%none", "%none"]
    for position in range(count):
        mine = position < count - TRITON_PARAMETERS
        value = f"%p{position}" if mine else hidden[position - count]
        lines.append(f"  %at{position} = getelementptr ptr, ptr %params, i64 {position}")
        lines.append(f"  store ptr {value}, ptr %at{position}")
    lines += [*_entry("launch", LAUNCH), *_entry("stream", STREAM), *_entry("function", handle)]
    lines += [*_entry("size", handle + 1), "  %shared = ptrtoint ptr %size to i32"]
    programs = "%programs"
    if launch.tasks.is_const:
        programs = str(launch.tasks.number)
    else:
        lines += [*_entry("tasks", table[f"tasks {k}"]), *_SKIP_EMPTY_GRID]
    grid = f"i32 {programs}, i32 1, i32 1"
    block = f"i32 {WARP * launch.warps}, i32 1, i32 1"
    lines.append(
        f"  %code = call i32 %launch(ptr %function, {grid}, {block}, i32 %shared, ptr %stream,"
        " ptr %params, ptr null)"
    )
    return "\n".join([*lines, "  ret i32 %code", "}", ""])


def _parameter(position: int, name: str, call: CallPlan) -> list[str]:
    """The address of a place that holds the buffer's pointer."""
    slot = call.slots.get(name)
    if slot is None:
        return [f"  %p{position} = getelementptr ptr, ptr %table, i64 {call.table[name]}"]
    offset, lines = str(slot.offset), []
    if moves(slot):
        offset = f"%offset{position}"
        lines = [*_entry(f"place{position}", call.table[name])]
        lines.append(f"  {offset} = ptrtoint ptr %place{position} to i64")
    return [
        *lines,
        f"  %b{position} = getelementptr i8, ptr %arena, i64 {offset}",
        f"  %p{position} = alloca ptr",
        f"  store ptr %b{position}, ptr %p{position}",
    ]


def _entry(name: str, position: int) -> list[str]:
    return [
        f"  %{name}.slot = getelementptr ptr, ptr %table, i64 {position}",
        f"  %{name} = load ptr, ptr %{name}.slot",
    ]


def _segment(segment: Segment) -> str:
    """The kernels in order; after an error no other is launched."""
    lines = [f"define i32 @{segment.name}(ptr %table) nounwind {{", "  br label %k0"]
    for n, k in enumerate(segment.kernels):
        lines += [f"k{n}:", f"  %code{n} = call i32 @litz_step_{k}(ptr %table)"]
        lines += [f"  %bad{n} = icmp ne i32 %code{n}, 0"]
        lines += [f"  br i1 %bad{n}, label %fail{n}, label %k{n + 1}"]
        lines += [f"fail{n}:", f"  ret i32 %code{n}"]
    lines += [f"k{len(segment.kernels)}:", "  ret i32 0", "}", ""]
    return "\n".join(lines)
