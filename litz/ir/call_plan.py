"""The call as data: everything that a call of a compiled graph does, independent of any process.

In: constructors. Out: `CallPlan`, a frozen value with a text that rebuilds it (`ir/call_text.py`).
A call checks its inputs, enters the addresses of tensors into a table, and takes steps in order: it
allocates, runs segments of kernels, calls ATen ops by name, and frees. The Python wrapper, the
native driver and the CUDA graph partitions are printed from this value alone. For x + 1 the steps
are:

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

# The first entries of the table of pointers that every driver function takes: the record of a
# failed check (`ir/checks.py`), and the arena.
ERROR_RECORD, ARENA = 0, 1
# A GPU's table goes on with the stream and the address of the driver's launch function.
STREAM, LAUNCH = 2, 3

# With fewer kernels than this, launching one by one is as fast as replaying a recording.
MIN_RECORDED_KERNELS = 3


def origins_text(origins: Iterable[Origin]) -> str:
    """The ops and lines that a step serves."""
    return ", ".join(dict.fromkeys(map(str, origins))) or "an input"


# -- kernels -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """One function that a kernel may run, and its arguments: buffers by name, then sizes. `tasks`
    are spread over threads, or are the programs of a GPU's grid; `work` is how many threads they
    are worth. A kernel with variants for several sizes has a launch for each; at a call, all but
    one of them have no tasks."""

    function: str
    arguments: tuple[str, ...]
    sizes: tuple[Expr, ...] = ()
    tasks: Expr = ONE
    work: Expr = ONE
    warps: int = 0  # of a program, on a GPU
    scratch: bool = False  # whether its programs share the workspace SCRATCH


@dataclass(frozen=True)
class KernelCall:
    """A kernel of the graph as a call sees it. One that `checks` may leave the record of a failed
    check; `summary` is for reports."""

    name: str
    launches: tuple[Launch, ...]
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    checks: bool = False
    origins: tuple[Origin, ...] = ()
    summary: tuple[str, ...] = ()


@dataclass(frozen=True)
class Segment:
    """A native function that runs batches of kernels, by number, in order. No kernel of a batch
    touches a buffer that another one of it writes: they may run side by side."""

    name: str
    batches: tuple[tuple[int, ...], ...]

    @cached_property
    def kernels(self) -> tuple[int, ...]:
        return tuple(k for batch in self.batches for k in batch)


@dataclass(frozen=True)
class Prepack:
    """Prepacked weights: buffers computed from parameters alone and kept from call to call. They
    are made anew when one of the `sources` has changed: by kernels first, then by calls that pack
    further or check whether the parameters may be folded. Those made of constants alone are
    `final`."""

    segment: Segment
    calls: tuple[Extern, ...]
    makes: tuple[Buffer, ...]
    sources: tuple[Buffer, ...]
    constants: tuple[Buffer, ...] = ()
    final: bool = False

    @property
    def fold_guards(self) -> list[str]:
        """Buffers whose value says whether these parameters may be folded as the graph does."""
        return [b.name for call in self.calls if call.guards_folding for b in call.writes]


# -- inputs ------------------------------------------------------------------------------------

# What a call does with an input before it is used: nothing; check its layout and type; restore its
# layout, where a hook on saved tensors changed it; check that a frozen parameter is unchanged.
UNCHECKED, LAYOUT, RESTORE, FROZEN = "none", "layout", "restore", "frozen"
INPUT_CHECKS = (UNCHECKED, LAYOUT, RESTORE, FROZEN)


@dataclass(frozen=True)
class Input:
    """An argument of a call: a tensor, or a number. A `tangent` is a gradient from autograd: it may
    be negated lazily, or a ZeroTensor without memory."""

    value: Buffer | Expr
    check: str = UNCHECKED
    tangent: bool = False


@dataclass(frozen=True, repr=False)
class OpaqueOperand:
    """An operand that is not data, for example the module of a higher-order op; `reason` says whose
    it is. Its `value` has no text, so a plan with such operands runs only in the process that made
    it."""

    number: int  # among those of a plan
    reason: str
    value: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"opaque({self.number})"


# -- steps -------------------------------------------------------------------------------------

OUTPUT, TEMPORARY, WORKSPACE, COUNTERS = "output", "temporary", "workspace", "counters"
KINDS = (OUTPUT, TEMPORARY, WORKSPACE, COUNTERS)


@dataclass(frozen=True)
class SetPointer:
    """Enter the address of an input or a constant into the table."""

    buffer: Buffer


@dataclass(frozen=True)
class Refresh:
    """Make the prepacked weights anew if a parameter has changed."""


@dataclass(frozen=True)
class Allocate:
    """Allocate memory. An output that only kernels use is laid out as the caller will see it, the
    `output_view`. COUNTERS are zero before and after each launch."""

    buffer: Buffer
    kind: str
    output_view: ViewArg | None = None


@dataclass(frozen=True)
class Run:
    """Run a segment of kernels."""

    segment: str


@dataclass(frozen=True)
class Call:
    """Call an ATen op, a custom op, or a check of sizes. From here on its unbacked sizes are known:
    it `defines` the sizes computed from them, and `enters` numbers into the table."""

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
class NanCheck:
    """Raise if a tensor holds NaN, or an infinity without `allow_inf`. That is a bool, or names of
    buffers checked before: infinities are allowed if one of those held some."""

    buffer: Buffer
    where: str
    allow_inf: bool | tuple[str, ...] = False


@dataclass(frozen=True)
class RunPartition:
    """Run a partition: it takes numbers and tensors, and gives others."""

    number: int
    takes: tuple[Buffer | Expr, ...]
    gives: tuple[Buffer | Expr, ...]
    defines: tuple[Expr, ...] = ()


Step = SetPointer | Refresh | Allocate | Run | Call | Reuse | Free | NanCheck | RunPartition


@dataclass(frozen=True)
class Body:
    """Inputs, steps, outputs. `symbols` are the sizes read off the inputs, `enters` the numbers of
    the table that follow from them, `points` the buffers whose table entries kernels read."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    symbols: tuple[Expr, ...] = ()
    enters: tuple[str, ...] = ()
    points: frozenset[str] = frozenset()

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The inputs that are tensors."""
        return tuple(i.value for i in self.inputs if isinstance(i.value, Buffer))

    @property
    def calls(self) -> Iterator[Extern]:
        return (step.op for step in self.steps if isinstance(step, Call))

    @cached_property
    def unbacked(self) -> frozenset[Expr]:
        """The unbacked sizes: known from a call's result, not from the inputs."""
        return frozenset(b.symbol for op in self.calls for b in op.binds)


