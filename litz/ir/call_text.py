"""The text of a call: what traces show of a `CallPlan`, and what `ir/call_parse.py` reads back.

In: a `CallPlan`. Out: text, one statement a line, with the statements of `ir/text.py` where they
fit. Indentation is for the reader alone. For x + 1, the whole text:

    call on cpu:
      buffer x: f32[8]
      buffer y: f32[8]
      memory 0, 0                                           arena, and without reuse
      entry 'x', 2                                          of the table
      entry 'y', 3
      kernel k0_add(reads=(x,), writes=(y,))
        origin 'add', 'aten.add.Tensor', 'model.py:3'
        summary 'rows 8, 1 phases, 8 lanes'
        launch litz_0_add(x, y)
      segment litz_segment_0((0,))                          a batch of one kernel
      body:
        input x, 'layout'
        points 'x', 'y'
        point x
        allocate y, 'output'
        run litz_segment_0
        output y
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from litz.ir.call_plan import (
    Allocate,
    Body,
    Call,
    CallPlan,
    Free,
    KernelCall,
    Launch,
    NanCheck,
    Partition,
    Prepack,
    Recording,
    Refresh,
    Reuse,
    Run,
    RunPartition,
    Segment,
    SetPointer,
    Step,
)
from litz.ir.expr import Expr
from litz.ir.index import ONE
from litz.ir.program import Buffer, Extern, Origin, ViewArg
from litz.ir.text import (
    declared,
    extern_statement,
    name_text,
    operand_text,
    size_lines,
    tuple_text,
    whole_text,
)


def call_text(call: CallPlan) -> str:
    """A whole call."""
    given, steps = list(_buffers(call)), call.calls
    numbers = [*call.computed.values(), *(unit for unit, _ in call.regions), *_numbers(call)]
    slots = [slot.unit for _, slot in call.intermediates]
    lines = size_lines(given, steps, [*numbers, *slots])
    lines += [f"buffer {declared(b)}" for b in given]
    lines += [f"constant {_ref(b)}" for b in call.constants]
    lines += [f"opaque {one.number}, {one.reason!r}" for one in call.opaque]
    lines.append(f"memory {call.arena_bytes}, {call.unplanned_bytes}")
    lines += [f"region {whole_text(unit)}, {count}" for unit, count in call.regions]
    for buffer, slot in call.intermediates:
        lines.append(f"slot {_ref(buffer)}, {slot.offset}, {slot.bytes}, {whole_text(slot.unit)}")
    for name, entry in call.table.items():
        value = call.computed.get(name)
        lines.append(
            f"entry {name!r}, {entry}" + ("" if value is None else f", {whole_text(value)}")
        )
    lines += [f"handle {name!r}, {entry}" for name, entry in call.handles.items()]
    lines += [f"check {site}" for site in call.sites]
    for kernel in call.kernels:
        lines += _kernel_lines(kernel)
    lines += [f"segment {_segment_text(s)}" for s in call.segments]
    lines += _prepack_lines(call.prepack)
    lines += _recording_lines(call.recording)
    lines += ["body:", *_indented(_body_lines(call.body))]
    if call.driver is not None:
        lines += ["driver:", *_indented(_body_lines(call.driver))]
    for part in call.partitions:
        lines += _partition_lines(part)
    for d in call.decisions:
        lines.append(f"decision {d.action!r}, {d.producer!r}, {d.consumer!r}, {d.reason!r}")
    return "\n".join([f"call on {call.device}:", *_indented(lines), ""])


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _ref(buffer: Buffer) -> str:
    return name_text(buffer.name)


def _refs(buffers: Iterable[Buffer]) -> str:
    return tuple_text([_ref(b) for b in buffers])


def _bodies(call: CallPlan) -> Iterator[Body]:
    yield call.body
    yield from (call.driver,) if call.driver is not None else ()
    yield from (part.body for part in call.partitions)


def _buffers(call: CallPlan) -> Iterator[Buffer]:
    """Every buffer, once each, in order."""
    found: dict[Buffer, None] = dict.fromkeys(call.constants)
    for body in _bodies(call):
        found |= dict.fromkeys(body.buffers)
        found |= dict.fromkeys(b for step in body.steps for b in _touched(step))
        found |= dict.fromkeys(o.value.buffer for o in body.outputs if isinstance(o.value, ViewArg))
    if call.prepack is not None:
        made = call.prepack
        found |= dict.fromkeys((*made.makes, *made.sources, *made.constants))
        found |= dict.fromkeys(b for op in made.calls for b in (*op.reads, *op.writes))
    for kernel in call.kernels:
        found |= dict.fromkeys((*kernel.reads, *kernel.writes))
    found |= dict.fromkeys(buffer for buffer, _ in call.intermediates)
    yield from found


def _touched(step: Step) -> Iterator[Buffer]:
    match step:
        case SetPointer() | Allocate() | NanCheck():
            yield step.buffer
        case Reuse():
            yield from (step.buffer, step.before)
        case Free():
            yield from step.buffers
        case Call():
            yield from (*step.op.reads, *step.op.writes)
        case RunPartition():
            yield from (b for b in (*step.takes, *step.gives) if isinstance(b, Buffer))


def _numbers(call: CallPlan) -> Iterator[Any]:
    """Operands that may mention sizes, besides buffers and calls."""
    for body in _bodies(call):
        yield from body.symbols
        yield from (i.value for i in body.inputs if isinstance(i.value, Expr))
        yield from (o.value for o in body.outputs)
        for step in body.steps:
            if isinstance(step, (Call, RunPartition)):
                yield from step.defines
            if isinstance(step, Allocate):
                yield step.output_view
    for launch in (one for kernel in call.kernels for one in kernel.launches):
        yield from (*launch.sizes, launch.tasks, launch.work)


# -- kernels -----------------------------------------------------------------------------------


def _kernel_lines(kernel: KernelCall) -> Iterator[str]:
    checks = ", checks=True" if kernel.checks else ""
    sides = f"reads={_refs(kernel.reads)}, writes={_refs(kernel.writes)}{checks}"
    yield f"kernel {name_text(kernel.name)}({sides})"
    yield from _indented(map(_origin_line, kernel.origins))
    yield from _indented(f"summary {line!r}" for line in kernel.summary)
    yield from _indented(f"launch {_launch_text(launch)}" for launch in kernel.launches)


def _origin_line(origin: Origin) -> str:
    return f"origin {origin.node!r}, {origin.op!r}, {origin.line!r}"


def _launch_text(launch: Launch) -> str:
    given = [name_text(name) for name in launch.arguments]
    if launch.sizes:
        given.append(f"sizes={tuple_text([whole_text(n) for n in launch.sizes])}")
    if launch.tasks is not ONE:
        given.append(f"tasks={whole_text(launch.tasks)}")
    if launch.work is not ONE:
        given.append(f"work={whole_text(launch.work)}")
    given += [f"warps={launch.warps}"] if launch.warps else []
    given += ["scratch=True"] if launch.scratch else []
    return f"{name_text(launch.function)}({', '.join(given)})"


def _segment_text(segment: Segment) -> str:
    batches = [tuple_text([str(k) for k in batch]) for batch in segment.batches]
    return f"{segment.name}({', '.join(batches)})"


def _prepack_lines(prepack: Prepack | None) -> Iterator[str]:
    if prepack is None:
        return
    yield f"prepack {_segment_text(prepack.segment)}"
    yield f"  makes {_refs(prepack.makes)}"
    yield f"  sources {_refs(prepack.sources)}"
    yield f"  constants {_refs(prepack.constants)}"
    yield f"  final {prepack.final}"
    for op in prepack.calls:
        yield from _indented(_extern_lines(op))


# -- bodies ------------------------------------------------------------------------------------


def _body_lines(body: Body) -> Iterator[str]:
    for item in body.inputs:
        if isinstance(item.value, Expr):
            yield f"given {whole_text(item.value)}"
        else:
            tangent = ", True" if item.tangent else ""
            yield f"input {_ref(item.value)}, {item.check!r}{tangent}"
    if body.symbols:
        yield f"symbols {', '.join(map(whole_text, body.symbols))}"
    if body.enters:
        yield f"enters {', '.join(map(repr, body.enters))}"
    if body.points:
        yield f"points {', '.join(map(repr, sorted(body.points)))}"
    for step in body.steps:
        yield from _step_lines(step)
    yield from (f"output {operand_text(o.value)}" for o in body.outputs)


def _step_lines(step: Step) -> Iterator[str]:
    match step:
        case SetPointer():
            yield f"point {_ref(step.buffer)}"
        case Refresh():
            yield "refresh"
        case Allocate():
            shown = "" if step.output_view is None else f", {_view_text(step.output_view)}"
            yield f"allocate {_ref(step.buffer)}, {step.kind!r}{shown}"
        case Run():
            yield f"run {step.segment}"
        case Call():
            yield from _extern_lines(step.op)
            if step.defines:
                yield f"  defines {', '.join(map(whole_text, step.defines))}"
            if step.enters:
                yield f"  unbacked {', '.join(map(repr, step.enters))}"
        case Reuse():
            yield f"reuse {_ref(step.buffer)}, {_ref(step.before)}"
        case Free():
            yield f"free {', '.join(map(_ref, step.buffers))}"
        case NanCheck():
            yield f"nan_check {_ref(step.buffer)}, {step.where!r}, {step.allow_inf!r}"
        case RunPartition():
            takes, gives = (
                tuple_text([_ref(v) if isinstance(v, Buffer) else operand_text(v) for v in values])
                for values in (step.takes, step.gives)
            )
            yield f"partition {step.number}, {takes}, {gives}"
            if step.defines:
                yield f"  defines {', '.join(map(whole_text, step.defines))}"


def _view_text(view: ViewArg) -> str:
    shape, strides = (tuple_text([whole_text(n) for n in v]) for v in (view.shape, view.strides))
    return f"view({_ref(view.buffer)}, {shape}, {strides}, {whole_text(view.offset)})"


def _extern_lines(op: Extern) -> Iterator[str]:
    yield extern_statement(op)
    yield from ["  into"] if op.into else []
    yield from ["  ordered"] if op.ordered else []
    yield from _indented(map(_origin_line, op.origins))


# -- CUDA graphs -------------------------------------------------------------------------------


def _recording_lines(recording: Recording | None) -> Iterator[str]:
    if recording is None:
        return
    facts = (recording.asked, recording.runs, recording.cpu_scalars, recording.returns_input_alias)
    yield f"recording {', '.join(map(repr, facts))}"
    for skip in recording.skips:
        o = skip.origin
        origin = "" if o is None else f", {o.node!r}, {o.op!r}, {o.line!r}"
        yield f"  skip {skip.why!r}{origin}"
    yield from (f"  range {r.first}, {r.last}, {r.recorded}" for r in recording.ranges)


def _partition_lines(part: Partition) -> Iterator[str]:
    kernels = tuple(sorted(part.kernels))
    yield f"partition_body {part.recorded}, {kernels!r}, {part.parent_outputs!r}"
    yield from _indented(_body_lines(part.body))
