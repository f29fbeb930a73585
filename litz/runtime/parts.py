"""A graph in parts: some are recorded as CUDA graphs, and the steps between them run as they are.

In: a device graph and the parts that its policy cut it into. Out: a callable that runs them in
order. Each part is a small plan of its own over the same kernels: it is given the tensors that it
reads from outside and gives those that are needed later. Intermediates inside the arena stay where
they are, since all parts share one that never moves; so do the results that a recording gives to a
later one. A size that data tells is a number that one part gives to those behind it, none of which
is recorded. For `y = softmax(x).cpu().to(x.device); return y * 2 + x.sum()`:

    def call(args):
        ...
        t2, t3 = part_0([x0])
        t4, = part_1([t2])
        return part_2([t4, t3])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from litz.ir.expr import Expr
from litz.ir.index import ZERO
from litz.ir.program import (
    Buffer,
    Extern,
    Kernel,
    KernelGraph,
    Output,
    Plan,
    ViewArg,
    read,
    written,
)
from litz.ir.sizes import roots, sizes_of, used_in
from litz.ir.source import DeviceSource
from litz.runtime.cudagraphs import Call, Replayed, positions_written
from litz.runtime.device_entry import DeviceEntry
from litz.runtime.graph_policy import Part
from litz.runtime.numbers import local_name, tuple_text
from litz.runtime.steps import torch_dtype


@dataclass(frozen=True)
class Piece:
    """A part as a plan. `kernels` are the numbers of its kernels in the whole graph; `carried` the
    positions of inputs that an earlier recorded part gives."""

    plan: Plan
    recorded: bool
    kernels: frozenset[int]
    carried: tuple[int, ...] = ()

    @property
    def takes(self) -> tuple[Buffer, ...]:
        """The tensors that it is given."""
        return tuple(b for b in self.plan.graph.inputs if isinstance(b, Buffer))

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """The sizes that it is given before the tensors: earlier parts were told them."""
        return tuple(n for n in self.plan.graph.inputs if isinstance(n, Expr))

    @property
    def gives(self) -> tuple[Buffer, ...]:
        """The tensors that it gives."""
        values = (o.value for o in self.plan.graph.outputs)
        return tuple(v.buffer for v in values if isinstance(v, ViewArg))

    @property
    def tells(self) -> tuple[Expr, ...]:
        """The sizes that it gives before the tensors."""
        values = (o.value for o in self.plan.graph.outputs)
        return tuple(v for v in values if isinstance(v, Expr))


def pieces(plan: Plan, parts: tuple[Part, ...]) -> list[Piece]:
    """A plan for each part."""
    graph = plan.graph
    shown = {o.value.buffer.name for o in graph.outputs if isinstance(o.value, ViewArg)}
    given = {b.name: b for b in graph.inputs if isinstance(b, Buffer)}
    constants = {b.name for b in graph.constants}
    recorded: set[str] = set()  # what lies in the memory of a recording
    found: list[Piece] = []
    first_kernel = 0
    for part in parts:
        steps = graph.body[part.first : part.last]
        here = _outside(plan, steps, constants)
        later = _outside(plan, graph.body[part.last :], constants)
        takes = [b for name, b in here.items() if name in given]
        gives = [b for n, b in here.items() if n not in given and (n in later or n in shown)]
        count = sum(isinstance(s, Kernel) for s in steps)
        kernels = frozenset(range(first_kernel, first_kernel + count))
        carried = tuple(k for k, b in enumerate(takes) if b.name in recorded)
        small = _plan_of(plan, part, takes, gives)
        found.append(Piece(small, part.recorded, kernels, carried if part.recorded else ()))
        given |= {b.name: b for b in gives}
        recorded |= {b.name for b in gives if part.recorded}
        first_kernel += count
    return found


def _outside(plan: Plan, steps: tuple[Any, ...], constants: set[str]) -> dict[str, Buffer]:
    """The buffers outside the arena that steps touch, by name."""
    touched = (b for step in steps for b in (*read(step), *written(step)))
    return {b.name: b for b in touched if b.name not in plan.slots and b.name not in constants}


def _plan_of(plan: Plan, part: Part, takes: list[Buffer], gives: list[Buffer]) -> Plan:
    steps = plan.graph.body[part.first : part.last]
    made = {b.name for step in steps for b in written(step)} - {b.name for b in takes}
    heirs = {n: before for n, before in plan.heirs.items() if n in made and before in made}
    # What would take the place of another part's result has memory of its own instead.
    alone = {n for n in plan.heirs if n in made and n not in heirs}
    sizes, tells = _sizes_across(plan, part)
    assert not (part.recorded and sizes), "a recording knows nothing of sizes that change"
    outputs = tuple(Output(ViewArg(b, b.shape, b.strides, ZERO)) for b in gives)
    numbers = tuple(Output(symbol) for symbol in tells)
    graph = KernelGraph((*sizes, *takes), plan.graph.constants, steps, (*numbers, *outputs))
    return replace(plan, graph=graph, heirs=heirs, lent=plan.lent | alone)


def _sizes_across(plan: Plan, part: Part) -> tuple[list[Expr], list[Expr]]:
    """The sizes that calls of other parts tell this one, and those that it tells others."""
    graph = plan.graph

    def told(steps: tuple[Any, ...]) -> set[Expr]:
        return {b.symbol for s in steps if isinstance(s, Extern) for b in s.binds}

    def used(steps: tuple[Any, ...]) -> set[Expr]:
        return {n for s in steps for n in used_in(s)} & graph.bound

    here, behind = graph.body[part.first : part.last], graph.body[part.last :]
    shown = {n for o in graph.outputs for n in roots(*sizes_of(o.value))}
    own = told(here)
    given, wanted = used(here) - own, own & (used(behind) | shown)
    return sorted(given, key=local_name), sorted(wanted, key=local_name)


class Driver(DeviceEntry):
    """Writes the function that runs the parts in order."""

    def __init__(self, graph: Any, constants: dict[str, torch.Tensor], made: list[Piece]) -> None:
        super().__init__(graph.plan, graph.source, [], constants, graph.device, graph.config)
        self.made = made

    def text(self) -> str:
        """The function `call(args)`."""
        for buffer in (b for b in self.graph.inputs if isinstance(b, Buffer)):
            self.local[buffer.name] = f"x{len(self.local)}"
        for name, tensor in self.constants.items():
            self.local[name] = self._name("constant", tensor)
        dying = self._dying()
        for k, piece in enumerate(self.made):
            sizes = map(local_name, piece.sizes)
            given = ", ".join([*sizes, *(self.local[b.name] for b in piece.takes)])
            for buffer in piece.gives:
                self.local[buffer.name] = f"t{len(self.local)}"
            names = [*map(local_name, piece.tells), *(self.local[b.name] for b in piece.gives)]
            left = f"{''.join(f'{name}, ' for name in names).rstrip()} = " if names else ""
            self.lines.append(f"{left}part_{k}([{given}])")
            self.lines += self.late.named_lines(piece.tells)
            self.lines += [f"del {self.local[name]}" for name in dying.get(k, ())]
        shown = [o.value.buffer for o in self.graph.outputs if isinstance(o.value, ViewArg)]
        for buffer in dict.fromkeys(shown):
            if buffer.name not in self.local:  # nothing writes to it
                self._allocate(buffer, "y")
        results = ", ".join(self._output(o.value) for o in self.graph.outputs)
        index = self.device.index
        lines = [
            f"if current() != {index}: return elsewhere(call, args)",
            *(["if flag.value: check()"] if self.checks else []),
            *self._unpacked(), *self.lines, f"return [{results}]",
        ]  # fmt: skip
        return "\n".join(["def call(args):", *(f"    {line}" for line in lines), ""])

    def _allocate(self, buffer: Buffer, letter: str) -> None:
        sizes, strides = tuple_text(buffer.shape), tuple_text(buffer.strides)
        self.local[buffer.name] = name = f"{letter}{len(self.local)}"
        dtype = self._name("dtype", torch_dtype(buffer.dtype))
        self.lines.append(f"{name} = empty({sizes}, {strides}, {dtype})")

    def _dying(self) -> dict[int, list[str]]:
        """What no part behind each needs any more, nor the caller."""
        shown = {o.value.buffer.name for o in self.graph.outputs if isinstance(o.value, ViewArg)}
        last = {b.name: k for k, p in enumerate(self.made) for b in (*p.takes, *p.gives)}
        found: dict[int, list[str]] = {}
        for name, k in last.items():
            if name not in shown:
                found.setdefault(k, []).append(name)
        return found


class Shared:
    """The arena of all parts: made when it is first needed, and then it stays where it is."""

    def __init__(self, plan: Plan, empty: Callable[..., torch.Tensor]) -> None:
        self.size, self.empty = plan.arena_bytes, empty
        self.arena: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        if self.arena is None:
            self.arena = self.empty((self.size,), (1,), torch.uint8)
        return self.arena


def in_parts(graph: Any, constants: dict[str, torch.Tensor]) -> Call:
    """A device graph's call, part by part."""
    made = pieces(graph.plan, graph.policy.parts)
    driver = Driver(graph, constants, made)
    calls = {f"part_{k}": call for k, call in enumerate(_calls(graph, constants, made))}
    call: Call = graph.written(driver.text(), driver.names | calls)
    return call


