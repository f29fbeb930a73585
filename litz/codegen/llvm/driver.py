"""The driver: native functions that launch kernels, so that Python makes one call for many.

In: a `CallPlan`. Out: LLVM IR text. Every driver function takes the table: one pointer each for the
error record, the arena and the buffers that live outside it. A launch is data: `@litz_launches[k]`
holds the function of kernel k, where its arguments lie and how much work it is. `@litz_run` runs
several launches as one: their work lies end to end and is cut into one share for each thread.
`@litz_segment_j(table)` runs the kernels between two ATen calls, batch by batch; a graph of many
segments has one function `@litz_segment(j, table)`. `@litz_step(k, table)` runs kernel k. Threads
are OpenMP's, from the library that torch has loaded: both share one pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain

from litz.codegen.llvm.change_detection import change_detection_text
from litz.codegen.llvm.launch import RUNTIME, UNIT
from litz.ir.call_plan import CallPlan, KernelCall, Launch, Segment
from litz.ir.expr import Expr, apply, integer, rebuild, transform
from litz.ir.index import ONE, ZERO, floordiv, size_product
from litz.ir.scheduled import ScheduledKernel
from litz.ir.sizes import roots
from litz.ir.source import NUMBERED_SEGMENT, NUMBERED_STEP, Source
from litz.target import CpuTarget

# Words of the stack that one `@litz_run` may take: its arguments and its `%litz.call`s.
MOST_WORDS = 1 << 12
WORDS_OF_CALL = 4  # of `%litz.call`

# The work of one launch is capped here: a finer measure would not change any thread's share.
MOST_WORK = 1 << 20

# Segments up to here are functions of their own. Python calls one 0.2 us sooner than one of many by
# its number, but LLVM takes 0.45 ms to compile it.
MAX_SEGMENT_FUNCTIONS = 32

# Functions that a driver with prepacked weights has beside its segments.
PREPACK_EXPORTS = ("litz_changed", "litz_fingerprint")


def launches_of(main: ScheduledKernel, functions: Sequence[str]) -> tuple[Launch, ...]:
    """A launch for each variant of a kernel, by ranges of its measure; one if it has none."""
    if not main.variants:
        return (_launch(main, functions[0], main.task_count, _work(main), main.sizes),)
    known = {str(n.attr[0]): n for n in roots(*main.sizes, main.measure)}
    found: list[Launch] = []
    ends = [v.begins for v in main.variants[1:]]
    for variant, function, end in zip(main.variants, functions, [*ends, None], strict=True):
        version = variant.scheduled
        here = apply("ge", main.measure, integer(variant.begins))
        if end is not None:
            here = apply("and", here, apply("lt", main.measure, integer(end)))
        tasks, work = (
            apply("where", here, over_graph_sizes(n, known), ZERO)
            for n in (version.task_count, _work(version))
        )
        sizes = tuple(over_graph_sizes(symbol, known) for symbol in version.sizes)
        found.append(_launch(version, function, tasks, work, sizes))
    return tuple(found)


def _launch(
    version: ScheduledKernel, function: str, tasks: Expr, work: Expr, sizes: tuple[Expr, ...]
) -> Launch:
    return Launch(function, tuple(b.name for b in version.arguments), sizes, tasks, work)


def over_graph_sizes(number: Expr, known: dict[str, Expr]) -> Expr:
    """A variant's number in terms of the graph's sizes, from which its own differ only in hints."""

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
    numbered = len(call.segments) > MAX_SEGMENT_FUNCTIONS
    exports = [NUMBERED_SEGMENT] if numbered else [s.name for s in call.segments]
    exports.append(NUMBERED_STEP)
    if call.prepack is not None:
        exports += [call.prepack.segment.name, *PREPACK_EXPORTS]
    whole = "\n".join([source.text, *lines, ""])
    return replace(source, text=whole, exports=tuple(exports))


def driver_text(call: CallPlan, threads: int) -> str:
    """Launches and batches as data; functions that run a step, a segment, the prepacking."""
    steps = [_batch((k,), call) for k in range(len(call.kernels))]
    prepack = call.prepack
    segments = [*call.segments, *([] if prepack is None else [prepack.segment])]
    held = [_batches(segment, call) for segment in segments]
    firsts = accumulate(map(len, held), initial=len(steps))
    places = [(first, len(own)) for first, own in zip(firsts, held, strict=False)]
    data = [_launches(call), _array("litz_batches", "%litz.batch", [*steps, *chain(*held)])]
    functions = [_numbered_step(threads)]
    if len(call.segments) > MAX_SEGMENT_FUNCTIONS:
        functions.append(_numbered_segment(places[: len(call.segments)], threads))
        segments, places = segments[len(call.segments) :], places[len(call.segments) :]
    functions += [_segment(s.name, *at, threads) for s, at in zip(segments, places, strict=True)]
    if prepack is not None:
        functions.append(change_detection_text(prepack.sources, call.table))
    return "\n".join([RUNTIME, *data, *functions])


def _launches(call: CallPlan) -> str:
    """The launch table: each argument is an entry of the table, or -1 - its offset in the arena."""
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
    return "\n".join([*lines, _array("litz_launches", "%litz.launch", entries), ""])


def _array(name: str, kind: str, entries: Sequence[str]) -> str:
    """Constant data that only the driver sees."""
    return f"@{name} = private constant [{len(entries)} x {kind}] [{', '.join(entries)}]"


def _given(number: Expr, name: str, table: dict[str, int]) -> int:
    """A number, or -1 - the table's entry that holds it."""
    return number.number if number.is_const else -1 - table[name]


