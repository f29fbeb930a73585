"""The driver: native functions that launch kernels, so that Python makes one call for many.

In: a `Plan`, the function of each kernel. Out: LLVM IR text. Every driver function takes the table:
one pointer each for the error flag, the arena and the buffers that live outside it. `@litz_step_k`
launches kernel k; `@litz_segment_j` launches the kernels between two ATen calls. Threads are
OpenMP's, from the very library torch runs on, so that both share one pool.
"""

from __future__ import annotations

from litz.codegen.llvm.samples import samples_text
from litz.ir.program import Kernel, Plan
from litz.ir.scheduled import ScheduledKernel
from litz.ir.source import ARENA, ERROR_FLAG, Segment

RUNTIME = """
declare i32 @omp_get_max_threads()
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare void @GOMP_parallel(ptr, ptr, i32, i32)

%litz.job = type { ptr, ptr, i64 }

define internal void @litz_worker(ptr %job) #0 {
  %fn.at = getelementptr %litz.job, ptr %job, i32 0, i32 0
  %fn = load ptr, ptr %fn.at
  %args.at = getelementptr %litz.job, ptr %job, i32 0, i32 1
  %args = load ptr, ptr %args.at
  %tasks.at = getelementptr %litz.job, ptr %job, i32 0, i32 2
  %tasks = load i64, ptr %tasks.at
  %me32 = call i32 @omp_get_thread_num()
  %all32 = call i32 @omp_get_num_threads()
  %me = zext i32 %me32 to i64
  %all = zext i32 %all32 to i64
  %low = mul i64 %tasks, %me
  %begin = udiv i64 %low, %all
  %high = add i64 %low, %tasks
  %end = udiv i64 %high, %all
  call void %fn(ptr %args, i64 %begin, i64 %end)
  ret void
}

define internal void @litz_parallel(ptr %fn, ptr %args, i64 %tasks, i64 %grain, i32 %most) #0 {
  %available = call i32 @omp_get_max_threads()
  %allowed = call i32 @llvm.umin.i32(i32 %available, i32 %most)
  %wide = zext i32 %allowed to i64
  %useful = udiv i64 %tasks, %grain
  %threads = call i64 @llvm.umin.i64(i64 %wide, i64 %useful)
  %alone = icmp ule i64 %threads, 1
  br i1 %alone, label %serial, label %parallel
serial:
  call void %fn(ptr %args, i64 0, i64 %tasks)
  ret void
parallel:
  %job = alloca %litz.job
  store ptr %fn, ptr %job
  %args.at = getelementptr %litz.job, ptr %job, i32 0, i32 1
  store ptr %args, ptr %args.at
  %tasks.at = getelementptr %litz.job, ptr %job, i32 0, i32 2
  store i64 %tasks, ptr %tasks.at
  %count = trunc i64 %threads to i32
  call void @GOMP_parallel(ptr @litz_worker, ptr %job, i32 %count, i32 0)
  ret void
}

declare i32 @llvm.umin.i32(i32, i32)
declare i64 @llvm.umin.i64(i64, i64)
"""


def preparation(plan: Plan) -> Segment | None:
    """The kernels that make what is held of parameters; calls may pack it further."""
    if not plan.graph.prepared:
        return None
    return Segment("litz_prepare", tuple(range(_prepared_kernels(plan))))


def _prepared_kernels(plan: Plan) -> int:
    return sum(isinstance(step, Kernel) for step in plan.graph.body[: plan.graph.prepared])


def segments(plan: Plan) -> list[Segment]:
    """Runs of kernels between extern calls, behind the preparation."""
    found: list[Segment] = []
    numbers: list[int] = []
    kernel = _prepared_kernels(plan)
    for step in plan.graph.body[plan.graph.prepared :]:
        if isinstance(step, Kernel):
            numbers.append(kernel)
            kernel += 1
        elif numbers:
            found.append(Segment(f"litz_segment_{len(found)}", tuple(numbers)))
            numbers = []
    if numbers:
        found.append(Segment(f"litz_segment_{len(found)}", tuple(numbers)))
    return found


def table_layout(plan: Plan) -> dict[str, int]:
    """The table's entry for each buffer outside the arena that a kernel or the caller touches."""
    layout: dict[str, int] = {}
    for buffer in plan.outside:
        layout[buffer.name] = len(layout) + ARENA + 1
    return layout


def driver_text(
    plan: Plan, scheduled: list[ScheduledKernel], names: list[str], layout: dict[str, int],
    threads: int,
) -> str:  # fmt: skip
    """One step a kernel, one segment a run of them."""
    steps = [
        _step(k, plan, kernel, name, layout, threads)
        for k, (kernel, name) in enumerate(zip(scheduled, names, strict=True))
    ]
    runs = [_segment(segment) for segment in segments(plan)]
    first = preparation(plan)
    if first is not None:
        runs += [_segment(first), samples_text(plan, layout)]
    return "\n".join([RUNTIME, *steps, *runs])


def _step(
    k: int, plan: Plan, scheduled: ScheduledKernel, name: str, layout: dict[str, int], threads: int
) -> str:
    """Put the pointers a kernel takes side by side and run its tasks."""
    count = len(scheduled.arguments) + 1
    lines = [f"define void @litz_step_{k}(ptr %table) #0 {{", f"  %args = alloca [{count} x ptr]"]
    lines += _entry("arena", ARENA)
    for position, buffer in enumerate(scheduled.arguments):
        slot = plan.slots.get(buffer.name)
        if slot is None:
            lines += _entry(f"b{position}", layout[buffer.name])
        else:
            lines.append(f"  %b{position} = getelementptr i8, ptr %arena, i64 {slot.offset}")
        lines.append(f"  %at{position} = getelementptr ptr, ptr %args, i64 {position}")
        lines.append(f"  store ptr %b{position}, ptr %at{position}")
    lines += _entry("flag", ERROR_FLAG)
    lines.append(f"  %flag.at = getelementptr ptr, ptr %args, i64 {count - 1}")
    lines.append("  store ptr %flag, ptr %flag.at")
    tasks, grain = scheduled.tasks, scheduled.choice.grain
    if tasks < 2 * grain or threads == 1:
        lines.append(f"  call void @{name}(ptr %args, i64 0, i64 {tasks})")
    else:
        lines.append(
            f"  call void @litz_parallel(ptr @{name}, ptr %args, i64 {tasks}, i64 {grain},"
            f" i32 {threads})"
        )
    return "\n".join([*lines, "  ret void", "}", ""])


def _entry(name: str, position: int) -> list[str]:
    return [
        f"  %{name}.slot = getelementptr ptr, ptr %table, i64 {position}",
        f"  %{name} = load ptr, ptr %{name}.slot",
    ]


def _segment(segment: Segment) -> str:
    calls = [f"  call void @litz_step_{k}(ptr %table)" for k in segment.kernels]
    head = f"define void @{segment.name}(ptr %table) #0 {{"
    return "\n".join([head, *calls, "  ret void", "}", ""])
