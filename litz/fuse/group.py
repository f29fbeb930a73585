"""Grouping: which of the remaining loops become one kernel.

In: loops and extern calls in order. Out: groups in execution order, with a decision for every pair
that was weighed. A loop joins the group that saves it the most bytes, if rows allow it, if nothing
between the two must run first, and if the kernel stays within its limits.

Groups run in order of their first loop; a loop may join a group only if all it depends on runs in
that group or before it. That one comparison replaces a search for cycles.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from litz.config import Config
from litz.fuse.products import Surroundings
from litz.fuse.rows import (
    Member,
    Misfit,
    align,
    anchored,
    common_outer,
    in_step,
    is_sequential,
    overlap,
)
from litz.fuse.split import few_rows, reads_along, tasks_of
from litz.ir.attention import attention_of, is_log_sum
from litz.ir.choices import Choices
from litz.ir.expr import Expr, extent_of
from litz.ir.index import coefficient, flat_index
from litz.ir.patterns import Attention, Depthwise
from litz.ir.product import is_gemm, product_of
from litz.ir.program import (
    Buffer,
    Decision,
    Extern,
    Loop,
    buffer_bytes,
    read,
    steps_to_hold,
    written,
)
from litz.ir.sizes import used_in
from litz.target import Target

# Only this many groups that share a read are weighed for one loop: work stays linear in the ops.
MOST_CANDIDATES = 8
# A pointwise loop of fewer elements gains nothing from a second thread.
WORTH_A_THREAD = 16384


@dataclass
class Group:
    """Loops that become one kernel, or one extern call."""

    position: int
    loops: list[Loop] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    extern: Extern | None = None
    reads: set[Buffer] = field(default_factory=set)
    writes: set[Buffer] = field(default_factory=set)

    @property
    def steps(self) -> list[Loop] | list[Extern]:
        return self.loops if self.extern is None else [self.extern]


def group_loops(
    body: tuple[Loop | Extern, ...], inputs: set[Buffer], shown: set[Buffer],
    static: frozenset[Buffer], target: Target, config: Config, choices: Choices,
) -> tuple[list[Group], list[Decision]]:  # fmt: skip
    """Walk the steps in order and let each join what it may."""
    readers: dict[Buffer, set[int]] = defaultdict(set)
    for step in body:
        for buffer in read(step):
            readers[buffer].add(id(step))
    for buffer in (*shown, *inputs):
        readers[buffer].add(id(None))
    around = Surroundings(target, config, choices, readers)
    held = {id(step) for step in steps_to_hold(body, static, shown | inputs)}
    grouper = _Grouper(inputs, held, around)
    for step in body:
        if isinstance(step, Extern):
            grouper.add_extern(step)
        else:
            grouper.add_loop(step)
    return grouper.groups, grouper.decisions


class _Grouper:
    def __init__(self, inputs: set[Buffer], held: set[int], around: Surroundings) -> None:
        self.inputs, self.held, self.around = inputs, held, around
        self.target, self.config, self.choices = around.target, around.config, around.choices
        self.groups: list[Group] = []
        self.decisions: list[Decision] = []
        self.written_in: dict[Buffer, int] = {}
        self.read_in: dict[Buffer, list[int]] = defaultdict(list)
        # The last group of small loops alone, by their extents.
        self.small_in: dict[tuple[Expr, ...], int] = {}
        self.told_in: dict[Expr, int] = {}  # the call that tells a size, or last looks at it

    def add_extern(self, step: Extern) -> None:
        for binding in step.binds:
            self.told_in[binding.symbol] = len(self.groups)
        if step.checks and self.told_in:
            self.told_in.update(dict.fromkeys(used_in(step), len(self.groups)))
        self._place(step, Group(len(self.groups), extern=step))

    def add_loop(self, loop: Loop) -> None:
        earliest = self._earliest(loop)
        name = loop.stores[0].buffer.name
        for saved, group in self._candidates(loop, earliest):
            beside = bool(group.writes.intersection(written(loop)))
            small = self._small_group(loop) == group.position
            free = beside or small
            joined = (None if free else self._too_little(saved)) or self._joined(group, loop)
            if isinstance(joined, Misfit):
                self._decide("refused", group, name, joined.reason)
                continue
            why = "both are small" if small else "aggressive_fusion"
            worth = "stores into the same rows" if beside else f"saves a launch ({why})"
            self._decide("fused", group, name, f"saves {saved} bytes" if saved else worth)
            group.members = joined
            self._place(loop, group)
            return
        self._place(loop, Group(len(self.groups), members=[anchored(loop)]))

    def _decide(self, action: str, group: Group, name: str, reason: str) -> None:
        made = ", ".join(sorted(b.name for b in group.writes))
        self.decisions.append(Decision(action, made, name, reason))

    def _place(self, step: Loop | Extern, group: Group) -> None:
        if group.position == len(self.groups):
            self.groups.append(group)
        if isinstance(step, Loop):
            group.loops.append(step)
            if all(map(self._is_small, group.loops)):
                self.small_in[_extents(step)] = group.position
        for buffer in read(step):
            group.reads.add(buffer)
            if group.position not in self.read_in[buffer][-1:]:
                self.read_in[buffer].append(group.position)
        for buffer in written(step):
            group.writes.add(buffer)
            self.written_in[buffer] = max(group.position, self.written_in.get(buffer, 0))

    def _is_held(self, loop: Loop) -> bool:
        """Whether what it makes of parameters is kept from call to call."""
        return id(loop) in self.held

    def _is_small(self, loop: Loop) -> bool:
        """Whether a kernel of its own would cost more to start than to run."""
        fixed = all(extent.is_const for extent in _extents(loop))
        small = fixed and extent_of(loop.axes) <= self.target.small_loop
        return small and not is_sequential(loop)

    def _small_group(self, loop: Loop) -> int | None:
        return self.small_in.get(_extents(loop)) if self._is_small(loop) else None

    def _earliest(self, loop: Loop) -> int:
        """The first group in which everything this loop needs is there."""
        needed = [self.written_in[b] for b in read(loop) if b in self.written_in]
        for buffer in written(loop):
            if buffer in self.written_in:  # what a scatter combines with must be there
                needed.append(self.written_in[buffer])
            if buffer in self.inputs:  # an update waits for every reader of the old value, or
                needed += self.read_in[buffer]  # joins the last of them, if `in_step` lets it
        if self.told_in:
            needed += [self.told_in[n] for n in used_in(loop) if n in self.told_in]
        return max(needed, default=0)

    def _candidates(self, loop: Loop, earliest: int) -> list[tuple[int, Group]]:
        """Groups that share a buffer with the loop, most bytes saved first."""
        saved: dict[int, int] = defaultdict(int)
        for buffer in read(loop):
            near = self.read_in[buffer][-MOST_CANDIDATES:]
            if buffer in self.written_in:
                near = [*near, self.written_in[buffer]]
            for position in set(near):
                if position >= earliest and self.groups[position].extern is None:
                    saved[position] += buffer_bytes(buffer)
        for buffer in written(loop):
            position = self.written_in.get(buffer, -1)
            if position >= earliest and self.groups[position].extern is None:
                saved.setdefault(position, 0)
        small = self._small_group(loop)
        if small is not None and small >= earliest:
            saved.setdefault(small, 0)
        if self.config.aggressive_fusion:
            for group in self.groups[max(earliest, len(self.groups) - MOST_CANDIDATES) :]:
                if group.extern is None:
                    saved.setdefault(group.position, 0)
        order = sorted(saved, key=lambda p: (-saved[p], -p))[:MOST_CANDIDATES]
        return [(saved[p], self.groups[p]) for p in order]

    def _too_little(self, saved: int) -> Misfit | None:
        least = self.config.score_fusion_memory_threshold
        if self.config.aggressive_fusion or saved >= least:
            return None
        return Misfit(f"saving {saved} bytes is below score_fusion_memory_threshold={least}")

    def _joined(self, group: Group, loop: Loop) -> list[Member] | Misfit:
        if self._is_held(loop) != all(map(self._is_held, group.loops)):
            return Misfit("one of them is made of parameters alone, once and not at each call")
        if any(isinstance(one.pattern, Attention) for one in (*group.loops, loop)):
            attended = attention_of(group.loops[0])
            if attended is None or not is_log_sum(loop, attended):
                return Misfit("attention is a kernel of its own")
            return [*group.members, anchored(loop)]
        limit = self._limits(group, loop)
        if limit is not None:
            return limit
        whole = self._whole_rows(group, loop)
        if isinstance(whole, Misfit):
            return whole
        members = align([*group.loops, loop], self.config.loop_ordering_after_fusion, whole)
        if isinstance(members, Misfit):
            return members
        if self._updated(group, loop) and len({m.outer for m in members}) > 1:
            return Misfit("an input is updated in place, and their rows are ordered differently")
        if any(map(self._in_blocks, group.loops)) and _stores_across(members[-1]):
            return Misfit("columns of a product would be stored across rows, one by one")
        outer = common_outer(members)
        if isinstance(outer, Misfit):
            return outer
        if whole:
            return self.around.pays(members, group.members) or members
        return self._profit(members, extent_of(outer)) or members

    def _whole_rows(self, group: Group, loop: Loop) -> Misfit | bool:
        """Whether a product is among these whose rows have to be shared whole."""
        every = (*group.loops, loop)
        windows = any(isinstance(one.pattern, Depthwise) for one in every)
        if not windows and not any(map(self._in_blocks, every)):
            return False
        if windows and is_sequential(loop):
            return Misfit("windows share their tasks by panels, a reduction needs whole rows")
        if not is_sequential(loop) and not self._takes_more(group, loop):
            return Misfit("nothing joins a product (epilogue_fusion, or timing)")
        if windows:
            return False
        return self.around.rows(group.loops, loop, any(m.summed for m in group.members))

    def _in_blocks(self, loop: Loop) -> bool:
        """Whether it is a product with a schedule of its own; one row is a reduction like others
        where no panels have to be read together."""
        product = product_of(loop)
        return product is not None and (self.target.panels or bool(product.rows))

    def _takes_more(self, group: Group, loop: Loop) -> bool:
        """Whether something may join the product that is among these."""
        products = [one for one in (*group.loops, loop) if is_gemm(one)]
        chosen = all(self.choices.of_product(one.origins).fused for one in products)
        return self.config.epilogue_fusion and chosen

    def _limits(self, group: Group, loop: Loop) -> Misfit | None:
        ops = sum(len(member.origins) for member in (*group.loops, loop))
        if ops > self.config.max_fusion_size:
            return Misfit(f"{ops} ops exceed max_fusion_size={self.config.max_fusion_size}")
        updated = self._updated(group, loop)
        if updated and not in_step([*group.loops, loop], updated):
            return Misfit(f"{min(b.name for b in updated)} is updated in place")
        if any(not _beside(loop, other) for other in group.loops):
            return Misfit("both write one buffer, and the order counts")
        if any(_scattered_into(loop, other) for other in group.loops):
            return Misfit("one reads what the other scatters into")
        most = self.config.max_fusion_unique_io_buffers
        used = group.reads | group.writes | set(read(loop)) | set(written(loop))
        if most is not None and len(used) > most:
            return Misfit(f"{len(used)} buffers exceed max_fusion_unique_io_buffers={most}")
        streams = sum(self.target.is_stream(buffer_bytes(b)) for b in used)
        if streams > self.target.streams:
            return Misfit(f"{streams} arrays walked at once push each other out of the cache")
        return None

    def _updated(self, group: Group, loop: Loop) -> set[Buffer]:
        """The inputs that one of them writes and the other reads."""
        made, given = set(written(loop)), set(read(loop))
        return self.inputs & ((group.writes & given) | (made & group.reads))

    def _profit(self, members: list[Member], rows: int) -> Misfit | None:
        sequential = any(is_sequential(m.loop) for m in members)
        if not sequential:
            walked = max(extent_of(m.inner) for m in members)
            if rows < self.target.few_rows and walked > self.target.threads:
                return Misfit(f"{rows} rows of {walked} points are better taken apart")
            return None
        widest = (
            max(extent_of(m.inner) for m in members if not is_sequential(m.loop))
            if any(not is_sequential(m.loop) for m in members)
            else 0
        )
        if self.config.split_reductions and _depend(members):
            longest = max(extent_of(m.inner) for m in members)
            # What brings the pieces together goes on with what they come to, but nothing longer.
            alone = widest <= 1 and not _feeds_reductions(members)
            tasks = self._tasks(members, rows, longest)
            if few_rows(tasks, rows * longest // max(tasks, 1), self.target) and not alone:
                return Misfit(f"{rows} rows of {longest} points are split over threads instead")
        if rows < 2 * self.target.threads and rows * widest > WORTH_A_THREAD:
            return Misfit(f"{rows} rows would leave the pointwise part too few threads")
        row_bytes = sum(
            extent_of(m.inner) * m.loop.stores[0].buffer.dtype.compute.bytes
            for m in members
            if not is_sequential(m.loop)
        )
        # Where a long row comes in blocks, what is needed of it again is computed again.
        if row_bytes > self.target.l2_bytes // 2 and not self.target.longest_row:
            return Misfit(f"a row of {row_bytes} bytes does not fit the cache")
        return None

    def _tasks(self, members: list[Member], rows: int, longest: int) -> int:
        """What the programs of a GPU can share; a CPU's threads are few enough for any columns."""
        reduced = [m for m in members if is_sequential(m.loop)]
        along = all(reads_along(m.inner, m.loop.loads) for m in reduced)
        return tasks_of(rows, longest, along or not self.target.few_rows, self.target)


