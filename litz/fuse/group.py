"""Grouping: which of the remaining loops become one kernel.

In: loops and extern calls in order. Out: groups in execution order, with a decision for every pair
that was considered. A loop joins the group that saves the most bytes, if that is legal (`legality`)
and pays (`profit`), and if nothing between the two must run first.

Groups run in order of their first loop. A loop may join a group only if all its dependencies run in
that group or before it. That one comparison replaces a search for cycles.
"""

from __future__ import annotations

from collections import defaultdict

from litz.config import Config
from litz.fuse.anchor import CannotFuse, Group, Member, anchored, is_sequential
from litz.fuse.legality import Legality
from litz.fuse.profit import Profit
from litz.ir.choices import Choices
from litz.ir.expr import Expr, extent_of
from litz.ir.patterns import Depthwise
from litz.ir.program import (
    Buffer,
    Decision,
    Extern,
    Loop,
    buffer_bytes,
    read,
    steps_to_prepack,
    written,
)
from litz.ir.sizes import used_in
from litz.target import Target

# Only this many groups that share a read are considered per loop: work stays linear in the ops.
MAX_CANDIDATES = 8


def group_loops(
    body: tuple[Loop | Extern, ...], inputs: set[Buffer], shown: set[Buffer],
    static: frozenset[Buffer], target: Target, config: Config, choices: Choices,
) -> tuple[list[Group], list[Decision]]:  # fmt: skip
    """Walk the steps in order and let each loop join a group."""
    readers: dict[Buffer, set[int]] = defaultdict(set)
    for step in body:
        for buffer in read(step):
            readers[buffer].add(id(step))
    for buffer in (*shown, *inputs):
        readers[buffer].add(id(None))
    held = {id(step) for step in steps_to_prepack(body, static, shown | inputs)}
    legal = Legality(target, config, choices, readers, inputs)
    grouper = _Grouper(legal, Profit(target, config, choices, held))
    for step in body:
        if isinstance(step, Extern):
            grouper.add_extern(step)
        else:
            grouper.add_loop(step)
    return grouper.groups, grouper.decisions


class _Grouper:
    def __init__(self, legal: Legality, profit: Profit) -> None:
        self.legal, self.profit = legal, profit
        self.inputs, self.target, self.config = legal.inputs, legal.target, legal.config
        self.groups: list[Group] = []
        self.decisions: list[Decision] = []
        self.written_in: dict[Buffer, int] = {}
        self.read_in: dict[Buffer, list[int]] = defaultdict(list)
        # The last group that contains only small loops, by their extents.
        self.small_in: dict[tuple[Expr, ...], int] = {}
        self.bound_in: dict[Expr, int] = {}  # the call that binds a size, or its last check

    def add_extern(self, step: Extern) -> None:
        for binding in step.binds:
            self.bound_in[binding.symbol] = len(self.groups)
        if step.checks and self.bound_in:
            self.bound_in.update(dict.fromkeys(used_in(step), len(self.groups)))
        self._place(step, Group(len(self.groups), extern=step))

    def add_loop(self, loop: Loop) -> None:
        earliest = self._earliest(loop)
        name = loop.stores[0].buffer.name
        for saved, group in self._candidates(loop, earliest):
            beside = bool(group.writes.intersection(written(loop)))
            small = self._small_group(loop) == group.position
            free = beside or small
            joined = (None if free else self.profit.saves_too_little(saved)) or self._joined(
                group, loop
            )
            if isinstance(joined, CannotFuse):
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

    def _is_small(self, loop: Loop) -> bool:
        """Whether a kernel of its own would cost more to launch than to run."""
        fixed = all(extent.is_const for extent in _extents(loop))
        small = fixed and extent_of(loop.axes) <= self.target.small_loop
        return small and not is_sequential(loop)

    def _small_group(self, loop: Loop) -> int | None:
        return self.small_in.get(_extents(loop)) if self._is_small(loop) else None

    def _earliest(self, loop: Loop) -> int:
        """The first group by which all dependencies of this loop are available."""
        needed = [self.written_in[b] for b in read(loop) if b in self.written_in]
        for buffer in written(loop):
            if buffer in self.written_in:  # a scatter needs the value that it updates
                needed.append(self.written_in[buffer])
            if buffer in self.inputs:  # an update waits for every reader of the old value, or
                needed += self.read_in[
                    buffer
                ]  # joins the last of them, if `same_index_accesses` lets it
        if self.bound_in:
            needed += [self.bound_in[n] for n in used_in(loop) if n in self.bound_in]
        return max(needed, default=0)

    def _candidates(self, loop: Loop, earliest: int) -> list[tuple[int, Group]]:
        """Groups that share a buffer with the loop, most bytes saved first."""
        saved: dict[int, int] = defaultdict(int)
        for buffer in read(loop):
            near = self.read_in[buffer][-MAX_CANDIDATES:]
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
            for group in self.groups[max(earliest, len(self.groups) - MAX_CANDIDATES) :]:
                if group.extern is None:
                    saved.setdefault(group.position, 0)
        order = sorted(saved, key=lambda p: (-saved[p], -p))[:MAX_CANDIDATES]
        return [(saved[p], self.groups[p]) for p in order]

    def _joined(self, group: Group, loop: Loop) -> list[Member] | CannotFuse:
        """The members of the kernel, if the loop may join the group and that pays; cheap checks
        come first."""
        legal, profit = self.legal, self.profit
        apart = profit.runs_less_often(group, loop)
        if apart is not None:
            return apart
        joined_attention = legal.joined_attention(group, loop)
        if joined_attention is not None:
            return joined_attention
        apart = profit.too_many_ops(group, loop) or legal.conflict(group, loop)
        apart = apart or profit.too_many_arrays(group, loop)
        whole = apart or legal.whole_rows(group, loop)
        if isinstance(whole, CannotFuse):
            return whole
        among = any(map(self._is_special, (*group.loops, loop)))
        apart = profit.refuses_gemm(group, loop, whole) if among else None
        divided = apart or legal.members(group, loop, whole)
        if isinstance(divided, CannotFuse):
            return divided
        members, outer = divided
        if any(map(legal.is_blocked_gemm, group.loops)):
            apart = profit.stored_across(members[-1])
        if whole:
            return apart or profit.refuses_gemm_rows(members, group.members) or members
        return apart or profit.refuses_rows(members, extent_of(outer)) or members

    def _is_special(self, loop: Loop) -> bool:
        return isinstance(loop.pattern, Depthwise) or self.legal.is_blocked_gemm(loop)


def _extents(loop: Loop) -> tuple[Expr, ...]:
    return tuple(a.extent for a in loop.axes)
