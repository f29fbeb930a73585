"""The laws of calls, checked before anything is printed from one.

In: a `CallPlan`. Out: nothing, or a `VerifyError` that shows the broken law and the step. A call
that was read from a file may be anything that the grammar allows.

    kernels   each belongs to one segment; its arguments have a place in the table or in the arena
    numbers   the numbers of the table are computed, each before a kernel needs it
    tensors   a step uses tensors that exist: inputs, allocated ones or results, not freed yet
    segments  each that a body runs exists, and runs once
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

from litz.errors import VerifyError
from litz.ir.call_plan import (
    Allocate,
    Body,
    Call,
    CallPlan,
    Free,
    NanCheck,
    Reuse,
    Run,
    RunPartition,
    SetPointer,
    Step,
)
from litz.ir.index import ZERO
from litz.ir.program import Buffer, operand_views


def verify_call(call: CallPlan) -> None:
    """Raise `VerifyError` if a call breaks a law."""
    _verify_kernels(call)
    _Walk(call, call.body).verify(call.segment)
    if call.driver is not None:
        _Walk(call, call.driver).verify(())
    for part in call.partitions:
        own = [s.name for s in call.segments if part.kernels.issuperset(s.kernels)]
        _Walk(call, part.body).verify(own)


def _verify_kernels(call: CallPlan) -> None:
    segments = [*call.segments, *([call.prepack.segment] if call.prepack is not None else [])]
    run = Counter(k for segment in segments for k in segment.kernels)
    for number, kernel in enumerate(call.kernels):
        if run[number] != 1:
            _broken(f"kernel {kernel.name} belongs to {run[number]} segments")
        for launch in kernel.launches:
            sizes = (f"size {symbol.attr[0]}" for symbol in launch.sizes)
            for name in (*launch.arguments, *sizes):
                if name not in call.table and name not in call.slots:
                    _broken(f"kernel {kernel.name} is given {name}, which has no place")
    for number in run.keys() - range(len(call.kernels)):
        _broken(f"a segment runs kernel {number}, which is not there")
    for name in call.computed.keys() - call.table.keys():
        _broken(f"{name} is computed and has no entry in the table")


class _Walk:
    """The steps of one body in order."""

    def __init__(self, call: CallPlan, body: Body) -> None:
        self.call, self.body = call, body
        made = call.prepack.makes if call.prepack is not None else ()
        given = (*body.buffers, *call.constants, *made)
        self.there = {b.name for b in given} | call.slots.keys()
        self.entered: set[str] = set()
        self.run: Counter[str] = Counter()

    def verify(self, segments: Iterable[str]) -> None:
        self._enter(self.body.enters)
        for step in self.body.steps:
            self._step(step)
        for output in self.body.outputs:
            self._need((v.buffer for v in operand_views(output.value)), "an output")
        wanted = set(segments)
        if set(self.run) != wanted or any(n != 1 for n in self.run.values()):
            _broken(f"segments {sorted(wanted)} are to run once each, and {dict(self.run)} do")

    def _step(self, step: Step) -> None:
        match step:
            case SetPointer() | NanCheck():
                self._need([step.buffer], step)
            case Allocate():
                self.there.add(step.buffer.name)
            case Reuse():
                self._need([step.before], step)
                self.there.add(step.buffer.name)
            case Free():
                self._need(step.buffers, step)
                self.there.difference_update(b.name for b in step.buffers)
            case Run():
                self._run(step)
            case Call():
                op = step.op
                self._need(op.reads, step)
                self._need((b for b in op.outputs if b is not None and op.into), step)
                self.there.update(b.name for b in op.outputs if b is not None)
                self._enter(step.enters)
            case RunPartition():
                if not 0 <= step.number < len(self.call.partitions):
                    _broken(f"there is no partition {step.number}")
                self._need((b for b in step.takes if isinstance(b, Buffer)), step)
                self.there.update(b.name for b in step.gives if isinstance(b, Buffer))

    def _enter(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.call.computed:
                _broken(f"{name} is entered into the table, and nothing computes it")
            self.entered.add(name)

    def _run(self, step: Run) -> None:
        """Every kernel of the segment has its buffers and its sizes."""
        segment = self.call.segment.get(step.segment)
        if segment is None:
            _broken(f"there is no segment {step.segment}")
        self.run[step.segment] += 1
        for kernel in (self.call.kernels[k] for k in segment.kernels):
            self._need((*kernel.reads, *kernel.writes), f"kernel {kernel.name}")
            sizes = {f"size {n.attr[0]}" for launch in kernel.launches for n in launch.sizes}
            for name in sizes - self.entered:
                _broken(f"kernel {kernel.name} runs before {name} is known")

    def _need(self, buffers: Iterable[Buffer], who: object) -> None:
        """Require buffers to exist, except those without elements, which no kernel accesses."""
        for buffer in buffers:
            if buffer.name not in self.there and ZERO not in buffer.shape:
                _broken(f"{buffer} is used by {who} where there is no tensor of that name")


def _broken(law: str) -> NoReturn:
    raise VerifyError(f"{law}\n  in     the plan of a call")
