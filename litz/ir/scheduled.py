"""A kernel with the choices that make it code: what `schedule` hands to a target's emitter.

In: constructors. Out: frozen values. Buffers are flat here: every index is an element offset.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol

from typing_extensions import TypeVar

from litz.ir.expr import Expr, integer
from litz.ir.index import ONE, product
from litz.ir.program import Buffer, Kernel, loads
from litz.ir.sizes import rounded_up, symbols


@dataclass(frozen=True)
class Blocking:
    """How a matrix product runs: blocks of `block` rows by `width` columns in registers, `chunk`
    rows a task. Each step along the sum takes `group` neighbours; there are `taps` such sums. All
    blocks of a task pass along `stretch` steps before the next ones, and then `most` rows of sums
    wait at a time; with none, a block is summed to its end. A task takes one panel, or all of them
    if rows are finished `whole`; scratch has room for `kept` rows of it."""

    block: int
    width: int
    chunk: Expr
    batches: Expr
    rows: Expr
    columns: int
    depth: Expr  # a number, if a step takes several of it, or if there are taps
    group: int
    taps: int = 1
    stretch: int = 0
    most: int = 0
    whole: bool = False
    kept: int = 0

    @property
    def steps(self) -> Expr:
        """Whole steps along the sum."""
        return integer(self.depth.number // self.group) if self.group > 1 else self.depth

    @property
    def rest(self) -> int:
        """What whole steps leave of the sum."""
        return self.depth.number % self.group if self.group > 1 else 0

    @property
    def panels(self) -> int:
        return -(-self.columns // self.width)

    @property
    def chunks(self) -> Expr:
        return rounded_up(self.rows, self.chunk)


@dataclass(frozen=True)
class Streaming:
    """How attention runs: a task takes `vectors` vectors of query rows of one head, and columns
    pass by in blocks of `block`, `group` of them in registers at a time. Columns outside
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
        """Tasks of one head; the last one begins where it still has all its rows."""
        return self.rows if self.by_row else rounded_up(self.rows, self.tile)