# -- CUDA graphs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Skip:
    """A reason against recording the graph, and the op that it comes from."""

    why: str
    origin: Origin | None = None

    def __str__(self) -> str:
        return f"{self.why} ({self.origin})" if self.origin is not None else self.why


@dataclass(frozen=True)
class Range:
    """Neighbouring steps of a graph, from `first` to before `last`, that are recorded together or
    run unrecorded."""

    first: int
    last: int
    recorded: bool


@dataclass(frozen=True)
class Recording:
    """How a graph is recorded as CUDA graphs: whole, if that was `asked` for and there are no
    `skips`; else in partitions, the `ranges`. If no partition is recorded, `runs` of kernels may
    be, each from its first step to before its last. `cpu_scalars` are the positions of inputs that
    are scalar tensors on the CPU; with `returns_input_alias` an output is an input, or a view of
    one."""

    asked: bool
    skips: tuple[Skip, ...]
    ranges: tuple[Range, ...]
    runs: tuple[tuple[int, int], ...]
    cpu_scalars: tuple[int, ...] = ()
    returns_input_alias: bool = False

    @property
    def whole(self) -> bool:
        return self.asked and not self.skips

    @property
    def recorded(self) -> int:
        """How many partitions are recorded."""
        return sum(r.recorded for r in self.ranges)

    @property
    def reasons(self) -> list[str]:
        """Why the graph is not recorded whole though it was asked for: one line for each skip."""
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
    graph, `parent_outputs` the positions of inputs that an earlier recorded partition computed."""

    body: Body
    recorded: bool
    kernels: frozenset[int]
    parent_outputs: tuple[int, ...] = ()


def moves(slot: Slot) -> bool:
    """Whether an arena slot's address depends on symbolic sizes: in all regions but the first."""
    return slot.unit is not ONE


# -- the whole ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallPlan:
    """One call. `table` gives the table entry of each buffer or number that kernels read there,
    `computed` the values of the numbers. `slots` are the places of intermediates in the arena;
    `regions` are its regions, each a unit and its length in units. `body` is the call in one piece;
    `driver` is the call that runs the `partitions`, if there are any."""

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
    arena_bytes: int = 0  # an estimate if sizes are symbolic
    unplanned_bytes: int = 0
    sites: tuple[Site, ...] = ()
    opaque: tuple[OpaqueOperand, ...] = ()
    recording: Recording | None = None
    driver: Body | None = None
    partitions: tuple[Partition, ...] = ()
    decisions: tuple[Decision, ...] = ()

    @cached_property
    def slots(self) -> dict[str, Slot]:
        return {buffer.name: slot for buffer, slot in self.intermediates}

    @property
    def calls(self) -> list[Extern]:
        """Every ATen call of the graph: those that prepack, then those of the body."""
        return [*(self.prepack.calls if self.prepack else ()), *self.body.calls]

    @cached_property
    def functions(self) -> tuple[str, ...]:
        """The functions of all kernels, once each."""
        names = (launch.function for kernel in self.kernels for launch in kernel.launches)
        return tuple(dict.fromkeys(names))

    @cached_property
    def first_launch(self) -> list[int]:
        """The number of each kernel's first launch, among those of all kernels."""
        counts = (len(kernel.launches) for kernel in self.kernels)
        return list(accumulate(counts, initial=0))

    @property
    def workspaces(self) -> list[Buffer]:
        """Buffers that only kernels use, as scratch memory."""
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
