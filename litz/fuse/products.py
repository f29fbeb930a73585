"""What surrounds a matrix product and may share its kernel: what makes rows, what finishes them.

In: the loops of a would-be kernel with a product among them. Out: whether they share whole rows, or
a `Misfit` with the reason. What works on the elements of a product one by one joins it anyway. What
makes its left operand (a cast, a norm, rows from a table) joins it if nobody else needs that: the
rows are then made once for each thread that takes some of their columns. What needs whole rows of
its result (a norm, a softmax) joins it where rows are enough for all threads. Example: of `norm(x @
w + b)` with 256 x 768 rows on two threads, each thread takes 132 rows and finishes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from litz.config import Config
from litz.fuse.kernels import around_product
from litz.fuse.rows import Member, Misfit, is_sequential
from litz.ir.choices import Choices, ProductChoice
from litz.ir.expr import Expr, extent_of, walk
from litz.ir.ops import OPS
from litz.ir.product import (
    Product,
    fits_lanes,
    is_gemm,
    product_of,
    step_group,
    stored_load,
    stride_of,
)
from litz.ir.program import Buffer, Loop, buffer_bytes, loads, written
from litz.ir.sizes import count_of
from litz.target import Target

A_NUMBER = 4  # bytes, about
# What a load costs, in float additions.
A_LOAD = 4
# An op of this cost fills the pipes by itself: it gains nothing from a product behind it.
HEAVY = 10
# What one more kernel costs where threads share it, in float additions: some microseconds.
A_LAUNCH = 1 << 17
# The part of a product that threads may spend on rows which others make, too.
SPENT = 1 / 64
# Rows of a task that finishes them, as each task reads the whole right operand; and more of them if
# that comes from far away.
FEWEST_ROWS = 32
FEWEST_FAR_ROWS = 96
# The part of their time that threads may wait for each other.
WAITING = 0.05


@dataclass(frozen=True)
class Surroundings:
    """`readers` are the steps that read each buffer, by identity; what the caller sees has one that
    is no step."""

    target: Target
    config: Config
    choices: Choices
    readers: Mapping[Buffer, set[int]]

    def rows(self, loops: list[Loop], loop: Loop, whole: bool) -> Misfit | bool:
        """Whether a loop that may join others, one of them a product, has to share whole rows;
        `whole` says that they do so already."""
        products = [one for one in (*loops, loop) if is_gemm(one)]
        if len(products) > 1:
            return Misfit("a kernel has one product")
        if not is_sequential(loop):
            return whole
        if products[0] is loop:
            apart = self._prologue(loops, loop)
            if apart is not None:
                return apart
        return self._in_rows(products[0]) or True

    def _prologue(self, loops: list[Loop], loop: Loop) -> Misfit | None:
        """Why a product reads its left operand from memory."""
        product = product_of(loop)
        assert product is not None
        made = {b for one in loops for b in written(one)}
        left = stored_load(product.left)
        if left is None or left.buffer not in made:
            return Misfit("a product shares its tasks by panels, a reduction needs whole rows")
        if not self.config.prologue_fusion or self._choice(loop).prologue is False:
            return Misfit("a product reads its operands from memory (prologue_fusion, or timing)")
        if made.intersection(n.buffer for n in loads(product.right)):
            return Misfit("both operands of a product are made here")
        inside = {id(one) for one in (*loops, loop)}
        shared = [b.name for b in made if not inside.issuperset(self.readers[b])]
        if shared:
            return Misfit(f"others read {min(shared)}, too")
        if not all(map(_is_read_along, loops)):
            return Misfit("a left operand that is read across its rows is copied first")
        return None

    def _in_rows(self, loop: Loop) -> Misfit | None:
        """Why a product cannot be a phase of a row."""
        product = product_of(loop)
        assert product is not None
        lanes = self.target.vector_bytes // product.node.dtype.bytes
        if not self.target.panels or product.taps or not fits_lanes(product, lanes):
            return Misfit("a product shares its tasks by panels, a reduction needs whole rows")
        columns = count_of(product.columns).number
        vectors = self._choice(loop).vectors
        width = self.target.panel_columns(product.node.dtype.bytes, columns, vectors)
        if step_group(product, width, self.target.dot_group) is None:
            return Misfit("a product whose right operand does not lie in panels")
        return None

    def pays(self, members: list[Member], before: list[Member]) -> Misfit | None:
        """Why members that would share whole rows are better left as they were before."""
        (loop,) = [m.loop for m in members if m.summed]
        product = product_of(loop)
        assert product is not None
        choice = self._choice(loop)
        if loop is members[-1].loop:
            if choice.prologue:
                return None
            return self._no_gain(product.rows, product.depth) or self._too_often(product, members)
        places = around_product(members)
        if places[-1] == "before":  # several threads might run it, each for the same rows
            return Misfit("it does not wait for the product")
        ended = any(m.summed for m in before) and "behind" in around_product(before)
        if "behind" not in places or ended:
            return None
        if not self.config.epilogue_fusion or not choice.fused or choice.rows is False:
            return Misfit("nothing joins a product (epilogue_fusion, or timing)")
        if choice.rows:
            return None
        return self._no_gain(product.rows, *product.columns) or self._too_few(product)

    def _no_gain(self, rows: tuple[Expr, ...], *across: Expr) -> Misfit | None:
        """Whether neither a launch is saved nor a way to the outer caches."""
        size = extent_of(rows) * extent_of(across) * A_NUMBER
        if self.target.threads > 1 or size > self.target.l2_bytes:
            return None
        return Misfit("one thread has no launch to save, and what passes between fits the cache")

    def _too_often(self, product: Product, members: list[Member]) -> Misfit | None:
        """Whether rows take too long for every thread that needs them to make them itself."""
        loops = [m.loop for m in members if not m.summed]
        if any(_heaviest(loop) >= HEAVY for loop in loops):
            return Misfit("what makes the rows of the left operand takes long")
        threads, batches = self.target.threads, count_of(product.batch).hint
        made = count_of(product.rows).hint * product.depth.extent.hint
        chunks = -(-made * product.node.dtype.bytes // (self.target.l2_bytes // 2))
        sharing = -(-threads // max(chunks * batches, 1))
        again = made * batches * sum(map(_cost, loops)) * (sharing - 1) // sharing
        share = made * batches * count_of(product.columns).number // threads
        if again > max(A_LAUNCH, SPENT * share):
            return Misfit(f"{sharing} threads would each make the rows of the left operand")
        return None

    def _too_few(self, product: Product) -> Misfit | None:
        """Whether rows are too few for each thread to finish its own."""
        rows, batches = count_of(product.rows), count_of(product.batch)
        if not rows.is_const or not batches.is_const:
            return Misfit("how many rows there are to finish, only a call knows")
        block, threads = self.target.block_rows, self.target.threads
        total = rows.number * batches.number
        each = -(-total // (threads * block)) * block
        size = sum(buffer_bytes(n.buffer) for n in loads(product.right))
        far = size > 4 * self.target.l2_bytes
        if each < (FEWEST_FAR_ROWS if far else FEWEST_ROWS):
            return Misfit(f"{total} rows are too few to be finished by {threads} threads")
        if each * threads > (1 + WAITING) * total:
            return Misfit(f"{total} rows in blocks of {block}: {threads} threads would wait")
        return None

    def _choice(self, loop: Loop) -> ProductChoice:
        return self.choices.of_product(loop.origins)


def _is_read_along(loop: Loop) -> bool:
    """Whether neighbours of what is stored, or summed up, are neighbours of what is read, or all
    read the same."""
    store = loop.stores[0]
    last = loop.reduced[-1] if loop.reduced else store.index[-1] if store.index else None
    return last is None or all(stride_of(n, last) in (0, 1) for n in loads(store.value))


def _cost(loop: Loop) -> int:
    """Of one element, in float additions."""
    nodes = [n for n in walk(loop.stores[0].value) if n.axes]
    return sum(A_LOAD if n.op == "load" else OPS[n.op].cost for n in nodes if _counts(n.op))


def _counts(op: str) -> bool:
    return op == "load" or op in OPS


def _heaviest(loop: Loop) -> int:
    return max((OPS[n.op].cost for n in walk(loop.stores[0].value) if n.op in OPS), default=0)
