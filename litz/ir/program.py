"""Programs: the data that the stages hand to each other.

In: constructors. Out: frozen values that print as text which rebuilds them (`ir/text.py`).

    LoopProgram = inputs, [Loop | Extern], outputs, sizes
    KernelGraph = inputs, [Kernel | Extern], outputs, sizes, decisions
    Kernel      = outer axes, [Phase(inner axes, stores)], scratch local to one outer iteration
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, TypeVar

from litz.ir.calls import ASSERT_OPS, KNOWN_NAMESPACES, PACKERS
from litz.ir.dtypes import DType
from litz.ir.expr import Expr, integer, walk
from litz.ir.patterns import P, Pattern

UNIT = integer(1)
HOST = "cpu"  # the device whose memory is the host's


@dataclass(frozen=True)
class Buffer:
    """Storage for one tensor, in elements. Views are index maps over it, never buffers."""

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: str = HOST

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.dtype, self.shape, self.strides)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined,no-any-return]

    def __repr__(self) -> str:
        return self.name

    @property
    def on_host(self) -> bool:
        """Whether it is in the host's memory."""
        return self.device == HOST


def buffer_bytes(buffer: Buffer) -> int:
    """The bytes of its elements, each counted once; an estimate if sizes are symbolic."""
    return buffer.dtype.bytes * math.prod(s.hint for s in buffer.shape)


@dataclass(frozen=True)
class Origin:
    """Where a node came from: the captured op and the user's line."""

    node: str
    op: str
    line: str = ""

    def __str__(self) -> str:
        return f"{self.op} ({self.line})" if self.line else self.op


@dataclass(frozen=True)
class Store:
    """`buffer[index] = value`, or combined with the old element: `mode` names an op of the table.

    In every mode but `set` two points of the loop may store to the same element, so the loop's
    order counts; `put` is `set` for that case. (The index may not show it: `i % 1` is always zero.)
    """

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr
    mode: str = "set"

    @property
    def scatters(self) -> bool:
        return self.mode != "set"

    @property
    def separate(self) -> frozenset[Expr]:
        """Axes along which no two points collide: each is a dimension of the index by itself."""
        alone = {i for i in self.index if i.op == "axis"}
        shared = frozenset().union(*(i.axes for i in self.index if i.op != "axis"))
        return frozenset(alone) - shared


@dataclass(frozen=True)
class Loop:
    """Parallel axes, then reduced ones, around stores whose index uses the parallel axes alone."""

    axes: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    stores: tuple[Store, ...]
    origins: tuple[Origin, ...] = ()
    pattern: Pattern | None = None  # what it is known to compute (`ir/recognise.py`)

    # A step is frozen, so its reads and writes are computed once; stages ask for them often.
    @cached_property
    def reads(self) -> list[Buffer]:
        return _reads_of(self.stores)

    @cached_property
    def writes(self) -> list[Buffer]:
        return _writes_of(self.stores)

    @cached_property
    def loads(self) -> list[Expr]:
        return loads(*exprs_of(self))

    @cached_property
    def ordered(self) -> tuple[Expr, ...]:
        """Parallel axes that run in order: a scan's, and those along which stores may collide."""
        (store,) = self.stores
        ordered = {node.args[1] for node in walk(store.value) if node.op == "scan"}
        if store.scatters:
            ordered |= set(self.axes) - store.separate
        return tuple(a for a in self.axes if a in ordered)


@dataclass(frozen=True)
class ViewArg:
    """A tensor operand of an extern call: a strided window on a buffer, offset in elements."""

    buffer: Buffer
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr


@dataclass(frozen=True)
class UnbackedBinding:
    """An unbacked size, known from a call's result. `path` leads to it in the result: an int takes
    an item, "shape" the sizes, "stride" the strides, "offset" the start of a view in the call's
    first operand. The number found there is `divisor` times the size."""

    symbol: Expr
    path: tuple[str | int, ...] = ()
    divisor: int = 1


