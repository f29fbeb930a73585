"""The steps of a call, in order: allocate, free, enter pointers, run kernels, call ops.

In: a `Plan`, and a `CallContext` with its table and segments. Out: `Body`. On a CPU, memory is
saved: an output is allocated right before it is written, and a dying input freed right after it is
read. On a GPU all outputs are allocated first: torch's allocator caches freed memory anyway.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from litz.call.nan_checks import NanChecks
from litz.call.sizes import Unbacked, symbols_of
from litz.config import Config
from litz.errors import InternalError
from litz.ir.call_plan import (
    COUNTERS,
    FROZEN,
    LAYOUT,
    OUTPUT,
    RESTORE,
    TEMPORARY,
    UNCHECKED,
    WORKSPACE,
    Allocate,
    Body,
    Call,
    Free,
    Input,
    NanCheck,
    Prepack,
    Refresh,
    Reuse,
    Run,
    Segment,
    SetPointer,
    Step,
)
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.lifetimes import dying_inputs
from litz.ir.program import Buffer, Extern, Kernel, Plan, ViewArg, operand_views, read, written

TANGENT = "tangents_"  # AOTAutograd's prefix of the gradients that a backward graph takes


@dataclass(frozen=True)
class CallContext:
    """What a body depends on besides its plan. `frozen` are inputs that became constants."""

    table: dict[str, int]
    computed: dict[str, Expr]
    segments: tuple[Segment, ...]
    cuts: frozenset[int]
    device: str
    late_allocation: bool
    workspaces: tuple[Buffer, ...]
    counters: frozenset[str]
    prepack: Prepack | None
    frozen: frozenset[str]
    constants: dict[str, torch.Tensor]
    config: Config


def body_of(plan: Plan, facts: CallContext) -> tuple[Body, tuple[Buffer, ...]]:
    """The steps of a plan, and the constants that they use."""
    steps = _Steps(plan, facts)
    return steps.body(), steps.constants


class _Steps:
    """Walks the plan once. `known` are buffers outside the arena that have a tensor so far,
    `pending` outputs that have no memory yet."""

    def __init__(self, plan: Plan, facts: CallContext) -> None:
        self.plan, self.graph, self.facts = plan, plan.graph, facts
        prepack = facts.prepack
        self.final = prepack is not None and prepack.final
        body = self.graph.body[self.graph.prepack_steps :] if self.final else self.graph.body
        kernels = [step for step in body if isinstance(step, Kernel)]
        self.points = {b.name for k in kernels for b in (*read(k), *written(k))}
        if prepack is not None and not self.final:
            self.points |= {b.name for b in prepack.sources}  # their addresses are compared
        shown = [o.value.buffer for o in self.graph.outputs if isinstance(o.value, ViewArg)]
        # Final prepacked weights no longer need the constants that they were made of.
        used = {*shown, *(b for step in body for b in read(step))}
        self.constants = tuple(b for b in self.graph.constants if b in used)
        self.shown = list(dict.fromkeys(shown))
        self.unbacked = Unbacked(self.graph.unbacked)
        symbols = symbols_of(plan, facts.computed.values())
        self.symbols = tuple(s for s in symbols if not self.unbacked.concerns(s))
        self.unbacked.wait_for(symbols, facts.computed)
        self.output_view = output_layouts(plan) if facts.late_allocation else {}
        self.nan_checks = (
            NanChecks(self.graph, facts.constants) if facts.config.nan_asserts else None
        )
        self.saved = self._saved()
        touched = (b for step in self.graph.body for b in (*read(step), *written(step)))
        self.buffers = {b.name: b for b in touched}
        self.known: set[str] = set()
        self.pending: dict[str, Buffer] = {}
        self.steps: list[Step] = []

    def body(self) -> Body:
        """The whole body."""
        inputs = tuple(map(self._input, self.graph.inputs))
        given = [i.value for i in inputs if isinstance(i.value, Buffer)]
        for buffer in (*given, *self.constants):
            self.known.add(buffer.name)
            if buffer.name in self.points and buffer.name in self.facts.table:
                self.steps.append(SetPointer(buffer))
        if self.facts.prepack is not None:
            self.known |= {b.name for b in self.facts.prepack.makes}
            self.steps += [] if self.final else [Refresh()]
        self._outputs()
        self._workspaces()
        self._check_inputs([i for i in inputs if isinstance(i.value, Buffer)])
        self._walk()
        for output in self.graph.outputs:
            self._need(operand_views(output.value))
        numbers = self.facts.computed.items()
        enters = [name for name, value in numbers if not self.unbacked.concerns(value)]
        return Body(
            inputs, tuple(self.steps), self.graph.outputs, self.symbols, tuple(enters),
            frozenset(self.points),
        )  # fmt: skip

    def _input(self, value: Buffer | Expr) -> Input:
        if not isinstance(value, Buffer):
            return Input(value)
        tangent = value.name.startswith(TANGENT)
        if value.name in self.facts.frozen:
            return Input(value, FROZEN, tangent)
        if not self.facts.config.size_asserts:
            return Input(value, UNCHECKED, tangent)
        return Input(value, RESTORE if value in self.saved else LAYOUT, tangent)

    def _saved(self) -> set[Buffer]:
        """Inputs that a backward graph only reads. One that it writes to cannot be restored to its
        layout by a copy: the write must reach the tensor itself."""
        inputs = {b for b in self.graph.inputs if isinstance(b, Buffer)}
        if not any(b.name.startswith(TANGENT) for b in inputs):
            return set()
        return inputs.difference(*(written(step) for step in self.graph.body))

    # -- memory ------------------------------------------------------------------------------

    def _outputs(self) -> None:
        """Outputs that kernels (or out= ops) write: new memory at each call."""
        calls = [s for s in self.graph.body if isinstance(s, Extern) and not s.into]
        known = {*self.graph.inputs, *self.graph.constants, *(b for s in calls for b in s.outputs)}
        for buffer in (b for b in self.shown if b not in known):
            if self.unbacked.concerns(*buffer.shape, *buffer.strides):
                self.unbacked.buffers.append((buffer, OUTPUT))
            elif self.facts.late_allocation:
                self.pending[buffer.name] = buffer
            else:
                self._allocate(buffer, OUTPUT)

    def _workspaces(self) -> None:
        for buffer in self.facts.workspaces:
            if buffer.name in self.facts.counters:
                self._allocate(buffer, COUNTERS)
            elif self.unbacked.concerns(*buffer.shape):
                self.unbacked.buffers.append((buffer, WORKSPACE))
            else:
                self._allocate(buffer, WORKSPACE)

    def _allocate(self, buffer: Buffer, kind: str) -> None:
        self.known.add(buffer.name)
        self.pending.pop(buffer.name, None)
        self.steps.append(Allocate(buffer, kind, self.output_view.get(buffer.name)))

    def _allocate_unbacked(self) -> None:
        """Allocate outputs and workspaces whose unbacked sizes are now known and checked."""
        for buffer, kind in self.unbacked.ready():
            self._allocate(buffer, kind)

    def _allocate_written(self, buffer: Buffer) -> None:
        """Allocate a buffer outside the arena before a step writes it."""
        if buffer.name in self.pending:
            self._allocate(buffer, OUTPUT)
        if buffer.name in self.plan.call_allocated and buffer.name not in self.known:
            self._allocate(buffer, TEMPORARY)

    def _need(self, views: Iterable[ViewArg]) -> None:
        """Check that operands have tensors; one without elements may never have been written, and
        is allocated here."""
        for buffer in (view.buffer for view in views):
            if buffer.name in self.plan.slots or buffer.name in self.known:
                continue
            if ZERO not in buffer.shape:
                raise InternalError(f"{buffer} is read, and no step has written it")
            self._allocate(buffer, TEMPORARY)

    # -- the walk ----------------------------------------------------------------------------

    def _walk(self) -> None:
        freed = self._freed_after()
        if self.facts.late_allocation:
            for position, buffers in dying_inputs(self.plan).items():
                freed.setdefault(position, []).extend(buffers)
        first = {segment.kernels[0]: segment for segment in self.facts.segments}
        number = -1  # of the last kernel
        kernels = self.graph.kernels
        for position, step in enumerate(self.graph.body):
            number += isinstance(step, Kernel)
            if position < self.graph.prepack_steps:
                continue
            if not (isinstance(step, Extern) and step.checks):
                self._allocate_unbacked()
            if isinstance(step, Extern):
                self._call(step)
            elif number in first:
                self._run(first[number], kernels)
            dead = [b for b in freed.get(position, ()) if b.name in self.known]
            if dead:
                self.steps.append(Free(tuple(dead)))
                self.known.difference_update(b.name for b in dead)
        self._allocate_unbacked()
        for buffer in list(self.pending.values()):  # outputs that no step writes
            self._allocate(buffer, OUTPUT)

    def _freed_after(self) -> dict[int, list[Buffer]]:
        """For each step, the buffers that are dead after it: ATen's results, buffers that reuse
        their memory, and temporaries."""
        body = self.graph.body[self.graph.prepack_steps :]
        calls = [s for s in body if isinstance(s, Extern) and not s.into]
        own = (
            {b.name for s in calls for b in s.writes}
            | set(self.plan.inplace_reuse)
            | self.plan.call_allocated
        )
        own -= {b.name for b in self.shown}
        found: dict[int, list[Buffer]] = {}
        for name, position in self.plan.last_use.items():
            if name in own:
                found.setdefault(position, []).append(self.buffers[name])
        return found

    def _run(self, segment: Segment, kernels: list[Kernel]) -> None:
        """Run a segment, after giving memory to its results outside the arena: new memory, or that
        of a dead buffer (in-place reuse)."""
        own = [kernels[k] for k in segment.kernels]
        for buffer in (b for kernel in own for b in written(kernel)):
            self._allocate_written(buffer)
            before = self.plan.inplace_reuse.get(buffer.name)
            if before is not None and buffer.name not in self.known:
                self.steps.append(Reuse(buffer, self.buffers[before]))
                self.known.add(buffer.name)
        self.steps.append(Run(segment.name))
        for kernel in own:
            self._check_results(written(kernel), kernel)

    def _call(self, step: Extern) -> None:
        if step.checks:
            self.steps.append(Call(step))
            return
        self._need(operand_views((step.args, tuple(v for _, v in step.kwargs))))
        if step.into:
            for buffer in filter(None, step.outputs):
                self._allocate_written(buffer)
        self.steps.append(Call(step, *self.unbacked.known_after(b.symbol for b in step.binds)))
        self.known |= {b.name for b in step.outputs if b is not None}
        self._check_results(step.outputs, step)

    # -- NaN ---------------------------------------------------------------------------------

    def _check_inputs(self, inputs: list[Input]) -> None:
        """Check the inputs. The forward graph has checked the tensors that it saved, so that
        infinities in them are expected."""
        given = [i for i in inputs if i.check != FROZEN]
        tangents = [i for i in given if i.tangent]
        self._check_results([i.value for i in tangents or given])  # type: ignore[misc]
        rest = [i.value for i in given if tangents and not i.tangent]
        self._check_results(rest, allow_inf=True)  # type: ignore[arg-type]

    def _check_results(
        self, buffers: Iterable[Buffer | None], step: Kernel | Extern | None = None,
        allow_inf: bool = False,
    ) -> None:  # fmt: skip
        if self.nan_checks is None:
            return
        found: Iterator[NanCheck] = self.nan_checks.at(
            [b for b in buffers if b is not None], step, allow_inf
        )
        for look in found:
            self._need(operand_views(_whole(look.buffer)))
            self.steps.append(look)


def _whole(buffer: Buffer) -> ViewArg:
    return ViewArg(buffer, buffer.shape, buffer.strides, ZERO)


# -- outputs that only kernels use -----------------------------------------------------------------


def output_layouts(plan: Plan) -> dict[str, ViewArg]:
    """Outputs that only kernels use, with the view that the caller gets. Kernels need no shape, so
    that the tensor is allocated as that view."""
    graph = plan.graph
    shown = [o.value for o in graph.outputs if isinstance(o.value, ViewArg)]
    others = {*graph.inputs, *graph.constants, *(b for s in graph.externs for b in s.writes)}
    others.update(b for s in graph.externs for b in s.reads)
    counts = Counter(view.buffer for view in shown)
    return {
        view.buffer.name: view
        for view in shown
        if counts[view.buffer] == 1 and view.buffer not in others and _covers(view)
        if view.buffer.name not in plan.inplace_reuse
    }


def _covers(view: ViewArg) -> bool:
    """Whether a view shows each element of its buffer once; False if sizes are symbolic."""
    sizes = (*view.shape, *view.strides, *view.buffer.shape, *view.buffer.strides, view.offset)
    if not all(n.is_const for n in sizes):
        return False
    return view.offset is ZERO and len({n for v in (view, view.buffer) for n in _extents(v)}) == 1


def _extents(layout: ViewArg | Buffer) -> tuple[int, int]:
    """The number of elements, and the elements of storage from the first to the last."""
    steps = [(n.number, s.number) for n, s in zip(layout.shape, layout.strides, strict=True)]
    return math.prod(n for n, _ in steps), 1 + sum((n - 1) * step for n, step in steps)
