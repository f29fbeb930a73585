"""The driver: native functions that launch kernels, so that Python makes one call for many.

In: a `Plan`, the function of each kernel. Out: LLVM IR text. Every driver function takes the table:
one pointer each for the error record, the arena and the buffers that live outside it. What a launch
needs is data: `@litz_launches[k]` holds the function of kernel k, where its arguments lie and how
much work it is. `@litz_run` runs a few of them as one: their work end to end, cut into a piece for
each thread. `@litz_step_k` runs kernel k; `@litz_segment_j` the kernels between two ATen calls,
batch by batch. Threads are OpenMP's, from the very library torch runs on: both share one pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from litz.codegen.llvm.contents import contents_text
from litz.codegen.llvm.launch import RUNTIME, UNIT
from litz.ir.expr import Expr, apply, integer, rebuild, transform
from litz.ir.index import ONE, ZERO, floordiv, product
from litz.ir.lifetimes import cuts
from litz.ir.program import Extern, Kernel, Plan, Slot
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import roots
from litz.ir.source import ARENA, Segment

# Words of the stack that a run of several kernels may take: its arguments, and what it calls.
MOST_WORDS = 1 << 12
WORDS_OF_CALL = 4  # of `%litz.call`

# The work of one launch is counted up to here: finer pieces would not be cut differently.
MOST_WORK = 1 << 20


@dataclass(frozen=True)
class Launch:
    """A function that a kernel may run: of several, all but one have no tasks at a call, and their
    own sizes have other hints than the graph's, `sizes`."""

    kernel: ScheduledKernel
    function: str
    tasks: Expr
    work: Expr
    sizes: tuple[Expr, ...] = ()


# The launches of each kernel of a graph.
Launches = Sequence[Sequence[Launch]]


def launches_of(main: ScheduledKernel, functions: Sequence[str]) -> list[Launch]:
    """One of a kernel that has one way to run; else one for each way, by a measure of its sizes."""
    if not main.variants:
        return [Launch(main, functions[0], main.task_count, _work(main))]
    known = {str(n.attr[0]): n for n in roots(*main.sizes, main.measure)}
    found: list[Launch] = []
    ends = [v.begins for v in main.variants[1:]]
    for variant, function, end in zip(main.variants, functions, [*ends, None], strict=True):
        way = variant.scheduled
        here = apply("ge", main.measure, integer(variant.begins))
        if end is not None:
            here = apply("and", here, apply("lt", main.measure, integer(end)))
        tasks, work = (
            apply("where", here, as_seen(n, known), ZERO) for n in (way.task_count, _work(way))
        )
        found.append(Launch(way, function, tasks, work, main.sizes))
    return found


