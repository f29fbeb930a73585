"""Legality: whether loops may share a kernel, whatever it would save.

In: a group and a loop that would join it. Out: how their axes are divided, or a `Misfit` with the
reason. A kernel of these loops computes what they do one after the other, and there is code for it;
whether it is quicker is `profit`'s question. Example: a sum that reads another row of what the
group makes may not join it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litz.config import Config
from litz.fuse.rows import (
    Group,
    Member,
    Misfit,
    align,
    anchored,
    common_outer,
    in_step,
    is_sequential,
    overlap,
)
from litz.ir.attention import attention_of, is_log_sum
from litz.ir.choices import Choices
from litz.ir.expr import Expr
from litz.ir.packing import fits_lanes, step_group
from litz.ir.patterns import Attention, Depthwise
from litz.ir.product import is_gemm, product_of, stored_load
from litz.ir.program import Buffer, Loop, loads, read, written
from litz.ir.sizes import count_of
from litz.target import Target

BY_PANELS = "a product shares its tasks by panels, a reduction needs whole rows"


@dataclass(frozen=True)
class Legality:
    """`readers` are the steps that read each buffer, by identity; what the caller sees has one that
    is no step."""

    target: Target
    config: Config
    choices: Choices
    readers: Mapping[Buffer, set[int]]
    inputs: set[Buffer]

    def attended(self, group: Group, loop: Loop) -> list[Member] | Misfit | None:
        """Attention, which nothing joins but the logarithms of its sums; None if there is none."""
        if not any(isinstance(one.pattern, Attention) for one in (*group.loops, loop)):
            return None
        found = attention_of(group.loops[0])
        if found is None or not is_log_sum(loop, found):
            return Misfit("attention is a kernel of its own")
        return [*group.members, anchored(loop)]

    def conflict(self, group: Group, loop: Loop) -> Misfit | None:
        """Whether one of them touches what the other writes, in an order that counts."""
        updated = self._updated(group, loop)
        if updated and not in_step([*group.loops, loop], updated):
            return Misfit(f"{min(b.name for b in updated)} is updated in place")
        if any(not _beside(loop, other) for other in group.loops):
            return Misfit("both write one buffer, and the order counts")
        if any(_scattered_into(loop, other) for other in group.loops):
            return Misfit("one reads what the other scatters into")
        return None

    def members(
        self, group: Group, loop: Loop, whole: bool
    ) -> tuple[list[Member], tuple[Expr, ...]] | Misfit:
        """All with their axes divided into rows that they share and what is inside of a row, and
        the axes of rows."""
        members = align([*group.loops, loop], self.config.loop_ordering_after_fusion, whole)
        if isinstance(members, Misfit):
            return members
        if self._updated(group, loop) and len({m.outer for m in members}) > 1:
            return Misfit("an input is updated in place, and their rows are ordered differently")
        outer = common_outer(members)
        return outer if isinstance(outer, Misfit) else (members, outer)

    def whole_rows(self, group: Group, loop: Loop) -> Misfit | bool:
        """Whether a product is among these whose rows have to be shared whole."""
        every = (*group.loops, loop)
        windows = any(isinstance(one.pattern, Depthwise) for one in every)
        if windows and is_sequential(loop):
            return Misfit("windows share their tasks by panels, a reduction needs whole rows")
        if windows or not any(map(self.in_blocks, every)):
            return False
        products = [one for one in every if is_gemm(one)]
        if len(products) > 1:
            return Misfit("a kernel has one product")
        if not is_sequential(loop):
            return any(m.summed for m in group.members)
        apart = self._operands(group.loops, loop) if products[0] is loop else None
        return apart or self._in_rows(products[0]) or True

    def in_blocks(self, loop: Loop) -> bool:
        """Whether it is a product with a schedule of its own; one row is a reduction like others
        where no panels have to be read together."""
        product = product_of(loop)
        return product is not None and (self.target.panels or bool(product.rows))

    def _operands(self, loops: list[Loop], loop: Loop) -> Misfit | None:
        """Why a product cannot read a left operand that these make, row by row."""
        product = product_of(loop)
        assert product is not None
        made = {b for one in loops for b in written(one)}
        left = stored_load(product.left)
        if left is None or left.buffer not in made:
            return Misfit(BY_PANELS)
        if made.intersection(n.buffer for n in loads(product.right)):
            return Misfit("both operands of a product are made here")
        inside = {id(one) for one in (*loops, loop)}
        shared = [b.name for b in made if not inside.issuperset(self.readers[b])]
        return Misfit(f"others read {min(shared)}, too") if shared else None

    def _in_rows(self, loop: Loop) -> Misfit | None:
        """Why a product cannot be a phase of a row."""
        product = product_of(loop)
        assert product is not None
        lanes = self.target.vector_bytes // product.node.dtype.bytes
        if not self.target.panels or product.taps or not fits_lanes(product, lanes):
            return Misfit(BY_PANELS)
        columns = count_of(product.columns).number
        vectors = self.choices.of_product(loop.origins).vectors
        width = self.target.panel_columns(product.node.dtype.bytes, columns, vectors)
        if step_group(product, width, self.target.dot_group) is None:
            return Misfit("a product whose right operand does not lie in panels")
        return None

    def _updated(self, group: Group, loop: Loop) -> set[Buffer]:
        """The inputs that one of them writes and the other reads."""
        made, given = set(written(loop)), set(read(loop))
        return self.inputs & ((group.writes & given) | (made & group.reads))


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
