"""Legality: whether loops may share a kernel, whatever it would save.

In: a group and a loop that would join it. Out: how their axes are divided, or a `CannotFuse` with
the reason. Legal means: one kernel computes the same results as these loops one after the other,
and there is code for it; whether it is faster is `profit`'s question. Example: a sum that reads
another row of the group's result may not join it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litz.config import Config
from litz.fuse.anchor import (
    CannotFuse,
    Group,
    Member,
    align,
    anchored,
    common_outer,
    is_sequential,
    may_overlap,
    same_index_accesses,
)
from litz.ir.attention import attention_of, is_logsumexp
from litz.ir.choices import Choices
from litz.ir.expr import Expr
from litz.ir.gemm import gemm_of, is_gemm, stored_load
from litz.ir.packing import fits_lanes, k_group
from litz.ir.patterns import Attention, Depthwise
from litz.ir.program import Buffer, Loop, loads, read, written
from litz.ir.sizes import count_of
from litz.target import Target

BY_PANELS = "a gemm shares its tasks by panels, a reduction needs whole rows"


@dataclass(frozen=True)
class Legality:
    """`readers` are the steps that read each buffer, by identity; a buffer that the caller sees has
    one more, which is no step."""

    target: Target
    config: Config
    choices: Choices
    readers: Mapping[Buffer, set[int]]
    inputs: set[Buffer]

    def joined_attention(self, group: Group, loop: Loop) -> list[Member] | CannotFuse | None:
        """Attention, which only its row logsumexp may join; None if there is none."""
        if not any(isinstance(one.pattern, Attention) for one in (*group.loops, loop)):
            return None
        found = attention_of(group.loops[0])
        if found is None or not is_logsumexp(loop, found):
            return CannotFuse("attention is a kernel of its own")
        return [*group.members, anchored(loop)]

    def conflict(self, group: Group, loop: Loop) -> CannotFuse | None:
        """Whether one accesses a buffer that the other writes, in an order that matters."""
        updated = self._updated(group, loop)
        if updated and not same_index_accesses([*group.loops, loop], updated):
            return CannotFuse(f"{min(b.name for b in updated)} is updated in place")
        if any(not _writes_disjoint(loop, other) for other in group.loops):
            return CannotFuse("both write one buffer, and the order counts")
        if any(_scattered_into(loop, other) for other in group.loops):
            return CannotFuse("one reads what the other scatters into")
        return None

    def members(
        self, group: Group, loop: Loop, whole: bool
    ) -> tuple[list[Member], tuple[Expr, ...]] | CannotFuse:
        """All members, with axes divided into shared rows and inner axes; and the row axes of the
        kernel."""
        members = align([*group.loops, loop], self.config.loop_ordering_after_fusion, whole)
        if isinstance(members, CannotFuse):
            return members
        if self._updated(group, loop) and len({m.outer for m in members}) > 1:
            return CannotFuse(
                "an input is updated in place, and their rows are ordered differently"
            )
        outer = common_outer(members)
        return outer if isinstance(outer, CannotFuse) else (members, outer)

    def whole_rows(self, group: Group, loop: Loop) -> CannotFuse | bool:
        """Whether these include a GEMM whose rows must be shared whole."""
        every = (*group.loops, loop)
        windows = any(isinstance(one.pattern, Depthwise) for one in every)
        if windows and is_sequential(loop):
            return CannotFuse("depthwise shares its tasks by panels, a reduction needs whole rows")
        if windows or not any(map(self.is_blocked_gemm, every)):
            return False
        gemms = [one for one in every if is_gemm(one)]
        if len(gemms) > 1:
            return CannotFuse("a kernel has one gemm")
        if not is_sequential(loop):
            return any(m.summed for m in group.members)
        apart = self._operands(group.loops, loop) if gemms[0] is loop else None
        return apart or self._in_rows(gemms[0]) or True

    def is_blocked_gemm(self, loop: Loop) -> bool:
        """Whether it is a GEMM with a schedule of its own. Without panels, a GEMM of one row is a
        plain reduction."""
        gemm = gemm_of(loop)
        return gemm is not None and (self.target.panels or bool(gemm.rows))

    def _operands(self, loops: list[Loop], loop: Loop) -> CannotFuse | None:
        """Why a GEMM cannot read, row by row, a left operand that these loops compute."""
        gemm = gemm_of(loop)
        assert gemm is not None
        made = {b for one in loops for b in written(one)}
        left = stored_load(gemm.left)
        if left is None or left.buffer not in made:
            return CannotFuse(BY_PANELS)
        if made.intersection(n.buffer for n in loads(gemm.right)):
            return CannotFuse("both operands of a gemm are made here")
        inside = {id(one) for one in (*loops, loop)}
        shared = [b.name for b in made if not inside.issuperset(self.readers[b])]
        return CannotFuse(f"others read {min(shared)}, too") if shared else None

    def _in_rows(self, loop: Loop) -> CannotFuse | None:
        """Why a GEMM cannot be a phase of a row."""
        gemm = gemm_of(loop)
        assert gemm is not None
        lanes = self.target.vector_bytes // gemm.node.dtype.bytes
        if not self.target.panels or gemm.taps or not fits_lanes(gemm, lanes):
            return CannotFuse(BY_PANELS)
        columns = count_of(gemm.columns).number
        vectors = self.choices.of_gemm(loop.origins).nr_vectors
        width = self.target.panel_columns(gemm.node.dtype.bytes, columns, vectors)
        if k_group(gemm, width, self.target.dot_group) is None:
            return CannotFuse("a gemm whose right operand is not in panels")
        return None

    def _updated(self, group: Group, loop: Loop) -> set[Buffer]:
        """The inputs that one of them writes and the other reads."""
        made, given = set(written(loop)), set(read(loop))
        return self.inputs & ((group.writes & given) | (made & group.reads))


def _scattered_into(loop: Loop, other: Loop) -> bool:
    """Whether one reads what the other scatters into. A scatter also needs the old values in memory
    first, and a loop without axes does not even look sequential."""
    one, two = loop.stores[0], other.stores[0]
    return (one.scatters and one.buffer in read(other)) or (
        two.scatters and two.buffer in read(loop)
    )


def _writes_disjoint(loop: Loop, other: Loop) -> bool:
    """Whether no element is written by both."""
    one, two = loop.stores[0], other.stores[0]
    if one.buffer != two.buffer:
        return True
    return not (one.scatters or two.scatters or may_overlap(one.index, two.index))