@dataclass(frozen=True)
class Extern:
    """A call of an ATen (or custom) op. Operands are `ViewArg`s, sizes and plain constants."""

    target: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[Buffer | None, ...]
    single: bool  # the op returns a tensor rather than a tuple of them
    into: bool = False  # it has an out= form: the result is written into given storage
    ordered: bool = False  # it draws from the random generator, which is an effect
    mutates: tuple[Buffer, ...] = ()
    origins: tuple[Origin, ...] = ()
    binds: tuple[UnbackedBinding, ...] = ()  # sizes that are known from here on

    @property
    def foreign(self) -> bool:
        """Whether its effects are unknown: it may run user code."""
        return self.target.partition(".")[0] not in KNOWN_NAMESPACES

    @property
    def kept(self) -> list[Buffer]:
        """Operands that may be in use after it has returned: their memory is not reused."""
        return self.reads if self.foreign else []

    @property
    def has_effect(self) -> bool:
        """Whether it has an effect beyond its results: then it runs at each call, in order."""
        return self.ordered or self.foreign or bool(self.mutates) or not (self.writes or self.binds)

    @property
    def packs(self) -> bool:
        """Whether it only packs its operand into the layout that another call needs."""
        return self.target in PACKERS

    @property
    def guards_folding(self) -> bool:
        """Whether it checks that parameters may be folded; it runs when they are prepacked."""
        return self.target == "litz.is_foldable.default"

    @cached_property
    def reads(self) -> list[Buffer]:
        views = operand_views((self.args, tuple(v for _, v in self.kwargs)))
        return list(dict.fromkeys(v.buffer for v in views))

    @cached_property
    def writes(self) -> list[Buffer]:
        return [*(b for b in self.outputs if b is not None), *self.mutates]

    @property
    def checks(self) -> bool:
        """Whether it is a check of sizes: steps that use them run after it."""
        return self.target in ASSERT_OPS


@dataclass(frozen=True)
class Output:
    """One result of the program: a tensor view, a size, a constant or None."""

    value: ViewArg | Expr | int | float | bool | None


@dataclass(frozen=True)
class Decision:
    """What a stage did or refused, and why: kept as a value, read by explain, logs and reports."""

    action: str  # "fused", "inlined", "rewritten", "refused"; "unmet": a flag asked in vain
    producer: str
    consumer: str
    reason: str


@dataclass(frozen=True)
class LoopProgram:
    """The result of `lower`: loops and calls in order, functional but for stores into inputs."""

    inputs: tuple[Buffer | Expr, ...]
    constants: tuple[Buffer, ...]
    body: tuple[Loop | Extern, ...]
    outputs: tuple[Output, ...]
    # Inputs that seldom change from call to call: parameters and buffers of a module.
    static: frozenset[Buffer] = frozenset()
    decisions: tuple[Decision, ...] = ()

    @property
    def buffers(self) -> list[Buffer]:
        """Every buffer, in order of first appearance."""
        found: dict[str, Buffer] = {b.name: b for b in self.inputs if isinstance(b, Buffer)}
        found.update((b.name, b) for b in self.constants)
        for step in self.body:
            for buffer in written(step):
                found.setdefault(buffer.name, buffer)
        return list(found.values())


@dataclass(frozen=True)
class Phase:
    """One loop nest inside an outer iteration. In a reduction, stores that hold a `reduce` happen
    once after the nest, all others at each of its points. `summed` are the axes of sums that each
    point of the nest has of its own, for example the depth of a gemm whose columns are `inner`."""

    inner: tuple[Expr, ...]
    is_reduction: bool
    stores: tuple[Store, ...]
    summed: tuple[Expr, ...] = ()
    pattern: Pattern | None = None  # at most one phase has one: the kernel is scheduled by it

    @cached_property
    def completing(self) -> tuple[Store, ...]:
        """Stores after the nest."""
        if not self.is_reduction:
            return ()
        return tuple(s for s in self.stores if any(n.op == "reduce" for n in walk(s.value)))

    @cached_property
    def inside(self) -> tuple[Store, ...]:
        """Stores at each point of the nest."""
        behind = self.completing
        return tuple(s for s in self.stores if s not in behind)


@dataclass(frozen=True)
class Kernel:
    """Outer axes around phases; `scratch` buffers live in one outer iteration only."""

    name: str
    outer: tuple[Expr, ...]
    phases: tuple[Phase, ...]
    scratch: tuple[Buffer, ...]
    origins: tuple[Origin, ...] = ()

    @property
    def stores(self) -> list[Store]:
        return [s for phase in self.phases for s in phase.stores]

    @cached_property
    def reads(self) -> list[Buffer]:
        return _reads_of(self.stores, self.scratch)

    @cached_property
    def writes(self) -> list[Buffer]:
        return _writes_of(self.stores, self.scratch)