def _calls(graph: Any, constants: dict[str, torch.Tensor], made: list[Piece]) -> Iterator[Call]:
    """The callable of each part."""
    shared = Shared(graph.plan, graph.device.empty)
    before: list[Replayed] = []
    config = replace(graph.config, size_asserts=False)  # the driver has looked at the inputs
    for piece in made:
        native = [f for s, f in graph.native.items() if piece.kernels.issuperset(s.kernels)]
        source = _source_of(graph.source, piece)
        parts = (piece.plan, source, native, constants, graph.device, config)
        entry = DeviceEntry(*parts, arena=shared, unused=_of_others(graph.source, piece))
        call = graph.written(entry.text(), entry.names)
        if not piece.recorded:
            yield call
            continue
        steps = piece.plan.graph
        brought = [k for k, b in enumerate(piece.takes) if b.device != graph.device.name]
        replay = Replayed(
            call, graph.device.recorder(), positions_written(steps), _nothing, brought,
            graph.device.name, piece.carried, tuple(before),
        )  # fmt: skip
        before.append(replay)
        yield replay.call


def _source_of(source: DeviceSource, piece: Piece) -> DeviceSource:
    """The source without numbers that only other parts can know."""
    known = piece.plan.graph.bound.union(piece.sizes)
    computed = {name: n for name, n in source.computed.items() if roots(n) <= known}
    return replace(source, computed=computed)


def _of_others(source: DeviceSource, piece: Piece) -> frozenset[str]:
    """What only kernels of other parts are given."""
    mine = {name for k in piece.kernels for name in source.arguments[k]}
    return frozenset(name for names in source.arguments for name in names) - mine


def _nothing() -> None:
    """A part checks nothing: the driver does."""