def _extents(loop: Loop) -> tuple[Expr, ...]:
    return tuple(a.extent for a in loop.axes)


def _feeds_reductions(members: list[Member]) -> bool:
    """Whether one of them reduces what another one makes."""
    made = {m.loop.stores[0].buffer for m in members}
    reduced = [m.loop for m in members if is_sequential(m.loop)]
    return any(n.buffer in made for loop in reduced for n in loop.loads)


def _stores_across(member: Member) -> bool:
    """Whether neighbours along its fastest row axis, a column, lie apart where it stores them."""
    if member.inner:
        return False
    store = member.loop.stores[0]
    found = coefficient(flat_index(store.buffer, store.index), member.outer[-1])
    return found is not None and found[0].is_const and found[0].number > 1


def _depend(members: list[Member]) -> bool:
    """Whether one of them reads another's result."""
    made = {m.loop.stores[0].buffer for m in members}
    return any(n.buffer in made for m in members for n in m.loop.loads)


def _scattered_into(loop: Loop, other: Loop) -> bool:
    """Whether one reads what the other scatters into, which has to be in memory before: what was
    there is part of it, and a loop of no axes does not even look as if its order counted."""
    one, two = loop.stores[0], other.stores[0]
    return (one.scatters and one.buffer in read(other)) or (
        two.scatters and two.buffer in read(loop)
    )


def _beside(loop: Loop, other: Loop) -> bool:
    """Whether no element is written by both."""
    one, two = loop.stores[0], other.stores[0]
    if one.buffer != two.buffer:
        return True
    return not (one.scatters or two.scatters or overlap(one.index, two.index))
