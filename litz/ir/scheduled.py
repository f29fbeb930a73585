"""Scheduled kernels: a kernel with the choices that `schedule` made, for a target's emitter.

In: constructors. Out: frozen values. Buffers are flat here: every index is an element offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol

from typing_extensions import TypeVar

from litz.ir.expr import Expr, integer
from litz.ir.index import ONE, size_product
from litz.ir.program import Buffer, Kernel, loads
from litz.ir.sizes import ceil_div, symbols


@dataclass(frozen=True)
class GemmBlocking:
    """How a gemm runs: register blocks of `mr` rows by `nr` columns, `mc` rows a task. Each step
    along K takes `group` neighbours; there are `taps` such sums. With a `k_block`, all blocks of a
    task do so many steps before the next ones, and the partial sums of `partial_rows` rows at a
    time are kept in memory; without one, a block is summed to its end. A task takes one panel, or
    all of them if it finishes `full_rows`; scratch has room for `scratch_rows` rows."""

    mr: int
    nr: int
    mc: Expr
    batches: Expr
    rows: Expr
    columns: int
    depth: Expr  # a constant if `group` > 1 or if there are taps
    group: int
    taps: int = 1
    k_block: int = 0
    partial_rows: int = 0
    full_rows: bool = False
    scratch_rows: int = 0

    @property
    def steps(self) -> Expr:
        """Whole steps along K."""
        return integer(self.depth.number // self.group) if self.group > 1 else self.depth

    @property
    def rest(self) -> int:
        """Elements along K that whole steps leave over."""
        return self.depth.number % self.group if self.group > 1 else 0

    @property
    def panels(self) -> int:
        return -(-self.columns // self.nr)

    @property
    def m_blocks(self) -> Expr:
        return ceil_div(self.rows, self.mc)


@dataclass(frozen=True)
class AttentionTiling:
    """How flash attention runs: a task takes `vectors` vectors of query rows of one head and walks
    the columns in blocks of `block`, `group` of them in registers at a time. Columns outside
    row + `low` .. row + `high` are masked. With no vectors a task is one row, columns in lanes."""

    vectors: int
    block: int
    group: int
    heads: Expr
    rows: Expr
    columns: Expr
    depth: int
    width: int
    low: int | None
    high: int | None
    lanes: int

    @property
    def by_row(self) -> bool:
        return self.vectors == 0

    @property
    def tile(self) -> int:
        """Rows of a task."""
        return self.vectors * self.lanes

    @property
    def tiles(self) -> Expr:
        """Tasks of one head; the last one starts early enough to have all its rows."""
        return self.rows if self.by_row else ceil_div(self.rows, self.tile)


@dataclass(frozen=True)
class DepthwiseTiling:
    """How a depthwise convolution runs: a task takes `block` of the `count` neighbouring windows of
    a row; `others` is the number of rows."""

    block: int
    count: int
    others: int

    @property
    def blocks(self) -> int:
        """Tasks of one row."""
        return -(-self.count // self.block)


@dataclass(frozen=True)
class Choice:
    """How a kernel runs on a CPU. `vector` is the outer axis that runs in vector lanes, or None if
    each phase runs its last inner axis in lanes. `unroll` is how many vectors of accumulators a
    reduction has; `chunk` is how much of the vector axis one task takes; `grain` is the least
    number of tasks worth a thread. `transpose_axis` is an outer axis along which some loads are
    contiguous: a task takes as much of it as there are lanes, and those loads go through a register
    transpose."""

    lanes: int
    vector: Expr | None
    unroll: int
    chunk: int
    grain: int
    transpose_axis: Expr | None = None
    row_by_row: bool = False  # a column reduction takes whole rows, one after the other
    gemm: GemmBlocking | None = None  # the kernel is a gemm with its epilogue
    attention: AttentionTiling | None = None
    non_temporal: tuple[str, ...] = ()  # results that are stored past the caches
    points: Expr = ONE  # points of a task if they are symbolic: its work grows with them
    depthwise: DepthwiseTiling | None = None  # the kernel is a depthwise convolution
    asserts: bool = False  # check every access against the bounds of its buffer
    poison: bool = False  # fill scratch before each row
    # The instruction set whose instructions it may use (`litz/isa.py`): a fact, not a choice.
    isa: str = field(default="", repr=False)

    @property
    def sizes(self) -> list[Expr]:
        """The sizes in it that may be symbolic."""
        found: list[Expr] = []
        if self.gemm is not None:
            found += [self.gemm.batches, self.gemm.rows, self.gemm.mc]
            found.append(self.gemm.depth)
        if self.attention is not None:
            found += [self.attention.heads, self.attention.rows, self.attention.columns]
        return found

    def step(self, variable: Expr) -> int:
        """How much of an outer axis one task takes."""
        if variable is self.vector:
            return self.chunk
        return self.lanes if variable is self.transpose_axis else 1

    def task_count(self, kernel: Kernel) -> Expr:
        """The number of tasks: outer points, the vector axis counted in chunks."""
        if self.gemm is not None:
            panels = 1 if self.gemm.full_rows else self.gemm.panels
            return size_product((self.gemm.batches, self.gemm.m_blocks, integer(panels)))
        if self.attention is not None:
            return size_product((self.attention.heads, self.attention.tiles))
        if self.depthwise is not None:
            return integer(self.depthwise.others * self.depthwise.blocks)
        return size_product(ceil_div(a.extent, self.step(a)) for a in kernel.outer)

    @property
    def how(self) -> str:
        """A few words for reports."""
        lanes = f"{self.lanes} lanes" + (" of the outer axis" if self.vector is not None else "")
        return lanes + (", transposed in registers" if self.transpose_axis is not None else "")

    def line(self, tasks: int) -> str:
        """A line for the text of a kernel, with the number of tasks."""
        where = "each phase's last inner axis" if self.vector is None else self.vector.attr
        return f"lanes {self.lanes} along {where}, {tasks} tasks, {self.grain} a thread"


@dataclass(frozen=True)
class Tiling:
    """How a kernel runs on a GPU. A program takes a tile: `blocks` points of each outer axis, and
    `row` points of a row at a time; a row that is no longer is in registers as a whole. `ordered`:
    where stores may collide, points run one after the other instead of all at once. `wide`: offsets
    need 64 bits. A gemm takes `depth` points along K a step; `group_m` tiles of rows share each
    tile of columns, so that both stay in L2. With `programs` it is persistent: there are at most so
    many, and each takes one tile after the other. `descriptors` are the operands that the TMA
    copies; `precision` is how tensor cores multiply f32. `online`: one loop finds the maximum of a
    long row and its sum of exponentials (online softmax). In a cooperative reduction, `rsplit`
    programs share a row, `rsplit_points` points each; the last one to finish combines their
    results. `block_pointers`: strided accesses use them. `aligned`: blocks of an unaligned row are
    counted from an aligned offset."""

    blocks: tuple[int, ...]
    row: int = 1
    warps: int = 4
    stages: int = 1
    ordered: bool = False
    wide: bool = False
    depth: int = 0  # 0 if it is no gemm
    group_m: int = 1
    programs: int = 0
    descriptors: tuple[str, ...] = ()  # among "left" and "right"
    precision: str = ""
    online: bool = True
    rsplit: int = 1
    rsplit_points: int = 0
    block_pointers: bool = False
    aligned: bool = True

    def block(self, inner: Expr) -> int:
        """Points of a row axis taken at a time."""
        if not inner.extent.is_const:
            return self.row
        return min(self.row, power_of_two(inner.extent.number))

    @property
    def sizes(self) -> list[Expr]:
        """The sizes in it that may be symbolic: none."""
        return []

    def task_count(self, kernel: Kernel) -> Expr:
        """The number of programs."""
        sizes = zip(kernel.outer, self.blocks, strict=True)
        tiles = size_product(ceil_div(a.extent, block) for a, block in sizes)
        shared = size_product((tiles, integer(self.rsplit)))
        return integer(min(self.programs, tiles.number)) if self.programs else shared

    @property
    def how(self) -> str:
        """A few words for reports."""
        return f"tiles of {' x '.join(map(str, (*self.blocks, self.row)))}, {self.warps} warps"

    def line(self, tasks: int) -> str:
        """A line for the text of a kernel, with the number of programs."""
        return f"{tasks} programs, {self}"


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


class AnyChoice(Protocol):
    """The interface of a choice, whichever target it is for."""

    @property
    def sizes(self) -> list[Expr]: ...
    @property
    def how(self) -> str: ...
    def task_count(self, kernel: Kernel) -> Expr: ...
    def line(self, tasks: int) -> str: ...


C = TypeVar("C", default=Choice, bound=AnyChoice)


@dataclass(frozen=True)
class SizeVariant:
    """A schedule for calls whose `measure` is at least `begins`."""

    begins: int
    scheduled: ScheduledKernel


@dataclass(frozen=True)
class ScheduledKernel(Generic[C]):
    """`arguments` are the buffers that a call passes, in order. Names inside are canonical, so that
    kernels of equal structure are equal and compile once. `choice` is a `Choice` on a CPU, a
    `Tiling` on a GPU."""

    kernel: Kernel
    arguments: tuple[Buffer, ...]
    choice: C
    steps: tuple[str, ...] = ()  # transformations of the loops, for explain
    # Schedules to choose from by a `measure` of a call's sizes, this one among them; or none.
    variants: tuple[SizeVariant, ...] = ()
    measure: Expr = ONE

    @property
    def tasks(self) -> int:
        """The number of tasks; an estimate if sizes are symbolic."""
        return self.task_count.hint

    @property
    def task_count(self) -> Expr:
        """The number of independent units of work: tasks of a CPU, programs of a GPU."""
        return self.choice.task_count(self.kernel)

    @property
    def structure(self) -> object:
        """All that its code depends on: everything but its name, origins and real buffers."""
        return (self.kernel.outer, self.kernel.phases, self.kernel.scratch, self.choice)

    @property
    def sizes(self) -> tuple[Expr, ...]:
        """The symbolic sizes that its code needs: arguments behind the buffers."""
        kernel, choice = self.kernel, self.choice
        roots = [a.extent for a in kernel.outer]
        roots += [a.extent for p in kernel.phases for a in p.inner]
        roots += [n for s in kernel.stores for n in (s.value, *s.index, *s.buffer.shape)]
        roots += [n for s in kernel.stores for node in loads(s.value) for n in node.buffer.shape]
        roots += [n for b in kernel.scratch for n in b.shape]
        roots += choice.sizes
        return tuple(sorted(dict.fromkeys(symbols(*roots)), key=lambda n: str(n.attr[0])))
