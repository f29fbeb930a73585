"""The call as data: everything that a call of a compiled graph does, and nothing of a process.

In: constructors. Out: `CallPlan`, a frozen value with a text that rebuilds it (`ir/call_text.py`).
A call checks its inputs, points a table at tensors, and takes steps in order: it allocates, runs
segments of kernels, calls ATen ops by name, and frees. The Python function of a call, the native
driver and the CUDA graph partitions are printed from this value alone. For x + 1 the steps are:

    point x
    allocate y, 'output'
    run litz_segment_0
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from litz.ir.checks import Site
from litz.ir.expr import Expr
from litz.ir.index import ONE
from litz.ir.program import Buffer, Decision, Extern, Origin, Output, Slot, ViewArg

# The first entries of the table of pointers that every driver function takes: where the record of a
# failed check is (`ir/checks.py`), and the arena.
ERROR_RECORD, ARENA = 0, 1
# A GPU's table goes on with the stream and the address of the driver's launch function.
STREAM, LAUNCH = 2, 3

# Fewer kernels than this are launched as fast one by one as from a recording.
FEWEST_RECORDED = 3


def origins_text(origins: Iterable[Origin]) -> str:
    """The ops and lines that a step serves."""
    return ", ".join(dict.fromkeys(map(str, origins))) or "an input"


# -- kernels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """One function that a kernel may run, and its arguments: buffers by name, then sizes. `tasks`
    are shared out over threads, or are the programs of a GPU's grid; `work` says how many threads
    they are worth. A kernel for several sizes has several launches, all but one without tasks."""

    function: str
    arguments: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()
    tasks: Expr = ONE
    work: Expr = ONE
    warps: int = 0  # of a program, on a GPU
    scratch: bool = False  # whether its programs share the workspace SCRATCH


@dataclass(frozen=True)
class KernelCall:
    """A kernel of the graph as a call sees it. `checks` says that it may leave the record of a
    failed check; `summary` is for reports."""

    name: str
    launches: tuple[Launch, ...]
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    checks: bool = False
    origins: tuple[Origin, ...] = ()
    summary: tuple[str, ...] = ()


@dataclass(frozen=True)
class Segment:
    """A native function that runs kernels, by number, in order. None of a batch touches anything
    that another one of it writes: the kernels of a batch may run side by side."""

    name: str
    batches: tuple[tuple[int, ...], ...]

    @cached_property
    def kernels(self) -> tuple[int, ...]:
        return tuple(k for batch in self.batches for k in batch)


@dataclass(frozen=True)
class Prepack:
    """Prepacked weights: buffers made of parameters alone, kept from call to call, and made anew
    when one of the `sources` has changed: kernels first, then calls that pack further or ask
    whether the parameters fit the graph. Those made of constants alone are `final`."""

    segment: Segment
    calls: tuple[Extern, ...]
    makes: tuple[Buffer, ...]
    sources: tuple[Buffer, ...]
    constants: tuple[Buffer, ...] = ()
    final: bool = False

    @property
    def questions(self) -> list[str]:
        """Results that say whether the graph may compute with these parameters."""
        return [b.name for call in self.calls if call.asks for b in call.writes]


# -- inputs ------------------------------------------------------------------------------------

# What a call does about an input before it is used: nothing; look at its layout and type; bring its
# layout back, where a hook on saved tensors changed it; see that a frozen parameter is unchanged.
UNCHECKED, LAYOUT, RESTORE, FROZEN = "none", "layout", "restore", "frozen"
CHECKS = (UNCHECKED, LAYOUT, RESTORE, FROZEN)


@dataclass(frozen=True)
class Input:
    """An argument of a call: a tensor, or a number. A `tangent` is a gradient that autograd gives:
    it may be negated lazily, or zero without memory."""

    value: Buffer | Expr
    check: str = UNCHECKED
    tangent: bool = False


@dataclass(frozen=True, repr=False)
class Live:
    """An operand that is no data, as the module of a higher-order op is, and whose it is. Text has
    no place for its `value`: a plan with such operands runs in the process that made it."""

    number: int  # among those of a plan
    reason: str
    value: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"live({self.number})"


# -- steps -------------------------------------------------------------------------------------

OUTPUT, TEMPORARY, WORKSPACE, COUNTERS = "output", "temporary", "workspace", "counters"
KINDS = (OUTPUT, TEMPORARY, WORKSPACE, COUNTERS)


@dataclass(frozen=True)
class Point:
    """Enter the address of an input or a constant into the table."""

    buffer: Buffer


@dataclass(frozen=True)
class Refresh:
    """See that the prepacked weights are made of the parameters at hand."""


@dataclass(frozen=True)
class Allocate:
    """Fresh memory. An output that only kernels know is laid out as the caller will see it, `as_
    shown`. COUNTERS are zero before and after each launch."""

    buffer: Buffer
    kind: str
    as_shown: ViewArg | None = None


@dataclass(frozen=True)
class Run:
    """Run a segment of kernels."""

    segment: str


@dataclass(frozen=True)
class Call:
    """Call an ATen op, or a custom one; or check numbers. Behind it sizes are known that data
    tells: it `defines` those that are made of them, and `enters` numbers into the table."""

    op: Extern
    defines: tuple[Expr, ...] = ()
    enters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reuse:
    """In-place reuse: a kernel writes its result into the memory of another that is dead by now."""

    buffer: Buffer
    before: Buffer


@dataclass(frozen=True)
class Free:
    """Let go of tensors."""

    buffers: tuple[Buffer, ...]


@dataclass(frozen=True)
class LookAt:
    """Raise if a tensor holds NaN, or infinities that are not meant. They may be `meant` if any of
    the buffers that were looked at before held some."""

    buffer: Buffer
    where: str
    meant: bool | tuple[str, ...] = False


@dataclass(frozen=True)
class RunPartition:
    """Run a partition with some numbers and tensors; it gives others."""

    number: int
    takes: tuple[Buffer | Expr, ...]
    gives: tuple[Buffer | Expr, ...]
    defines: tuple[Expr, ...] = ()


Step = Point | Refresh | Allocate | Run | Call | Reuse | Free | LookAt | RunPartition


@dataclass(frozen=True)
class Body:
    """Inputs, steps, outputs. `symbols` are the sizes that the inputs show, `enters` the numbers of
    the table that follow from them, `points` the buffers whose entries kernels read."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    symbols: tuple[Expr, ...] = ()
    enters: tuple[str, ...] = ()
    points: frozenset[str] = frozenset()

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The tensors that it is given."""
        return tuple(i.value for i in self.inputs if isinstance(i.value, Buffer))

    @property
    def calls(self) -> Iterator[Extern]:
        return (step.op for step in self.steps if isinstance(step, Call))

    @cached_property
    def unbacked(self) -> frozenset[Expr]:
        """The sizes that no input shows, but a result of a call."""
        return frozenset(b.symbol for op in self.calls for b in op.binds)


# -- CUDA graphs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Skip:
    """What is in the way of a recording, and where it came from."""

    why: str
    origin: Origin | None = None

    def __str__(self) -> str:
        return f"{self.why} ({self.origin})" if self.origin is not None else self.why


@dataclass(frozen=True)
class Range:
    """Neighbouring steps of a graph, from `first` to before `last`, that are recorded together or
    run as they are."""

    first: int
    last: int
    recorded: bool


@dataclass(frozen=True)
class Recording:
    """How a graph is recorded as CUDA graphs: as a whole if it is asked for and nothing is in the
    way; else in partitions, the `ranges`. Where nothing is recorded, `runs` of kernels may be, each
    from its first step to before its last. `brought` are the positions, among the inputs, of
    numbers on the CPU; `shows_inputs` says that an output is an input, or a view of one."""

    asked: bool
    skips: tuple[Skip, ...]
    ranges: tuple[Range, ...]
    runs: tuple[tuple[int, int], ...]
    brought: tuple[int, ...] = ()
    shows_inputs: bool = False

    @property
    def whole(self) -> bool:
        return self.asked and not self.skips

    @property
    def recorded(self) -> int:
        """How many partitions are recorded."""
        return sum(r.recorded for r in self.ranges)

    @property
    def reasons(self) -> list[str]:
        """Why what was asked for is not done, one line for each thing in the way."""
        if not self.asked:
            return []
        instead = "it runs as it is"
        if self.recorded:
            many = "s of the graph are" if self.recorded > 1 else " of the graph is"
            instead = f"{self.recorded} part{many} recorded"
        elif self.runs:
            count = f"{len(self.runs)} run{'s' if len(self.runs) != 1 else ''} of kernels"
            instead = f"{count} recorded"
        return [f"{skip}; {instead}" for skip in dict.fromkeys(self.skips)]


@dataclass(frozen=True)
class Partition:
    """A part of a graph as a call of its own. `kernels` are the numbers of its kernels in the whole
    graph; `carried` the positions of tensors that an earlier recorded partition gives."""

    body: Body
    recorded: bool
    kernels: frozenset[int]
    carried: tuple[int, ...] = ()


def moves(slot: Slot) -> bool:
    """Whether a place in the arena depends on sizes: all regions but the first do."""
    return slot.unit is not ONE


# -- the whole ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallPlan:
    """One call. `table` is the entry of each buffer or number that kernels find there, `computed`
    the numbers among them; `slots` are the places of intermediates in the arena, whose regions are
    units and how many of them each region is long. `driver` runs the partitions, if there are any;
    `body` is the call in one piece."""

    device: str
    kernels: tuple[KernelCall, ...]
    segments: tuple[Segment, ...]
    body: Body
    constants: tuple[Buffer, ...] = ()
    prepack: Prepack | None = None
    table: dict[str, int] = field(default_factory=dict)
    computed: dict[str, Expr] = field(default_factory=dict)
    handles: dict[str, int] = field(default_factory=dict)  # of each function, on a GPU
    intermediates: tuple[tuple[Buffer, Slot], ...] = ()
    regions: tuple[tuple[Expr, int], ...] = ()
    arena_bytes: int = 0  # about as many, if sizes are symbolic
    unplanned_bytes: int = 0
    sites: tuple[Site, ...] = ()
    live: tuple[Live, ...] = ()
    recording: Recording | None = None
    driver: Body | None = None
    partitions: tuple[Partition, ...] = ()
    decisions: tuple[Decision, ...] = ()

    @cached_property
    def slots(self) -> dict[str, Slot]:
        return {buffer.name: slot for buffer, slot in self.intermediates}

    @property
    def calls(self) -> list[Extern]:
        """Every ATen call of the graph: those that prepack, then those of each call."""
        return [*(self.prepack.calls if self.prepack else ()), *self.body.calls]

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """Each function of a kernel once."""
        names = (launch.function for kernel in self.kernels for launch in kernel.launches)
        return tuple(dict.fromkeys(names))

    @cached_property
    def first_launch(self) -> list[int]:
        """The number of each kernel's first launch, among those of all kernels."""
        counts = (len(kernel.launches) for kernel in self.kernels)
        return list(accumulate(counts, initial=0))

    @property
    def workspaces(self) -> list[Buffer]:
        """Buffers that kernels use and nobody reads."""
        made = [s for s in self.body.steps if isinstance(s, Allocate)]
        return [s.buffer for s in made if s.kind in (WORKSPACE, COUNTERS)]

    @cached_property
    def segment(self) -> dict[str, Segment]:
        return {segment.name: segment for segment in self.segments}

    def may_fail(self, segment: Segment) -> bool:
        """Whether a kernel of a segment checks anything."""
        return any(self.kernels[k].checks for k in segment.kernels)


def changed_in(call: CallPlan, body: Body) -> set[Buffer]:
    """The buffers that the steps of a body write to."""
    found = {b for op in body.calls for b in op.writes}
    for step in (s for s in body.steps if isinstance(s, Run)):
        found.update(b for k in call.segment[step.segment].kernels for b in call.kernels[k].writes)
    return found
