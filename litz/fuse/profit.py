"""Profit: whether loops that may share a kernel are faster in it.

In: a group, a loop, and how their axes would be divided. Out: None, or a `CannotFuse` with the
reason to keep them apart. Bytes, threads, caches and flags decide here, and nothing that a result
depends on; correctness is `legality`'s question. An elementwise epilogue of a GEMM always joins it.
A prologue that computes the left operand (a cast, a norm, rows of a table) joins if nothing else
reads that: each thread that takes some of the columns then computes the rows itself. An epilogue
that needs whole rows (a norm, a softmax) joins if there are enough rows for all threads. Example:
for `norm(x @ w + b)` with 256 x 768 rows on two threads, each thread takes 132 rows and finishes
them.
"""

from __future__ import annotations

from dataclasses import dataclass

from litz.config import Config
from litz.fuse.anchor import CannotFuse, Group, Member, is_sequential
from litz.fuse.cost import EXPENSIVE_OP, cost_of, max_op_cost
from litz.fuse.kernels import placed_around_gemm
from litz.fuse.split_reductions import few_rows, reads_contiguously, tasks_of
from litz.ir.choices import Choices, GemmChoice
from litz.ir.expr import Expr, extent_of
from litz.ir.gemm import GemmParts, gemm_of, is_gemm, stride_of
from litz.ir.index import coefficient, flat_index
from litz.ir.program import Loop, buffer_bytes, loads, read, written
from litz.ir.sizes import count_of
from litz.target import Target

# A pointwise loop of fewer elements gains nothing from a second thread.
MIN_PARALLEL_ELEMENTS = 16384
ELEMENT_BYTES = 4  # an estimate: most values are f32
# The cost of a load, in float additions.
LOAD_COST = 4
# The cost of one more multithreaded kernel, in float additions: some microseconds.
LAUNCH_COST = 1 << 17
# The fraction of a GEMM's time that threads may spend on rows that others compute, too.
MAX_RECOMPUTE_FRACTION = 1 / 64
# The least rows of a task that finishes whole rows, as each task reads the whole right operand; and
# more rows if that is not cached.
MIN_TASK_ROWS = 32
MIN_UNCACHED_TASK_ROWS = 96
# The fraction of their time that threads may wait for each other.
MAX_IMBALANCE = 0.05