@dataclass(frozen=True)
class KernelGraph:
    """The result of `fuse`."""

    inputs: tuple[Buffer | Expr, ...]
    constants: tuple[Buffer, ...]
    body: tuple[Kernel | Extern, ...]
    outputs: tuple[Output, ...]
    decisions: tuple[Decision, ...] = ()
    static: frozenset[Buffer] = frozenset()

    @cached_property
    def prepacked(self) -> tuple[Buffer, ...]:
        """Buffers that kernels and packing calls compute from parameters alone: kept from call to
        call, made anew when a parameter changes. Such steps come before all others."""
        shown = {o.value.buffer for o in self.outputs if isinstance(o.value, ViewArg)}
        known = {id(s) for s in steps_to_prepack(self.body, self.static, shown.union(self.inputs))}
        front = takewhile(lambda step: id(step) in known, self.body)
        return tuple(dict.fromkeys(b for step in front for b in written(step)))

    @cached_property
    def prepack_steps(self) -> int:
        """How many steps at the front only make prepacked buffers."""
        prepacked = set(self.prepacked)
        return sum(
            bool(written(step)) and prepacked.issuperset(written(step)) for step in self.body
        )

    @property
    def kernels(self) -> list[Kernel]:
        return [step for step in self.body if isinstance(step, Kernel)]

    @property
    def externs(self) -> list[Extern]:
        return [step for step in self.body if isinstance(step, Extern)]

    @cached_property
    def unbacked(self) -> frozenset[Expr]:
        """The unbacked sizes: known from a call's result, not from the arguments."""
        return frozenset(b.symbol for step in self.externs for b in step.binds)


@dataclass(frozen=True)
class Slot:
    """A buffer's place in the arena: an offset and a size in bytes, times a `unit`. Buffers of the
    same unit share a region of the arena, so that none overlap whatever the unit's value is."""

    offset: int
    bytes: int
    unit: Expr = UNIT


@dataclass(frozen=True)
class Plan:
    """A kernel graph in execution order, with a place for each intermediate buffer."""

    graph: KernelGraph
    slots: dict[str, Slot] = field(default_factory=dict)
    arena_bytes: int = 0  # an estimate if sizes are symbolic
    # The arena's regions in order: the unit of each, and its length in units.
    regions: tuple[tuple[Expr, int], ...] = ()
    # Bytes the intermediates would take without reuse: what the plan saved is the difference.
    unplanned_bytes: int = 0
    # In-place reuse: from a kernel's result to the dead ATen result whose memory it is written to.
    inplace_reuse: dict[str, str] = field(default_factory=dict)
    # Intermediates outside the arena: a call allocates each when it is written.
    call_allocated: frozenset[str] = frozenset()
    # Kernels, by number, that run as one launch: none touches a buffer that another one of them
    # writes. If empty, each kernel is a launch of its own.
    batches: tuple[tuple[int, ...], ...] = ()

    @property
    def last_use(self) -> dict[str, int]:
        """The last step that touches each buffer."""
        last: dict[str, int] = {}
        for position, step in enumerate(self.graph.body):
            for buffer in (*read(step), *written(step)):
                last[buffer.name] = position
        return last

    @property
    def fresh(self) -> frozenset[str]:
        """Buffers that kernels write into memory which the call itself allocates, aligned."""
        given = {b.name for b in (*self.graph.inputs, *self.graph.constants)
                 if isinstance(b, Buffer)}  # fmt: skip
        made = {b.name for k in self.graph.kernels for b in written(k)}
        prepacked = {b.name for b in self.graph.prepacked}
        return frozenset(made - given - prepacked - set(self.inplace_reuse))

    @property
    def sources(self) -> list[Buffer]:
        """The parameters from which something is prepacked."""
        steps = self.graph.body[: self.graph.prepack_steps]
        found = dict.fromkeys(b for step in steps for b in read(step))
        return [b for b in found if b in self.graph.static]

    @property
    def outside(self) -> list[Buffer]:
        """Buffers outside the arena: inputs, constants, outputs, ATen's results, and buffers
        without elements, which kernels and calls may take as arguments all the same."""
        found: dict[str, Buffer] = {}
        graph = self.graph
        for known in (*graph.inputs, *graph.constants):
            if isinstance(known, Buffer):
                found[known.name] = known
        for step in graph.body:
            found.update((b.name, b) for b in written(step))
        for output in graph.outputs:
            if isinstance(output.value, ViewArg):
                found[output.value.buffer.name] = output.value.buffer
        for step in graph.body:
            for buffer in read(step):
                found.setdefault(buffer.name, buffer)
        return [b for b in found.values() if b.name not in self.slots]


