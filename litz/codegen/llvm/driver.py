"""The driver: native functions that launch kernels, so that Python makes one call for many.

In: a `Plan`, the function of each kernel. Out: LLVM IR text. Every driver function takes the table:
one pointer each for the error flag, the arena and the buffers that live outside it. What a launch
needs is data: `@litz_launches[k]` holds the function of kernel k, where its arguments lie and how
much work it is. `@litz_run` runs a few of them as one: their work end to end, cut into a piece for
each thread. `@litz_step_k` runs kernel k; `@litz_segment_j` the kernels between two ATen calls,
batch by batch. Threads are OpenMP's, from the very library torch runs on: both share one pool.
"""

from __future__ import annotations

from litz.codegen.llvm.launch import RUNTIME, UNIT
from litz.codegen.llvm.samples import samples_text
from litz.ir.expr import Expr, apply, integer
from litz.ir.index import ONE, floordiv, product
from litz.ir.program import Kernel, Plan, Slot
from litz.ir.scheduled import ScheduledKernel
from litz.ir.source import ARENA, Segment

# The work of one launch is counted up to here: finer pieces would not be cut differently.
MOST_WORK = 1 << 20


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


def table_layout(plan: Plan, computed: dict[str, Expr]) -> dict[str, int]:
    """The table's entry for each buffer outside the arena that a kernel or the caller touches, for
    each that moves about in it, and for each number that only a call knows."""
    moving = [name for name, slot in plan.slots.items() if moves(slot)]
    names = [*(b.name for b in plan.outside), *moving, *computed]
    return {name: k + ARENA + 1 for k, name in enumerate(names)}


def moves(slot: Slot) -> bool:
    """Whether a place in the arena depends on sizes: all but the first region do."""
    return slot.unit is not ONE


def computed_numbers(scheduled: list[ScheduledKernel]) -> dict[str, Expr]:
    """What kernels need and only a call knows: sizes, and the tasks and work of each."""
    found: dict[str, Expr] = {}
    for kernel in scheduled:
        found.update((f"size {symbol.attr[0]}", symbol) for symbol in kernel.sizes)
    for k, kernel in enumerate(scheduled):
        if not kernel.task_count.is_const:
            found[f"tasks {k}"] = kernel.task_count
        if not (work := _work(kernel)).is_const:
            found[f"work {k}"] = work
    return found


def driver_text(
    plan: Plan, scheduled: list[ScheduledKernel], names: list[str], layout: dict[str, int],
    threads: int,
) -> str:  # fmt: skip
    """The launches, one step a kernel, one segment a run of them."""
    runs = [_segment(segment, plan, scheduled, threads) for segment in segments(plan)]
    first = preparation(plan)
    if first is not None:
        runs += [_segment(first, plan, scheduled, threads), samples_text(plan, layout)]
    steps = [
        _function(f"litz_step_{k}", [_run((k,), scheduled, threads)]) for k in range(len(scheduled))
    ]
    return "\n".join([RUNTIME, _launches(plan, scheduled, names, layout), *steps, *runs])


def _launches(
    plan: Plan, scheduled: list[ScheduledKernel], names: list[str], layout: dict[str, int]
) -> str:
    """What each kernel is called with: a table's entry, or -1 - offset for a place in the arena."""
    lines, entries = [], []
    for k, (kernel, name) in enumerate(zip(scheduled, names, strict=True)):
        slots = [(b.name, plan.slots.get(b.name)) for b in kernel.arguments]
        places = [layout[n] if n in layout or slot is None else -1 - slot.offset
                  for n, slot in slots]  # fmt: skip
        places += [layout[f"size {symbol.attr[0]}"] for symbol in kernel.sizes]
        count, numbers = len(places), ", ".join(f"i64 {place}" for place in places)
        lines.append(f"@litz_places_{k} = private constant [{count} x i64] [{numbers}]")
        entries.append(
            f"%litz.launch {{ ptr @{name}, ptr @litz_places_{k}, i64 {count}, "
            f"i64 {_given(kernel.task_count, f'tasks {k}', layout)}, "
            f"i64 {_given(_work(kernel), f'work {k}', layout)} }}"
        )
    held = f"[{len(entries)} x %litz.launch] [{', '.join(entries)}]"
    return "\n".join([*lines, f"@litz_launches = private constant {held}", ""])


def _given(number: Expr, name: str, layout: dict[str, int]) -> int:
    """A number, or -1 - the table's entry that holds it."""
    return number.number if number.is_const else -1 - layout[name]


def _work(kernel: ScheduledKernel) -> Expr:
    """In parts of what is worth a thread; it grows with the tasks and with the points of each."""
    points, grain = kernel.choice.points, kernel.choice.grain
    if kernel.task_count.is_const and points.is_const:
        return integer(min(max(UNIT * kernel.tasks // grain, 1), MOST_WORK))
    units = product((integer(UNIT), kernel.task_count, points))
    parts = floordiv(units, integer(max(grain * points.hint, 1)))
    return apply("min", apply("max", parts, ONE), integer(MOST_WORK))


def _run(batch: tuple[int, ...], scheduled: list[ScheduledKernel], threads: int) -> str:
    """Kernels of successive numbers, as one launch."""
    pointers = sum(len(scheduled[k].arguments) + len(scheduled[k].sizes) + 1 for k in batch)
    first = f"getelementptr (%litz.launch, ptr @litz_launches, i64 {batch[0]})"
    return (
        f"  call void @litz_run(ptr %table, ptr {first}, i64 {len(batch)}, i64 {pointers}, "
        f"i32 {threads})"
    )


def _segment(segment: Segment, plan: Plan, scheduled: list[ScheduledKernel], threads: int) -> str:
    inside = set(segment.kernels)
    batches = plan.batches or [(k,) for k in segment.kernels]
    calls = [_run(batch, scheduled, threads) for batch in batches if inside.issuperset(batch)]
    return _function(segment.name, calls)


def _function(name: str, calls: list[str]) -> str:
    return "\n".join([f"define void @{name}(ptr %table) #0 {{", *calls, "  ret void", "}", ""])
