"""Profit: whether loops that may share a kernel are better off in it.

In: a group, a loop, and how their axes would be divided. Out: None, or a `Misfit` with the reason
to leave them apart. Bytes, threads, caches and flags decide here, and nothing that a result depends
on; what is right is `legality`'s question. What works on the elements of a product one by one joins
it anyway. What makes its left operand (a cast, a norm, rows from a table) joins it if nobody else
needs that: the rows are then made once for each thread that takes some of their columns. What needs
whole rows of its result (a norm, a softmax) joins it where rows are enough for all threads.
Example: of `norm(x @ w + b)` with 256 x 768 rows on two threads, each thread takes 132 rows and
finishes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.config import Config
from litz.fuse.cost import HEAVY, cost_of, heaviest
from litz.fuse.kernels import around_product
from litz.fuse.rows import Group, Member, Misfit, is_sequential
from litz.fuse.split import few_rows, reads_along, tasks_of
from litz.ir.choices import Choices, ProductChoice
from litz.ir.expr import Expr, extent_of
from litz.ir.index import coefficient, flat_index
from litz.ir.product import Product, is_gemm, product_of, stride_of
from litz.ir.program import Loop, buffer_bytes, loads, read, written
from litz.ir.sizes import count_of
from litz.target import Target

# A pointwise loop of fewer elements gains nothing from a second thread.
WORTH_A_THREAD = 16384
A_NUMBER = 4  # bytes, about
# What a load costs, in float additions.
A_LOAD = 4
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
class Profit:
    """`held` are the loops whose results are kept from call to call, by identity."""

    target: Target
    config: Config
    choices: Choices
    held: set[int]

    def too_little(self, saved: int) -> Misfit | None:
        """Whether too few bytes are saved."""
        least = self.config.score_fusion_memory_threshold
        if self.config.aggressive_fusion or saved >= least:
            return None
        return Misfit(f"saving {saved} bytes is below score_fusion_memory_threshold={least}")

    def runs_less_often(self, group: Group, loop: Loop) -> Misfit | None:
        """Whether one of them need not run at each call."""
        if (id(loop) in self.held) == all(id(one) in self.held for one in group.loops):
            return None
        return Misfit("one of them is made of parameters alone, once and not at each call")

    def too_many_ops(self, group: Group, loop: Loop) -> Misfit | None:
        """Whether the kernel would have more ops than a flag allows."""
        ops = sum(len(member.origins) for member in (*group.loops, loop))
        if ops <= self.config.max_fusion_size:
            return None
        return Misfit(f"{ops} ops exceed max_fusion_size={self.config.max_fusion_size}")

    def too_many_arrays(self, group: Group, loop: Loop) -> Misfit | None:
        """Whether it would walk through more of them than the cache holds, or a flag allows."""
        most = self.config.max_fusion_unique_io_buffers
        used = group.reads | group.writes | set(read(loop)) | set(written(loop))
        if most is not None and len(used) > most:
            return Misfit(f"{len(used)} buffers exceed max_fusion_unique_io_buffers={most}")
        streams = sum(self.target.is_stream(buffer_bytes(b)) for b in used)
        if streams > self.target.streams:
            return Misfit(f"{streams} arrays walked at once push each other out of the cache")
        return None

    def joins_product(self, group: Group, loop: Loop, whole: bool) -> Misfit | None:
        """Whether flags, timing or the way memory is read keep a loop from a product, or a product
        from what makes its operand."""
        products = [one for one in (*group.loops, loop) if is_gemm(one)]
        chosen = all(self._choice(one).fused for one in products)
        if not is_sequential(loop):
            if self.config.epilogue_fusion and chosen:
                return None
            return Misfit("nothing joins a product (epilogue_fusion, or timing)")
        if not whole or products[0] is not loop:
            return None
        if not self.config.prologue_fusion or self._choice(loop).prologue is False:
            return Misfit("a product reads its operands from memory (prologue_fusion, or timing)")
        if not all(map(_is_read_along, group.loops)):
            return Misfit("a left operand that is read across its rows is copied first")
        return None

    def stored_across(self, member: Member) -> Misfit | None:
        """Whether neighbours along the fastest row axis of what joins a product, a column, lie
        apart where it stores them."""
        if member.inner:
            return None
        store = member.loop.stores[0]
        found = coefficient(flat_index(store.buffer, store.index), member.outer[-1])
        if found is None or not found[0].is_const or found[0].number <= 1:
            return None
        return Misfit("columns of a product would be stored across rows, one by one")

    def pays(self, members: list[Member], rows: int) -> Misfit | None:
        """Why so many rows are better not shared."""
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

    def pays_whole(self, members: list[Member], before: list[Member]) -> Misfit | None:
        """Why members that would share whole rows of a product are better left as they were
        before."""
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
        if any(heaviest(loop.stores[0].value) >= HEAVY for loop in loops):
            return Misfit("what makes the rows of the left operand takes long")
        threads, batches = self.target.threads, count_of(product.batch).hint
        made = count_of(product.rows).hint * product.depth.extent.hint
        chunks = -(-made * product.node.dtype.bytes // (self.target.l2_bytes // 2))
        sharing = -(-threads // max(chunks * batches, 1))
        again = (
            made
            * batches
            * sum(cost_of(one.stores[0].value, A_LOAD) for one in loops)
            * (sharing - 1)
            // sharing
        )
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


def _feeds_reductions(members: list[Member]) -> bool:
    """Whether one of them reduces what another one makes."""
    made = {m.loop.stores[0].buffer for m in members}
    reduced = [m.loop for m in members if is_sequential(m.loop)]
    return any(n.buffer in made for loop in reduced for n in loop.loads)


def _depend(members: list[Member]) -> bool:
    """Whether one of them reads another's result."""
    made = {m.loop.stores[0].buffer for m in members}
    return any(n.buffer in made for m in members for n in m.loop.loads)
