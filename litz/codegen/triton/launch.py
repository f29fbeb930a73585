"""The launcher: native functions that launch GPU kernels, so that Python makes one call for many.

In: a `Plan` and its kernels. Out: LLVM IR text. Every function takes the table, whose entries are
what kernels take: so a parameter is the address of its entry, and nothing is packed. Only buffers
inside the arena need an address of their own. `cuLaunchKernel` itself is an entry too. Triton's
kernels end with two pointers: to scratch memory, and to another that ours never use. A function
gives the first error of the driver, or zero.
"""

from __future__ import annotations

from litz.ir.expr import Expr
from litz.ir.index import ONE
from litz.ir.program import Buffer, Kernel, Plan, Slot
from litz.ir.scheduled import ScheduledKernel, Tiling
from litz.ir.source import ARENA, ERROR_RECORD, LAUNCH, SCRATCH, STREAM, DeviceKernel, Segment

WARP = 32
HIDDEN = 2  # parameters that Triton adds
# The driver refuses to launch no programs.
_UNLESS_NONE = (
    "  %programs = ptrtoint ptr %tasks to i32",
    "  %none.left = icmp eq i32 %programs, 0",
    "  br i1 %none.left, label %nothing, label %some",
    "nothing:",
    "  ret i32 0",
    "some:",
)


def segments(plan: Plan) -> list[Segment]:
    """Runs of kernels between extern calls."""
    runs: list[list[int]] = [[]]
    number = 0
    for step in plan.graph.body:
        if isinstance(step, Kernel):
            runs[-1].append(number)
            number += 1
        elif runs[-1]:
            runs.append([])
    named = enumerate(run for run in runs if run)
    return [Segment(f"litz_segment_{k}", tuple(run)) for k, run in named]


def table_layout(
    plan: Plan, workspaces: tuple[Buffer, ...], computed: dict[str, Expr]
) -> dict[str, int]:
    """The table's entry for each buffer outside the arena, for the place of each that moves about
    in it, and for each number that only a call knows."""
    buffers = dict.fromkeys(b.name for b in (*plan.outside, *workspaces))
    moving = [name for name, slot in plan.slots.items() if moves(slot)]
    return {name: LAUNCH + 1 + k for k, name in enumerate((*buffers, *moving, *computed))}


def moves(slot: Slot) -> bool:
    """Whether a place in the arena depends on sizes: all but the first region do."""
    return slot.unit is not ONE


def computed_numbers(scheduled: list[ScheduledKernel[Tiling]]) -> dict[str, Expr]:
    """What launches need and only a call knows: sizes, and how many programs each kernel has."""
    found = {size_entry(symbol): symbol for kernel in scheduled for symbol in kernel.sizes}
    for k, kernel in enumerate(scheduled):
        if not kernel.task_count.is_const:
            found[f"tasks {k}"] = kernel.task_count
    return found


def size_entry(symbol: Expr) -> str:
    return f"size {symbol.attr[0]}"


def launcher_text(
    plan: Plan, steps: list[tuple[ScheduledKernel[Tiling], DeviceKernel]], layout: dict[str, int],
    handles: dict[str, int],
) -> str:  # fmt: skip
    """One function a kernel, one a run of them."""
    parts = [
        _step(k, plan, scheduled, kernel, layout, handles[kernel.name])
        for k, (scheduled, kernel) in enumerate(steps)
    ]
    return "\n".join([*parts, *(_segment(s) for s in segments(plan))])


def _step(
    k: int, plan: Plan, scheduled: ScheduledKernel[Tiling], kernel: DeviceKernel,
    layout: dict[str, int], handle: int,
) -> str:  # fmt: skip
    count = len(kernel.pointers) + len(kernel.sizes) + HIDDEN
    lines = [f"define i32 @litz_step_{k}(ptr %table) nounwind {{"]
    lines += [f"  %params = alloca [{count} x ptr]", "  %none = alloca i64"]
    lines += ["  store i64 0, ptr %none", *_entry("arena", ARENA)]
    for position, buffer in enumerate(scheduled.arguments):
        lines += _parameter(position, plan, buffer, layout)
    last = len(scheduled.arguments)
    if kernel.checks:
        lines.append(f"  %p{last} = getelementptr ptr, ptr %table, i64 {ERROR_RECORD}")
    for position, symbol in enumerate(scheduled.sizes, len(kernel.pointers)):
        entry = layout[size_entry(symbol)]
        lines.append(f"  %p{position} = getelementptr ptr, ptr %table, i64 {entry}")
    if kernel.scratch:
        lines.append(f"  %scratch = getelementptr ptr, ptr %table, i64 {layout[SCRATCH]}")
    hidden = ["%scratch" if kernel.scratch else "%none", "%none"]
    for position in range(count):
        mine = position < count - HIDDEN
        value = f"%p{position}" if mine else hidden[position - count]
        lines.append(f"  %at{position} = getelementptr ptr, ptr %params, i64 {position}")
        lines.append(f"  store ptr {value}, ptr %at{position}")
    lines += [*_entry("launch", LAUNCH), *_entry("stream", STREAM), *_entry("function", handle)]
    lines += [*_entry("size", handle + 1), "  %shared = ptrtoint ptr %size to i32"]
    programs = str(kernel.programs)
    if not scheduled.task_count.is_const:
        programs = "%programs"
        lines += [*_entry("tasks", layout[f"tasks {k}"]), *_UNLESS_NONE]
    grid = f"i32 {programs}, i32 1, i32 1"
    block = f"i32 {WARP * kernel.warps}, i32 1, i32 1"
    lines.append(
        f"  %code = call i32 %launch(ptr %function, {grid}, {block}, i32 %shared, ptr %stream,"
        " ptr %params, ptr null)"
    )
    return "\n".join([*lines, "  ret i32 %code", "}", ""])


def _parameter(position: int, plan: Plan, buffer: Buffer, layout: dict[str, int]) -> list[str]:
    """The address of a place that holds the buffer's pointer."""
    slot = plan.slots.get(buffer.name)
    if slot is None:
        return [f"  %p{position} = getelementptr ptr, ptr %table, i64 {layout[buffer.name]}"]
    offset, lines = str(slot.offset), []
    if moves(slot):
        offset = f"%offset{position}"
        lines = [*_entry(f"place{position}", layout[buffer.name])]
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
    """The kernels in order; after an error none is launched."""
    lines = [f"define i32 @{segment.name}(ptr %table) nounwind {{", "  br label %k0"]
    for n, k in enumerate(segment.kernels):
        lines += [f"k{n}:", f"  %code{n} = call i32 @litz_step_{k}(ptr %table)"]
        lines += [f"  %bad{n} = icmp ne i32 %code{n}, 0"]
        lines += [f"  br i1 %bad{n}, label %fail{n}, label %k{n + 1}"]
        lines += [f"fail{n}:", f"  ret i32 %code{n}"]
    lines += [f"k{len(segment.kernels)}:", "  ret i32 0", "}", ""]
    return "\n".join(lines)
