"""The steps of a call, in order: when memory is taken and freed, what is pointed at, run, called.

In: a `Plan`, and `Facts` about its table and segments. Out: `Body`. On a CPU, memory is thrifty: an
output's is taken right before it is written, a dying input's given back right after it was read.
On a GPU all outputs come first: torch's allocator keeps freed memory for others anyway.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from litz.call.looks import Looks
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
    LookAt,
    Point,
    Prepack,
    Refresh,
    Reuse,
    Run,
    Segment,
    Step,
)
from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.lifetimes import dying_inputs
from litz.ir.program import Buffer, Extern, Kernel, Plan, ViewArg, operand_views, read, written

TANGENT = "tangents_"  # what AOTAutograd calls the gradients that a backward graph is given


@dataclass(frozen=True)
class Facts:
    """What a body depends on beside its plan. `frozen` are inputs that became constants."""

    table: dict[str, int]
    computed: dict[str, Expr]
    segments: tuple[Segment, ...]
    cuts: frozenset[int]
    device: str
    thrifty: bool
    workspaces: tuple[Buffer, ...]
    counters: frozenset[str]
    prepack: Prepack | None
    frozen: frozenset[str]
    constants: dict[str, torch.Tensor]
    config: Config


def body_of(plan: Plan, facts: Facts) -> tuple[Body, tuple[Buffer, ...]]:
    """The steps of a plan, and the constants that they use."""
    steps = _Steps(plan, facts)
    return steps.body(), steps.constants


class _Steps:
    """Walks the plan once. `known` are buffers outside the arena that have a tensor by now,
    `pending` outputs that have no memory yet."""

    def __init__(self, plan: Plan, facts: Facts) -> None:
        self.plan, self.graph, self.facts = plan, plan.graph, facts
        prepack = facts.prepack
        self.final = prepack is not None and prepack.final
        body = self.graph.body[self.graph.prepared :] if self.final else self.graph.body
        kernels = [step for step in body if isinstance(step, Kernel)]
        self.points = {b.name for k in kernels for b in (*read(k), *written(k))}
        if prepack is not None and not self.final:
            self.points |= {b.name for b in prepack.sources}  # whose addresses are looked at
        shown = [o.value.buffer for o in self.graph.outputs if isinstance(o.value, ViewArg)]
        # What is prepacked for good needs no more of what it was made of.
        used = {*shown, *(b for step in body for b in read(step))}
        self.constants = tuple(b for b in self.graph.constants if b in used)
        self.shown = list(dict.fromkeys(shown))
        self.unbacked = Unbacked(self.graph.bound)
        symbols = symbols_of(plan, facts.computed.values())
        self.symbols = tuple(s for s in symbols if not self.unbacked.concerns(s))
        self.unbacked.wait_for(symbols, facts.computed)
        self.as_shown = laid_out_as_shown(plan) if facts.thrifty else {}
        self.looks = Looks(self.graph, facts.constants) if facts.config.nan_asserts else None
        self.saved = self._saved()
        touched = (b for step in self.graph.body for b in (*read(step), *written(step)))
        self.buffers = {b.name: b for b in touched}
        self.known: set[str] = set()
        self.pending: dict[str, Buffer] = {}
        self.steps: list[Step] = []

    def body(self) -> Body:
        """All of it."""
        inputs = tuple(map(self._input, self.graph.inputs))
        given = [i.value for i in inputs if isinstance(i.value, Buffer)]
        for buffer in (*given, *self.constants):
            self.known.add(buffer.name)
            if buffer.name in self.points and buffer.name in self.facts.table:
                self.steps.append(Point(buffer))
        if self.facts.prepack is not None:
            self.known |= {b.name for b in self.facts.prepack.makes}
            self.steps += [] if self.final else [Refresh()]
        self._outputs()
        self._workspaces()
        self._look_at_inputs([i for i in inputs if isinstance(i.value, Buffer)])
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
        """What a backward graph is given and only reads: a write belongs into the tensor itself."""
        inputs = {b for b in self.graph.inputs if isinstance(b, Buffer)}
        if not any(b.name.startswith(TANGENT) for b in inputs):
            return set()
        return inputs.difference(*(written(step) for step in self.graph.body))

    # -- memory ------------------------------------------------------------------------------

    def _outputs(self) -> None:
        """Outputs that kernels (or out= ops) write: fresh memory for each call."""
        calls = [s for s in self.graph.body if isinstance(s, Extern) and not s.into]
        known = {*self.graph.inputs, *self.graph.constants, *(b for s in calls for b in s.outputs)}
        for buffer in (b for b in self.shown if b not in known):
            if self.unbacked.concerns(*buffer.shape, *buffer.strides):
                self.unbacked.buffers.append((buffer, OUTPUT))
            elif self.facts.thrifty:
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
        self.steps.append(Allocate(buffer, kind, self.as_shown.get(buffer.name)))

    def _allocate_told(self) -> None:
        """Outputs and workspaces whose sizes are known and checked by now."""
        for buffer, kind in self.unbacked.ready():
            self._allocate(buffer, kind)

    def _allocate_written(self, buffer: Buffer) -> None:
        """Memory for what a step writes outside the arena."""
        if buffer.name in self.pending:
            self._allocate(buffer, OUTPUT)
        if buffer.name in self.plan.lent and buffer.name not in self.known:
            self._allocate(buffer, TEMPORARY)

    def _need(self, views: Iterable[ViewArg]) -> None:
        """See that there are tensors to show; one without elements may not have been written."""
        for buffer in (view.buffer for view in views):
            if buffer.name in self.plan.slots or buffer.name in self.known:
                continue
            if ZERO not in buffer.shape:
                raise InternalError(f"{buffer} is read, and no step has written it")
            self._allocate(buffer, TEMPORARY)

    # -- the walk ----------------------------------------------------------------------------

    def _walk(self) -> None:
        freed = self._freed_after()
        if self.facts.thrifty:
            for position, buffers in dying_inputs(self.plan).items():
                freed.setdefault(position, []).extend(buffers)
        first = {segment.kernels[0]: segment for segment in self.facts.segments}
        number = -1  # of the last kernel
        kernels = self.graph.kernels
        for position, step in enumerate(self.graph.body):
            number += isinstance(step, Kernel)
            if position < self.graph.prepared:
                continue
            if not (isinstance(step, Extern) and step.checks):
                self._allocate_told()
            if isinstance(step, Extern):
                self._call(step)
            elif number in first:
                self._run(first[number], kernels)
            dead = [b for b in freed.get(position, ()) if b.name in self.known]
            if dead:
                self.steps.append(Free(tuple(dead)))
                self.known.difference_update(b.name for b in dead)
        self._allocate_told()
        for buffer in list(self.pending.values()):  # what nothing writes to
            self._allocate(buffer, OUTPUT)

    def _freed_after(self) -> dict[int, list[Buffer]]:
        """For each step, what nothing uses any more: ATen's own results, those that reuse their
        memory, and temporaries."""
        body = self.graph.body[self.graph.prepared :]
        calls = [s for s in body if isinstance(s, Extern) and not s.into]
        own = {b.name for s in calls for b in s.writes} | set(self.plan.heirs) | self.plan.lent
        own -= {b.name for b in self.shown}
        found: dict[int, list[Buffer]] = {}
        for name, position in self.plan.last_use.items():
            if name in own:
                found.setdefault(position, []).append(self.buffers[name])
        return found

    def _run(self, segment: Segment, kernels: list[Kernel]) -> None:
        """A segment, with memory for its results outside the arena: fresh, or that of another which
        is dead by now."""
        own = [kernels[k] for k in segment.kernels]
        for buffer in (b for kernel in own for b in written(kernel)):
            self._allocate_written(buffer)
            before = self.plan.heirs.get(buffer.name)
            if before is not None and buffer.name not in self.known:
                self.steps.append(Reuse(buffer, self.buffers[before]))
                self.known.add(buffer.name)
        self.steps.append(Run(segment.name))
        for kernel in own:
            self._look(written(kernel), kernel)

    def _call(self, step: Extern) -> None:
        if step.checks:
            self.steps.append(Call(step))
            return
        self._need(operand_views((step.args, tuple(v for _, v in step.kwargs))))
        if step.into:
            for buffer in filter(None, step.outputs):
                self._allocate_written(buffer)
        self.steps.append(Call(step, *self.unbacked.told(b.symbol for b in step.binds)))
        self.known |= {b.name for b in step.outputs if b is not None}
        self._look(step.outputs, step)

    # -- NaN ---------------------------------------------------------------------------------

    def _look_at_inputs(self, inputs: list[Input]) -> None:
        """The forward graph looked at what it saved, so that infinities there are meant."""
        given = [i for i in inputs if i.check != FROZEN]
        tangents = [i for i in given if i.tangent]
        self._look([i.value for i in tangents or given])  # type: ignore[misc]
        rest = [i.value for i in given if tangents and not i.tangent]
        self._look(rest, meant=True)  # type: ignore[arg-type]

    def _look(
        self, buffers: Iterable[Buffer | None], step: Kernel | Extern | None = None,
        meant: bool = False,
    ) -> None:  # fmt: skip
        if self.looks is None:
            return
        found: Iterator[LookAt] = self.looks.at([b for b in buffers if b is not None], step, meant)
        for look in found:
            self._need(operand_views(_whole(look.buffer)))
            self.steps.append(look)


def _whole(buffer: Buffer) -> ViewArg:
    return ViewArg(buffer, buffer.shape, buffer.strides, ZERO)


# -- outputs that only kernels know ----------------------------------------------------------------


def laid_out_as_shown(plan: Plan) -> dict[str, ViewArg]:
    """Outputs that only kernels know, which have no need of a shape: the caller's will do."""
    graph = plan.graph
    shown = [o.value for o in graph.outputs if isinstance(o.value, ViewArg)]
    others = {*graph.inputs, *graph.constants, *(b for s in graph.externs for b in s.writes)}
    others.update(b for s in graph.externs for b in s.reads)
    counts = Counter(view.buffer for view in shown)
    return {
        view.buffer.name: view
        for view in shown
        if counts[view.buffer] == 1 and view.buffer not in others and _covers(view)
        if view.buffer.name not in plan.heirs
    }


def _covers(view: ViewArg) -> bool:
    """Whether a window shows each element of its buffer once, where the numbers tell."""
    sizes = (*view.shape, *view.strides, *view.buffer.shape, *view.buffer.strides, view.offset)
    if not all(n.is_const for n in sizes):
        return False
    return view.offset is ZERO and len({n for v in (view, view.buffer) for n in _extents(v)}) == 1


def _extents(layout: ViewArg | Buffer) -> tuple[int, int]:
    """How many elements there are, and how many places from the first to the last."""
    steps = [(n.number, s.number) for n, s in zip(layout.shape, layout.strides, strict=True)]
    return math.prod(n for n, _ in steps), 1 + sum((n - 1) * step for n, step in steps)