def may_be_prepacked(step: Loop | Kernel | Extern) -> bool:
    """Whether a step that reads only parameters gives the same at each call, whatever its sizes."""
    if isinstance(step, Extern):
        return step.packs or step.guards_folding
    loops = [(*step.axes, *step.reduced)] if isinstance(step, Loop) else []
    loops += [(*step.outer, *p.inner) for p in step.phases] if isinstance(step, Kernel) else []
    sizes = [a.extent for axes in loops for a in axes]
    sizes += [n for b in written(step) for n in (*b.shape, *b.strides)]  # axes may not show all
    return all(n.op != "size" for n in walk(*sizes, *exprs_of(step)))


AnyStep = TypeVar("AnyStep", bound="Loop | Kernel | Extern")


def steps_to_prepack(
    body: Sequence[AnyStep], static: frozenset[Buffer], seen: Iterable[object]
) -> list[AnyStep]:
    """The steps that depend on parameters alone. Left out are those whose result is `seen`, or kept
    by a foreign op, or written to at each call, as a scatter writes into its zeros."""
    refused = {*seen, *(b for s in body if isinstance(s, Extern) for b in s.kept)}
    while static:
        first: list[AnyStep] = []
        made: set[Buffer] = set()
        for step in body:
            known = may_be_prepacked(step) and made.union(static).issuperset(read(step))
            if known and not refused.intersection(written(step)):
                first.append(step)
                made.update(written(step))
        chosen = {id(step) for step in first}
        others = {b for step in body if id(step) not in chosen for b in written(step)}
        if not made & others:
            return first
        refused |= made & others
    return []


def operand_views(value: Any) -> Iterator[ViewArg]:
    """The tensor operands inside an extern's argument tree."""
    if isinstance(value, ViewArg):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from operand_views(item)


def exprs_of(step: Loop | Kernel | Phase) -> Iterator[Expr]:
    """Every expression a step evaluates: stored values and store indices."""
    for store in step.stores:
        yield store.value
        yield from store.index


def tagged(step: Loop | Kernel, kind: type[P]) -> tuple[P, tuple[Store, ...]] | None:
    """The tag of that kind of a loop, or of a phase of a kernel, and the stores of that nest."""
    nests = (step,) if isinstance(step, Loop) else step.phases
    return next(((n.pattern, n.stores) for n in nests if isinstance(n.pattern, kind)), None)


def reductions_of(phase: Phase) -> list[Expr]:
    """The reductions of a phase, each once, in order."""
    nodes = (n for s in phase.completing for n in walk(s.value) if n.op == "reduce")
    return list(dict.fromkeys(nodes))


def loads(*roots: Expr) -> list[Expr]:
    """The load nodes below the roots."""
    return [node for node in walk(*roots) if node.op == "load"]


def read(step: Loop | Kernel | Extern) -> list[Buffer]:
    """The buffers a step reads, once each, in order."""
    return step.reads


def written(step: Loop | Kernel | Extern) -> list[Buffer]:
    """The buffers a step writes, once each, in order."""
    return step.writes


def _reads_of(stores: Iterable[Store], local: tuple[Buffer, ...] = ()) -> list[Buffer]:
    roots = [e for s in stores for e in (s.value, *s.index)]
    return [b for b in dict.fromkeys(n.buffer for n in loads(*roots)) if b not in local]


def _writes_of(stores: Iterable[Store], local: tuple[Buffer, ...] = ()) -> list[Buffer]:
    return [b for b in dict.fromkeys(s.buffer for s in stores) if b not in local]