def _work(kernel: ScheduledKernel) -> Expr:
    """In multiples of 1/`UNIT` of the work worth a thread: tasks times the points of each."""
    points, grain = kernel.choice.points, kernel.choice.grain
    if kernel.task_count.is_const and points.is_const:
        return integer(min(max(UNIT * kernel.tasks // grain, 1), MOST_WORK))
    units = size_product((integer(UNIT), kernel.task_count, points))
    parts = floordiv(units, integer(max(grain * points.hint, 1)))
    return apply("min", apply("max", parts, ONE), integer(MOST_WORK))


def _pointers(launches: Sequence[Launch]) -> int:
    """How many pointers the arguments of these launches take."""
    return sum(len(launch.arguments) + len(launch.sizes) + 1 for launch in launches)


def _in_parts(batch: tuple[int, ...], kernels: Sequence[KernelCall]) -> list[tuple[int, ...]]:
    """A batch in parts whose arguments fit on the stack. It may be cut anywhere: its kernels
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


def _batch(run: tuple[int, ...], call: CallPlan, checks: bool = False) -> str:
    """Kernels of successive numbers, as one launch."""
    launches = [launch for k in run for launch in call.kernels[k].launches]
    first, pointers = call.first_launch[run[0]], _pointers(launches)
    numbers = (first, len(launches), pointers, int(checks))
    return f"%litz.batch {{ {', '.join(f'i64 {n}' for n in numbers)} }}"


def _batches(segment: Segment, call: CallPlan) -> list[str]:
    """Batch by batch; behind a failed check no other runs, so that inputs keep their values."""
    found: list[str] = []
    for batch in segment.batches:
        *parts, last = _in_parts(batch, call.kernels)
        found += [_batch(part, call) for part in parts]
        found.append(_batch(last, call, checks=any(call.kernels[k].checks for k in batch)))
    return found


def _call(batches: str, count: str, threads: int) -> str:
    given = f"ptr %table, ptr @litz_launches, ptr {batches}, i64 {count}, i32 {threads}"
    return f"  call void @litz_run_batches({given})"


def _numbered_step(threads: int) -> str:
    """The first batches are one kernel each."""
    return f"""
define void @{NUMBERED_STEP}(i64 %number, ptr %table) #0 {{
  %batch = getelementptr %litz.batch, ptr @litz_batches, i64 %number
{_call("%batch", "1", threads)}
  ret void
}}
"""


def _numbered_segment(places: Sequence[tuple[int, int]], threads: int) -> str:
    """One function for all segments, each the first of its batches and how many there are."""
    pairs = [f"[2 x i64] [i64 {first}, i64 {count}]" for first, count in places]
    return f"""
{_array("litz_segments", "[2 x i64]", pairs)}
define void @{NUMBERED_SEGMENT}(i64 %number, ptr %table) #0 {{
  %first.at = getelementptr [2 x i64], ptr @litz_segments, i64 %number, i32 0
  %first = load i64, ptr %first.at
  %count.at = getelementptr [2 x i64], ptr @litz_segments, i64 %number, i32 1
  %count = load i64, ptr %count.at
  %batches = getelementptr %litz.batch, ptr @litz_batches, i64 %first
{_call("%batches", "%count", threads)}
  ret void
}}
"""


def _segment(name: str, first: int, count: int, threads: int) -> str:
    batches = f"getelementptr (%litz.batch, ptr @litz_batches, i64 {first})"
    return f"""
define void @{name}(ptr %table) #0 {{
{_call(batches, str(count), threads)}
  ret void
}}
"""
