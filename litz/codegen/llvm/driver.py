"""The driver: native functions that launch kernels, so that Python makes one call for many.

In: a `CallPlan`. Out: LLVM IR text. Every driver function takes the table: one pointer each for the
error record, the arena and the buffers that live outside it. What a launch needs is data:
`@litz_launches[k]` holds the function of kernel k, where its arguments lie and how much work it is.
`@litz_run` runs a few of them as one: their work end to end, cut into a piece for each thread.
`@litz_step_k` runs kernel k; `@litz_segment_j` the kernels between two ATen calls, batch by batch.
Threads are OpenMP's, from the very library torch runs on: both share one pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from litz.codegen.llvm.contents import contents_text
from litz.codegen.llvm.launch import RUNTIME, UNIT
from litz.ir.call_plan import CallPlan, KernelCall, Launch, Segment
from litz.ir.expr import Expr, apply, integer, rebuild, transform
from litz.ir.index import ONE, ZERO, floordiv, product
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import roots
from litz.ir.source import Source
from litz.target import CpuTarget

# Words of the stack that a run of several kernels may take: its arguments, and what it calls.
MOST_WORDS = 1 << 12
WORDS_OF_CALL = 4  # of `%litz.call`

# The work of one launch is counted up to here: finer pieces would not be cut differently.
MOST_WORK = 1 << 20

# Functions that a driver with prepacked weights has beside its segments.
OF_PREPACK = ("litz_changed", "litz_fingerprint")


def launches_of(main: ScheduledKernel, functions: Sequence[str]) -> tuple[Launch, ...]:
    """One of a kernel that has one way to run; else one for each way, by a measure of its sizes."""
    if not main.variants:
        return (_launch(main, functions[0], main.task_count, _work(main), main.sizes),)
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
        sizes = tuple(as_seen(symbol, known) for symbol in way.sizes)
        found.append(_launch(way, function, tasks, work, sizes))
    return tuple(found)


def _launch(
    way: ScheduledKernel, function: str, tasks: Expr, work: Expr, sizes: tuple[Expr, ...]
) -> Launch:
    return Launch(function, tuple(b.name for b in way.arguments), sizes, tasks, work)


def as_seen(number: Expr, known: dict[str, Expr]) -> Expr:
    """A number of a variant over the sizes of the graph: they differ in their hints alone."""

    def change(node: Expr, args: tuple[Expr, ...]) -> Expr:
        if node.op == "size" and not args:
            return known[str(node.attr[0])]
        return rebuild(node, args)

    return transform(number, change)


def with_driver(source: Source, call: CallPlan, target: CpuTarget) -> Source:
    """The module with the functions that launch its kernels."""
    text = driver_text(call, target.threads)
    # Nothing may be declared twice.
    lines = [line for line in text.splitlines() if line not in source.declares]
    exports = [s.name for s in call.segments]
    exports += [f"litz_step_{k}" for k in range(len(call.kernels))]
    if call.prepack is not None:
        exports += [call.prepack.segment.name, *OF_PREPACK]
    whole = "\n".join([source.text, *lines, ""])
    return replace(source, text=whole, exports=tuple(exports))


def driver_text(call: CallPlan, threads: int) -> str:
    """The launches, one step a kernel, one segment a run of them."""
    runs = [_segment(segment, call, threads) for segment in call.segments]
    if call.prepack is not None:
        runs.append(_segment(call.prepack.segment, call, threads))
        runs.append(contents_text(call.prepack.sources, call.table))
    steps = [
        _function(f"litz_step_{k}", [_run((k,), call, threads)]) for k in range(len(call.kernels))
    ]
    return "\n".join([RUNTIME, _launches(call), *steps, *runs])


def _launches(call: CallPlan) -> str:
    """What each kernel is called with: a table's entry, or -1 - offset for a place in the arena."""
    lines, entries, table = [], [], call.table
    for k, launch in enumerate(chain.from_iterable(kernel.launches for kernel in call.kernels)):
        slots = [(name, call.slots.get(name)) for name in launch.arguments]
        places = [table[n] if n in table or slot is None else -1 - slot.offset
                  for n, slot in slots]  # fmt: skip
        places += [table[f"size {symbol.attr[0]}"] for symbol in launch.sizes]
        count, numbers = len(places), ", ".join(f"i64 {place}" for place in places)
        lines.append(f"@litz_places_{k} = private constant [{count} x i64] [{numbers}]")
        entries.append(
            f"%litz.launch {{ ptr @{launch.function}, ptr @litz_places_{k}, i64 {count}, "
            f"i64 {_given(launch.tasks, f'tasks {k}', table)}, "
            f"i64 {_given(launch.work, f'work {k}', table)} }}"
        )
    held = f"[{len(entries)} x %litz.launch] [{', '.join(entries)}]"
    return "\n".join([*lines, f"@litz_launches = private constant {held}", ""])


def _given(number: Expr, name: str, table: dict[str, int]) -> int:
    """A number, or -1 - the table's entry that holds it."""
    return number.number if number.is_const else -1 - table[name]


def _work(kernel: ScheduledKernel) -> Expr:
    """In parts of what is worth a thread; it grows with the tasks and with the points of each."""
    points, grain = kernel.choice.points, kernel.choice.grain
    if kernel.task_count.is_const and points.is_const:
        return integer(min(max(UNIT * kernel.tasks // grain, 1), MOST_WORK))
    units = product((integer(UNIT), kernel.task_count, points))
    parts = floordiv(units, integer(max(grain * points.hint, 1)))
    return apply("min", apply("max", parts, ONE), integer(MOST_WORK))


def _pointers(launches: Sequence[Launch]) -> int:
    """The arguments of some functions."""
    return sum(len(launch.arguments) + len(launch.sizes) + 1 for launch in launches)


def _in_parts(batch: tuple[int, ...], kernels: Sequence[KernelCall]) -> list[tuple[int, ...]]:
    """A batch as runs of as many kernels as fit on the stack. It may be cut anywhere: its kernels
    do not depend on each other."""
    parts: list[list[int]] = [[]]
    words = 0
    for k in batch:
        launches = kernels[k].launches
        own = _pointers(launches) + WORDS_OF_CALL * len(launches)
        if parts[-1] and words + own > MOST_WORDS:
            parts.append([])
            words = 0
        parts[-1].append(k)
        words += own
    return [tuple(part) for part in parts]


def _run(batch: tuple[int, ...], call: CallPlan, threads: int) -> str:
    """Kernels of successive numbers, as one launch."""
    launches = [launch for k in batch for launch in call.kernels[k].launches]
    pointers = _pointers(launches)
    first = f"getelementptr (%litz.launch, ptr @litz_launches, i64 {call.first_launch[batch[0]]})"
    return (
        f"  call void @litz_run(ptr %table, ptr {first}, i64 {len(launches)}, i64 {pointers}, "
        f"i32 {threads})"
    )


def _segment(segment: Segment, call: CallPlan, threads: int) -> str:
    """Batch by batch; behind a failed check no other runs, so that inputs keep their values."""
    lines: list[str] = []
    for batch in segment.batches:
        lines += [_run(part, call, threads) for part in _in_parts(batch, call.kernels)]
        if any(call.kernels[k].checks for k in batch) and batch[-1] != segment.kernels[-1]:
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