def as_seen(number: Expr, known: dict[str, Expr]) -> Expr:
    """A number of a variant over the sizes of the graph: they differ in their hints alone."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op == "size" and not args:
            return known[str(node.attr[0])]
        return rebuild(node, args)

    return transform(number, change)


def preparation(plan: Plan) -> Segment | None:
    """The kernels that make what is held of parameters; calls may pack it further."""
    if not plan.graph.prepared:
        return None
    return Segment("litz_prepare", tuple(range(_prepared_kernels(plan))))


def _prepared_kernels(plan: Plan) -> int:
    return sum(isinstance(step, Kernel) for step in plan.graph.body[: plan.graph.prepared])


def segments(plan: Plan) -> list[Segment]:
    """Runs of kernels between extern calls, behind the preparation; some are cut."""
    runs: list[list[int]] = [[]]
    kernel, cut = _prepared_kernels(plan), cuts(plan)
    for position, step in enumerate(plan.graph.body):
        if position < plan.graph.prepared:
            continue
        if position in cut or isinstance(step, Extern):
            runs.append([])
        if isinstance(step, Kernel):
            runs[-1].append(kernel)
            kernel += 1
    named = enumerate(run for run in runs if run)
    return [Segment(f"litz_segment_{k}", tuple(run)) for k, run in named]


def table_layout(plan: Plan, computed: dict[str, Expr]) -> dict[str, int]:
    """The table's entry for each buffer outside the arena that a kernel or the caller touches, for
    each that moves about in it, and for each number that only a call knows."""
    moving = [name for name, slot in plan.slots.items() if moves(slot)]
    names = [*(b.name for b in plan.outside), *moving, *computed]
    return {name: k + ARENA + 1 for k, name in enumerate(names)}


def moves(slot: Slot) -> bool:
    """Whether a place in the arena depends on sizes: all but the first region do."""
    return slot.unit is not ONE


def computed_numbers(launches: Launches) -> dict[str, Expr]:
    """What kernels need and only a call knows: sizes, and the tasks and work of each."""
    found: dict[str, Expr] = {}
    for ways in launches:
        many = len(ways) > 1  # then their sizes have hints of their own
        given = (n for way in ways if many for n in (way.tasks, *way.sizes))
        known = {str(n.attr[0]): n for n in roots(*given)}
        for symbol in (symbol for way in ways for symbol in way.kernel.sizes):
            found[f"size {symbol.attr[0]}"] = as_seen(symbol, known) if many else symbol
    for k, way in enumerate(chain.from_iterable(launches)):
        if not way.tasks.is_const:
            found[f"tasks {k}"] = way.tasks
        if not way.work.is_const:
            found[f"work {k}"] = way.work
    return found


def driver_text(
    plan: Plan, launches: Launches, layout: dict[str, int], threads: int,
    may_fail: frozenset[int] = frozenset(),
) -> str:  # fmt: skip
    """The launches, one step a kernel, one segment a run of them."""
    runs = [_segment(segment, plan, launches, threads, may_fail) for segment in segments(plan)]
    first = preparation(plan)
    if first is not None:
        runs += [_segment(first, plan, launches, threads, may_fail), contents_text(plan, layout)]
    steps = [
        _function(f"litz_step_{k}", [_run((k,), launches, threads)]) for k in range(len(launches))
    ]
    return "\n".join([RUNTIME, _launches(plan, launches, layout), *steps, *runs])


def _launches(plan: Plan, launches: Launches, layout: dict[str, int]) -> str:
    """What each kernel is called with: a table's entry, or -1 - offset for a place in the arena."""
    lines, entries = [], []
    for k, way in enumerate(chain.from_iterable(launches)):
        kernel = way.kernel
        slots = [(b.name, plan.slots.get(b.name)) for b in kernel.arguments]
        places = [layout[n] if n in layout or slot is None else -1 - slot.offset
                  for n, slot in slots]  # fmt: skip
        places += [layout[f"size {symbol.attr[0]}"] for symbol in kernel.sizes]
        count, numbers = len(places), ", ".join(f"i64 {place}" for place in places)
        lines.append(f"@litz_places_{k} = private constant [{count} x i64] [{numbers}]")
        entries.append(
            f"%litz.launch {{ ptr @{way.function}, ptr @litz_places_{k}, i64 {count}, "
            f"i64 {_given(way.tasks, f'tasks {k}', layout)}, "
            f"i64 {_given(way.work, f'work {k}', layout)} }}"
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


def _pointers(ways: Sequence[Launch]) -> int:
    """The arguments of some functions."""
    return sum(len(way.kernel.arguments) + len(way.kernel.sizes) + 1 for way in ways)


def _in_parts(batch: tuple[int, ...], launches: Launches) -> list[tuple[int, ...]]:
    """A batch as runs of as many kernels as fit on the stack. It may be cut anywhere: its kernels
    do not depend on each other."""
    parts: list[list[int]] = [[]]
    words = 0
    for k in batch:
        own = _pointers(launches[k]) + WORDS_OF_CALL * len(launches[k])
        if parts[-1] and words + own > MOST_WORDS:
            parts.append([])
            words = 0
        parts[-1].append(k)
        words += own
    return [tuple(part) for part in parts]


def _run(batch: tuple[int, ...], launches: Launches, threads: int) -> str:
    """Kernels of successive numbers, as one launch."""
    ways = [way for k in batch for way in launches[k]]
    pointers = _pointers(ways)
    before = sum(len(each) for each in launches[: batch[0]])
    first = f"getelementptr (%litz.launch, ptr @litz_launches, i64 {before})"
    return (
        f"  call void @litz_run(ptr %table, ptr {first}, i64 {len(ways)}, i64 {pointers}, "
        f"i32 {threads})"
    )


def _segment(
    segment: Segment, plan: Plan, launches: Launches, threads: int, may_fail: frozenset[int]
) -> str:
    """Batch by batch; behind a failed check no other runs, so that inputs keep their values."""
    inside = set(segment.kernels)
    batches = plan.batches or [(k,) for k in segment.kernels]
    lines: list[str] = []
    for batch in (batch for batch in batches if inside.issuperset(batch)):
        lines += [_run(part, launches, threads) for part in _in_parts(batch, launches)]
        if may_fail.intersection(batch) and batch[-1] != segment.kernels[-1]:
            lines += _stop_if_failed(batch[0])
    return _function(segment.name, lines)


def _stop_if_failed(number: int) -> list[str]:
    return [
        f"  %record{number} = load ptr, ptr %table",
        f"  %site{number} = load i64, ptr %record{number}",
        f"  %failed{number} = icmp ne i64 %site{number}, 0",
        f"  br i1 %failed{number}, label %stop{number}, label %go{number}",
        f"stop{number}:",
        "  ret void",
        f"go{number}:",
    ]


def _function(name: str, calls: list[str]) -> str:
    return "\n".join([f"define void @{name}(ptr %table) #0 {{", *calls, "  ret void", "}", ""])