@dataclass(frozen=True)
class Sliding:
    """How windows over single channels run: `block` of `count` neighbours a task, in each of as
    many rows as there are `others`."""

    block: int
    count: int
    others: int

    @property
    def blocks(self) -> int:
        """Tasks of one row."""
        return -(-self.count // self.block)


@dataclass(frozen=True)
class Choice:
    """How a kernel runs. `vector` is the outer axis whose lanes run side by side, or None if each
    phase runs its last inner axis in lanes; `unroll` is how many vectors a reduction carries;
    `chunk` is how much of the vector axis one task takes; `grain` is the least number of tasks
    worth a thread; `across` is an outer axis that loads of other rows walk along: a block of it as
    long as the lanes is one task, and such loads are transposed in registers."""

    lanes: int
    vector: Expr | None
    unroll: int
    chunk: int
    grain: int
    across: Expr | None = None
    by_rows: bool = False  # a column reduction takes whole rows, one after the other
    product: Blocking | None = None  # the kernel is a matrix product and what follows it
    attention: Streaming | None = None
    past: tuple[str, ...] = ()  # results that are written past the caches
    points: Expr = ONE  # of a task, where they are not known: its work grows with them
    sliding: Sliding | None = None  # the kernel convolves each channel by itself
    asserts: bool = False  # hold every access against the bounds of its buffer
    poison: bool = False  # fill scratch before each row
    # The instruction set whose instructions it may name (`litz/isa.py`): not a choice of ours.
    isa: str = field(default="", repr=False)

    @property
    def sizes(self) -> list[Expr]:
        """What of it may be symbolic."""
        found: list[Expr] = []
        if self.product is not None:
            found += [self.product.batches, self.product.rows, self.product.chunk]
            found.append(self.product.depth)
        if self.attention is not None:
            found += [self.attention.heads, self.attention.rows, self.attention.columns]
        return found

    def step(self, variable: Expr) -> int:
        """How much of an outer axis one task takes."""
        if variable is self.vector:
            return self.chunk
        return self.lanes if variable is self.across else 1

    def task_count(self, kernel: Kernel) -> Expr:
        """Outer points, the vector axis counted in chunks."""
        if self.product is not None:
            panels = 1 if self.product.whole else self.product.panels
            return product((self.product.batches, self.product.chunks, integer(panels)))
        if self.attention is not None:
            return product((self.attention.heads, self.attention.tiles))
        if self.sliding is not None:
            return integer(self.sliding.others * self.sliding.blocks)
        return product(rounded_up(a.extent, self.step(a)) for a in kernel.outer)

    @property
    def how(self) -> str:
        """In a few words, for reports."""
        lanes = f"{self.lanes} lanes" + (" of the outer axis" if self.vector is not None else "")
        return lanes + (", transposed in registers" if self.across is not None else "")

    def line(self, tasks: int) -> str:
        """The same with how many tasks there are, for the text of a kernel."""
        where = "each phase's last inner axis" if self.vector is None else self.vector.attr
        return f"lanes {self.lanes} along {where}, {tasks} tasks, {self.grain} a thread"


@dataclass(frozen=True)
class Tiling:
    """How a kernel runs on a GPU, where a program takes a tile: `blocks` points of each outer axis
    and `row` points of a row at a time. A phase whose row is no longer than that has it in
    registers, whole; `ordered` says that where stores may meet, points come one after the other
    instead of all at once; `wide` says that places need 64 bits. A matrix product takes `depth`
    points of its sum a step, and tiles of columns pass by `together` tiles of rows at a time, so
    that both stay in the cache. With `programs`, there are no more of them than that, and each
    takes one tile after the other. `descriptors` are the operands that the GPU's own engine copies,
    tile by tile; `precision` is how tensor cores multiply f32. `online` says that one loop finds
    the maximum of a long row and the sum of exponentials below it. The points of a row are shared
    by `share` programs, `piece` points each; the last of them to end joins what they have.
    `block_pointers` says that accesses at even steps are written as such; `aligned`, that blocks
    of a row that begins at an odd place are counted from an even one."""

    blocks: tuple[int, ...]
    row: int = 1
    warps: int = 4
    stages: int = 1
    ordered: bool = False
    wide: bool = False
    depth: int = 0  # no matrix product
    together: int = 1
    programs: int = 0
    descriptors: tuple[str, ...] = ()  # among "left" and "right"
    precision: str = ""
    online: bool = True
    share: int = 1
    piece: int = 0
    block_pointers: bool = False
    aligned: bool = True

    def block(self, inner: Expr) -> int:
        """Points of a row axis taken at a time."""
        if not inner.extent.is_const:
            return self.row
        return min(self.row, power_of_two(inner.extent.number))

    @property
    def sizes(self) -> list[Expr]:
        """What of it may be symbolic: nothing."""
        return []

    def task_count(self, kernel: Kernel) -> Expr:
        """Programs."""
        sizes = zip(kernel.outer, self.blocks, strict=True)
        tiles = product(rounded_up(a.extent, block) for a, block in sizes)
        shared = product((tiles, integer(self.share)))
        return integer(min(self.programs, tiles.number)) if self.programs else shared

    @property
    def how(self) -> str:
        """In a few words, for reports."""
        return f"tiles of {' x '.join(map(str, (*self.blocks, self.row)))}, {self.warps} warps"

    def line(self, tasks: int) -> str:
        """The same with how many programs there are, for the text of a kernel."""
        return f"{tasks} programs, {self}"


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


class AnyChoice(Protocol):
    """What everyone may ask of a choice, whichever target it is for."""

    @property
    def sizes(self) -> list[Expr]: ...
    @property
    def how(self) -> str: ...
    def task_count(self, kernel: Kernel) -> Expr: ...
    def line(self, tasks: int) -> str: ...


C = TypeVar("C", default=Choice, bound=AnyChoice)


@dataclass(frozen=True)
class Variant:
    """A schedule for calls whose measure is at least this."""

    begins: int
    scheduled: ScheduledKernel


@dataclass(frozen=True)
class ScheduledKernel(Generic[C]):
    """`arguments` are the buffers a call passes, in order; names inside are canonical, so that
    kernels of equal structure are equal and compile once. A CPU's choice is a `Choice`, a GPU's a
    `Tiling`."""

    kernel: Kernel
    arguments: tuple[Buffer, ...]
    choice: C
    steps: tuple[str, ...] = ()  # what was done to the loops, for explain
    # Ways to run it by a `measure` of a call's sizes, itself among them; none if it has but one.
    variants: tuple[Variant, ...] = ()
    measure: Expr = ONE

    @property
    def tasks(self) -> int:
        """About how many there are."""
        return self.task_count.hint

    @property
    def task_count(self) -> Expr:
        """Independent pieces of work: tasks of a CPU, programs of a GPU."""
        return self.choice.task_count(self.kernel)

    @property
    def structure(self) -> object:
        """What its code depends on: everything but its name, origins and real buffers."""
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