@dataclass(frozen=True)
class Profit:
    """`held` are the loops whose results are prepacked, by identity."""

    target: Target
    config: Config
    choices: Choices
    held: set[int]

    def saves_too_little(self, saved: int) -> CannotFuse | None:
        """Whether too few bytes are saved."""
        least = self.config.score_fusion_memory_threshold
        if self.config.aggressive_fusion or saved >= least:
            return None
        return CannotFuse(f"saving {saved} bytes is below score_fusion_memory_threshold={least}")

    def runs_less_often(self, group: Group, loop: Loop) -> CannotFuse | None:
        """Whether one of them is prepacked and the other runs at each call."""
        if (id(loop) in self.held) == all(id(one) in self.held for one in group.loops):
            return None
        return CannotFuse("one of them is made of parameters alone, once and not at each call")

    def too_many_ops(self, group: Group, loop: Loop) -> CannotFuse | None:
        """Whether the kernel would have more ops than a flag allows."""
        ops = sum(len(member.origins) for member in (*group.loops, loop))
        if ops <= self.config.max_fusion_size:
            return None
        return CannotFuse(f"{ops} ops exceed max_fusion_size={self.config.max_fusion_size}")

    def too_many_arrays(self, group: Group, loop: Loop) -> CannotFuse | None:
        """Whether it streams more arrays than the cache holds, or has more than a flag allows."""
        most = self.config.max_fusion_unique_io_buffers
        used = group.reads | group.writes | set(read(loop)) | set(written(loop))
        if most is not None and len(used) > most:
            return CannotFuse(f"{len(used)} buffers exceed max_fusion_unique_io_buffers={most}")
        streams = sum(self.target.is_stream(buffer_bytes(b)) for b in used)
        if streams > self.target.max_load_streams:
            return CannotFuse(f"{streams} arrays walked at once push each other out of the cache")
        return None

    def refuses_gemm(self, group: Group, loop: Loop, whole: bool) -> CannotFuse | None:
        """Whether flags, timing or access order keep an epilogue from a GEMM, or a GEMM from the
        producer of its operand."""
        gemms = [one for one in (*group.loops, loop) if is_gemm(one)]
        chosen = all(self._choice(one).fused for one in gemms)
        if not is_sequential(loop):
            if self.config.epilogue_fusion and chosen:
                return None
            return CannotFuse("no epilogue joins a gemm (epilogue_fusion, or timing)")
        if not whole or gemms[0] is not loop:
            return None
        if not self.config.prologue_fusion or self._choice(loop).prologue is False:
            return CannotFuse("a gemm reads its operands from memory (prologue_fusion, or timing)")
        if not all(map(_is_read_along, group.loops)):
            return CannotFuse("a left operand that is read across its rows is copied first")
        return None

    def stored_across(self, member: Member) -> CannotFuse | None:
        """Whether a GEMM's epilogue would store neighbouring columns, its fastest row axis, far
        apart."""
        if member.inner:
            return None
        store = member.loop.stores[0]
        found = coefficient(flat_index(store.buffer, store.index), member.outer[-1])
        if found is None or not found[0].is_const or found[0].number <= 1:
            return None
        return CannotFuse("columns of a gemm would be stored across rows, one by one")

    def refuses_rows(self, members: list[Member], rows: int) -> CannotFuse | None:
        """Why this many rows are better not shared."""
        sequential = any(is_sequential(m.loop) for m in members)
        if not sequential:
            walked = max(extent_of(m.inner) for m in members)
            if rows < self.target.few_rows and walked > self.target.threads:
                return CannotFuse(f"{rows} rows of {walked} points are better taken apart")
            return None
        widest = (
            max(extent_of(m.inner) for m in members if not is_sequential(m.loop))
            if any(not is_sequential(m.loop) for m in members)
            else 0
        )
        if self.config.split_reductions and _depend(members):
            longest = max(extent_of(m.inner) for m in members)
            # The second kernel of a split reduction may go on with its results, but nothing longer.
            alone = widest <= 1 and not _feeds_reductions(members)
            tasks = self._tasks(members, rows, longest)
            if few_rows(tasks, rows * longest // max(tasks, 1), self.target) and not alone:
                return CannotFuse(f"{rows} rows of {longest} points are split over threads instead")
        if rows < 2 * self.target.threads and rows * widest > MIN_PARALLEL_ELEMENTS:
            return CannotFuse(f"{rows} rows would leave the pointwise part too few threads")
        row_bytes = sum(
            extent_of(m.inner) * m.loop.stores[0].buffer.dtype.compute.bytes
            for m in members
            if not is_sequential(m.loop)
        )
        # Where a long row comes in blocks, its values are recomputed, not kept.
        if row_bytes > self.target.l2_bytes // 2 and not self.target.longest_row:
            return CannotFuse(f"a row of {row_bytes} bytes does not fit the cache")
        return None

    def _tasks(self, members: list[Member], rows: int, longest: int) -> int:
        """The tasks of a GPU's programs; for a CPU's few threads any columns are enough."""
        reduced = [m for m in members if is_sequential(m.loop)]
        along = all(reads_contiguously(m.inner, m.loop.loads) for m in reduced)
        return tasks_of(rows, longest, along or not self.target.few_rows, self.target)

    def refuses_gemm_rows(self, members: list[Member], before: list[Member]) -> CannotFuse | None:
        """Why members that would share whole rows of a GEMM are better left as they were before."""
        (loop,) = [m.loop for m in members if m.summed]
        gemm = gemm_of(loop)
        assert gemm is not None
        choice = self._choice(loop)
        if loop is members[-1].loop:
            if choice.prologue:
                return None
            return self._no_gain(gemm.rows, gemm.depth) or self._recomputes_too_much(gemm, members)
        places = placed_around_gemm(members)
        if places[-1] == "before":  # several threads might run it, each for the same rows
            return CannotFuse("it does not depend on the gemm")
        ended = any(m.summed for m in before) and "behind" in placed_around_gemm(before)
        if "behind" not in places or ended:
            return None
        if not self.config.epilogue_fusion or not choice.fused or choice.rows is False:
            return CannotFuse("no epilogue joins a gemm (epilogue_fusion, or timing)")
        if choice.rows:
            return None
        return self._no_gain(gemm.rows, *gemm.columns) or self._too_few(gemm)

    def _no_gain(self, rows: tuple[Expr, ...], *across: Expr) -> CannotFuse | None:
        """Whether neither a launch nor a trip to the outer caches is saved."""
        size = extent_of(rows) * extent_of(across) * ELEMENT_BYTES
        if self.target.threads > 1 or size > self.target.l2_bytes:
            return None
        return CannotFuse(
            "one thread has no launch to save, and what passes between fits the cache"
        )

    def _recomputes_too_much(self, gemm: GemmParts, members: list[Member]) -> CannotFuse | None:
        """Whether it takes too long that every thread computes the rows it needs itself."""
        loops = [m.loop for m in members if not m.summed]
        if any(max_op_cost(loop.stores[0].value) >= EXPENSIVE_OP for loop in loops):
            return CannotFuse("what makes the rows of the left operand takes long")
        threads, batches = self.target.threads, count_of(gemm.batch).hint
        made = count_of(gemm.rows).hint * gemm.depth.extent.hint
        chunks = -(-made * gemm.node.dtype.bytes // (self.target.l2_bytes // 2))
        sharing = -(-threads // max(chunks * batches, 1))
        again = (
            made
            * batches
            * sum(cost_of(one.stores[0].value, LOAD_COST) for one in loops)
            * (sharing - 1)
            // sharing
        )
        share = made * batches * count_of(gemm.columns).number // threads
        if again > max(LAUNCH_COST, MAX_RECOMPUTE_FRACTION * share):
            return CannotFuse(f"{sharing} threads would each make the rows of the left operand")
        return None

    def _too_few(self, gemm: GemmParts) -> CannotFuse | None:
        """Whether there are too few rows for each thread to finish its own."""
        rows, batches = count_of(gemm.rows), count_of(gemm.batch)
        if not rows.is_const or not batches.is_const:
            return CannotFuse("how many rows there are to finish, only a call knows")
        block, threads = self.target.mr, self.target.threads
        total = rows.number * batches.number
        each = -(-total // (threads * block)) * block
        size = sum(buffer_bytes(n.buffer) for n in loads(gemm.right))
        far = size > 4 * self.target.l2_bytes
        if each < (MIN_UNCACHED_TASK_ROWS if far else MIN_TASK_ROWS):
            return CannotFuse(f"{total} rows are too few to be finished by {threads} threads")
        if each * threads > (1 + MAX_IMBALANCE) * total:
            return CannotFuse(f"{total} rows in blocks of {block}: {threads} threads would wait")
        return None

    def _choice(self, loop: Loop) -> GemmChoice:
        return self.choices.of_gemm(loop.origins)


def _is_read_along(loop: Loop) -> bool:
    """Whether neighbouring elements of the store or the reduction are neighbours in every load, or
    the same element."""
    store = loop.stores[0]
    last = loop.reduced[-1] if loop.reduced else store.index[-1] if store.index else None
    return last is None or all(stride_of(n, last) in (0, 1) for n in loads(store.value))


def _feeds_reductions(members: list[Member]) -> bool:
    """Whether one of them reduces another's result."""
    made = {m.loop.stores[0].buffer for m in members}
    reduced = [m.loop for m in members if is_sequential(m.loop)]
    return any(n.buffer in made for loop in reduced for n in loop.loads)


def _depend(members: list[Member]) -> bool:
    """Whether one of them reads another's result."""
    made = {m.loop.stores[0].buffer for m in members}
    return any(n.buffer in made for m in members for n in m.loop.loads)
