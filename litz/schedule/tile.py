"""Tiles: the points that a program of a GPU kernel takes, chosen from sizes and strides.

In: a flat `Kernel` in canonical axes. Out: the kernel over at most three outer axes and one row
axis per phase, and a `Tiling`. Neighbouring threads must touch neighbouring elements. All outer
axes therefore become one, whose fastest part is the axis that most accesses are contiguous along;
an access that is contiguous along another axis makes that a side of the tile of its own. Example:
`y[i, j] = x[j, i]` of 1024 x 1024 has tiles of 32 x 32; its rows and columns are axes y and x.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from litz.config import Config
from litz.errors import UnsupportedOp
from litz.ir.dtypes import BF16, F16, F32, F64, I32, I64, DType
from litz.ir.expr import Expr, axis, extent_of, integer, walk
from litz.ir.gpu_rows import cooperative_phase
from litz.ir.index import ONE, floordiv, modulo, to_poly
from litz.ir.ops import OPS, REDUCTIONS
from litz.ir.program import (
    Buffer,
    Kernel,
    Phase,
    exprs_of,
    loads,
    reductions_of,
)
from litz.ir.scheduled import ScheduledKernel, Tiling, power_of_two
from litz.ir.sizes import count_of, greatest, is_known
from litz.schedule.axes import Axes, replace_axes, stride_along
from litz.target import GpuTarget

# Points of a tile: enough to hide latency, few enough to stay in registers. The numbers in comments
# are microseconds on an H200 (`tests_gpu.singles`), the earlier tile first.
TILE = 1024  # x + 1 of 2^26 points: 2048 points 134, 1024 128
COMPUTE_BOUND_TILE = 2048  # gelu of 4096 x 12288: with 512 points a warp 72, with 1024 68
REDUCED_TILE = 4096
# Sides of a tile that is read along one axis and written along another, if there are many tiles:
# a transpose of 8192 x 8192 in 32 x 32 138, in 64 x 64 131.
TRANSPOSE_SIDE = 32
LONG_TRANSPOSE_SIDE = 64
# Sides of fewer points together are no tile: their axes stay with the others.
MIN_TILE = 128
# Columns that neighbouring threads take in a column reduction, without and with a store at each
# point; rows of such a tile; its warps. A bias gradient: 128 columns 20, 64 columns 16.
COLUMNS, STORED_COLUMNS = 64, 128
COLUMN_ROWS = 16
POINTS_PER_COLUMN_WARP = 512
# The longest row that each thread walks alone, if its points are not contiguous.
MAX_SERIAL_ROW = 32
# Programs that keep a multiprocessor busy.
PROGRAMS = 4
POINTS_PER_WARP = 256
POINTS_PER_COMPUTE_BOUND_WARP = 1024
# For windows that each thread walks alone: more would be too far apart. A 3 x 3 pool: 512 71, 128
# 42, 64 28.
POINTS_PER_WINDOW_WARP = 64
# The cost per loaded element, in additions, from which on a point is bound by compute.
COMPUTE_BOUND_COST = 20
# Warps of a row, if there are enough rows: each thread then has several loads in flight.
ROW_WARPS = 4
POINTS_PER_SHORT_ROW_WARP = 512
POINTS_PER_ROW_WARP = 1024
# Cooperative reductions: points that are worth a program, and the points of one of its steps:
# argmax of 2^26 points by 4096 78, by 2048 70.
COOPERATIVE_POINTS = 1 << 13
COOPERATIVE_ROW = 2048
# Pipeline stages of a row's blocks if each point is stored in four bytes or more: log_softmax of
# 50304 467 to 430, softmax along columns 134 to 106, a long cumsum 129 to 97; with two bytes it
# costs more than it gains (softmax of 50304 401 to 427).
STORED_STAGES = 3
# Bytes of shared memory that are reserved for layout conversions between threads.
LAYOUT_CONVERSION_BYTES = 32 << 10
# Limits of candidates: points of a program, points of a thread, warps; and their pipeline stages.
MAX_POINTS = 1 << 15
MAX_POINTS_PER_THREAD = 64
MAX_WARPS = 32
STAGES = (2, 3)
# Neighbours that are timed by default.
FEW_CANDIDATES = 2
# Indices from here on need 64 bits; masked lanes may be up to a tile beyond the last element.
INT32_INDEX_LIMIT = 2**31 - 2**20
NAMES = ("z", "y", "x")
# The dtypes of the GPU's atomic add.
ATOMIC_ADD_DTYPES: frozenset[DType] = frozenset({F16, BF16, F32, F64, I32, I64})


def parallelize_scatter(kernel: Kernel, config: Config) -> Kernel:
    """Points of a scatter become parallel, and atomics combine those with the same index.

    outer o0, phase j0: b0[index[j0], o0] add= ...   ->   outer j0, o0: b0[index[j0], o0] add= ...
    """
    (phase, *others) = kernel.phases
    if others or not phase.inner or phase.completing or _ordered(kernel, config):
        return kernel
    if not all(s.scatters for s in phase.stores) or _has(kernel, "scan"):
        return kernel
    points = Phase((), False, phase.stores)
    return replace(kernel, outer=phase.inner + kernel.outer, phases=(points,))


def _ordered(kernel: Kernel, config: Config) -> bool:
    """Whether points that may have the same index must be combined in order."""
    modes = {(s.mode, s.buffer.dtype) for s in kernel.stores if s.scatters}
    atomic = all(m == "put" or (m == "add" and d in ATOMIC_ADD_DTYPES) for m, d in modes)
    wanted = config.triton.atomics and not torch.are_deterministic_algorithms_enabled()
    return not (atomic and wanted)


def _has(kernel: Kernel, op: str) -> bool:
    return any(n.op == op for n in walk(*exprs_of(kernel)))


def tile_axes(kernel: Kernel, target: GpuTarget, config: Config) -> tuple[Kernel, Tiling]:
    """Group the axes, make each group one axis, choose block sizes."""
    rows = any(p.inner for p in kernel.phases)
    groups = [kernel.outer] if rows else _sides(kernel)
    whole = collapse_axes(kernel, [g for g in groups if g])
    tiling = _reduction(whole, target) if rows else _pointwise(whole, target)
    ordered = any(s.scatters for s in kernel.stores) and _ordered(kernel, config)
    tiling = _cooperative(whole, tiling, target)
    far = needs_int64_index(whole)
    if far and config.assume_32bit_indexing:
        origin = whole.origins[-1] if whole.origins else None
        why = "its places do not fit 32 bits, which assume_32bit_indexing promises"
        raise UnsupportedOp(whole.name, origin, why)
    return whole, replace(
        tiling,
        ordered=ordered,
        wide=far,
        online=config.online_softmax,
        block_pointers=config.triton.use_block_ptr,
    )


# -- axes ------------------------------------------------------------------------------------


def _sides(kernel: Kernel) -> list[Axes]:
    """The outer axes by sides of the tile: first those without a side, last the stored axis."""
    if not kernel.outer:
        return []
    last = kernel.outer[-1]
    crossing: list[Expr] = []
    for node in loads(*exprs_of(kernel)):
        along = [a for a in kernel.outer if stride_along(node.index[0], a) == 1]
        far = stride_along(node.index[0], last) > 1
        if far and along and along[0] is not last and along[0] not in crossing:
            crossing.append(along[0])
    sides = crossing[: len(NAMES) - 1]
    if not sides or extent_of((*sides, last)) < MIN_TILE:
        return [kernel.outer]
    rest = tuple(a for a in kernel.outer if a is not last and a not in sides)
    if rest and len(sides) == len(NAMES) - 1:  # the slower side takes in the rest
        return [(*rest, sides[1]), (sides[0],), (last,)]
    return [rest, *((a,) for a in reversed(sides)), (last,)]


def collapse_axes(kernel: Kernel, groups: list[Axes]) -> Kernel:
    """Make each group one axis, and the inner axes of each phase another."""
    outer: dict[Expr, Expr] = {}
    names = NAMES[len(NAMES) - len(groups) :]
    made = [axis(n, count_of(g)) for n, g in zip(names, groups, strict=True)]
    for group, whole in zip(groups, made, strict=True):
        outer.update(_digits(group, whole))
    places = {a: (whole,) if k == 0 else () for group, whole in zip(groups, made, strict=True)
              for k, a in enumerate(group)}  # fmt: skip
    phases: list[Phase] = []
    rows: dict[Expr, Expr] = {}
    for phase in kernel.phases:
        inner = _forwards(phase)
        n = count_of(inner)
        # One name per length: Triton's variables keep their type.
        row = rows.setdefault(n, axis(f"r{len(rows) or ''}", n))
        values = outer | _digits(inner, row)
        bound = places | {a: (row,) if k == 0 else () for k, a in enumerate(inner)}
        one = Kernel(kernel.name, (), (replace(phase, inner=inner),), ())
        phases += replace_axes(one, bound, values).phases
    return replace(kernel, outer=tuple(made), phases=tuple(phases))


def _digits(axes: Axes, whole: Expr) -> dict[Expr, Expr]:
    """Each axis in terms of the row-major number of all of them."""
    digits: dict[Expr, Expr] = {}
    left = whole
    for k, variable in enumerate(reversed(axes)):
        digits[variable] = left if k == len(axes) - 1 else modulo(left, variable.extent)
        left = floordiv(left, variable.extent)
    return digits


def _forwards(phase: Phase) -> Axes:
    """The inner axes, with the one that most loads are contiguous along last; argmax and argmin
    keep their order."""
    nodes = [n for s in phase.stores for n in walk(s.value)]
    places = any(n.op == "reduce" and REDUCTIONS[n.attr[0]].gives_index for n in nodes)
    if len(phase.inner) < 2 or places:
        return phase.inner
    found = [n.index[0] for n in nodes if n.op == "load"]
    near = {a: sum(stride_along(i, a) == 1 for i in found) for a in phase.inner}
    best = max(phase.inner, key=lambda a: near[a])
    if not near[best] or near[phase.inner[-1]] == near[best]:
        return phase.inner
    return (*(a for a in phase.inner if a is not best), best)


# -- blocks ----------------------------------------------------------------------------------


def _pointwise(kernel: Kernel, target: GpuTarget) -> Tiling:
    """Tiles of one or two thousand points, smaller if there would be too few tiles."""
    extents = [_about(a) for a in kernel.outer]
    if len(extents) < 2:
        count = extents[0] if extents else 1
        heavy = _is_compute_bound(kernel)
        block = min(power_of_two(count), COMPUTE_BOUND_TILE if heavy else TILE)
        while block > 128 and count < block * target.threads:
            block //= 2
        warps = _warps(block, POINTS_PER_COMPUTE_BOUND_WARP if heavy else POINTS_PER_WARP)
        return Tiling((block,) * len(extents), warps=warps)
    many = math.prod(extents) >= LONG_TRANSPOSE_SIDE**2 * PROGRAMS * target.threads
    side = LONG_TRANSPOSE_SIDE if many else TRANSPOSE_SIDE
    sides = [min(power_of_two(n), side) for n in extents[-2:]]
    if sides[0] * sides[1] < TILE:  # one side is short: the other may be longer
        sides = [min(power_of_two(n), TILE // min(sides)) for n in extents[-2:]]
    first = [1] * (len(extents) - 2)
    return Tiling((*first, *sides), warps=_warps(sides[0] * sides[1]))


def _is_compute_bound(kernel: Kernel) -> bool:
    """Whether computing a point takes longer than loading it."""
    nodes = list(walk(*(s.value for s in kernel.stores)))
    cost = sum(OPS[n.op].cost for n in nodes if n.op in OPS and n.dtype.is_float)
    return cost >= COMPUTE_BOUND_COST * max(sum(n.op == "load" for n in nodes), 1)


def _about(axis: Expr) -> int:
    """Points of an axis; a symbolic extent may be large."""
    return axis.extent.number if axis.extent.is_const else max(axis.extent.hint, TILE)


def _has_known_rows(kernel: Kernel) -> bool:
    return is_known(*(a.extent for p in kernel.phases for a in p.inner))


def _reduction(kernel: Kernel, target: GpuTarget) -> Tiling:
    """Rows in registers if they fit, else in blocks; a column reduction takes columns together."""
    rows = extent_of(kernel.outer)
    longest = max(extent_of(p.inner) for p in kernel.phases)
    if not _has_known_rows(kernel):  # another call may have longer rows
        longest = max(longest, TILE)
    if _is_serial_row(kernel, longest):
        tiling = _pointwise(kernel, target)
        return replace(tiling, warps=_warps(math.prod(tiling.blocks), POINTS_PER_WINDOW_WARP))
    if rows > 1 and _reduces_columns(kernel):
        return _columns(kernel, target, rows, longest)
    row = power_of_two(longest)
    if longest > target.longest_row:
        row = REDUCED_TILE
    elif not _has_known_rows(kernel):  # it is read in blocks, whatever its length is
        row = min(row, REDUCED_TILE)
    block = max(min(TILE // row, power_of_two(rows)), 1)
    while block > 1 and rows < block * PROGRAMS * target.threads:
        block //= 2
    warps = _warps(block * row)
    if rows >= PROGRAMS * target.threads and longest <= target.longest_row:
        short = min(ROW_WARPS, _warps(block * row, POINTS_PER_SHORT_ROW_WARP))
        warps = min(warps, max(short, _warps(block * row, POINTS_PER_ROW_WARP)))
    stages = _stages(kernel, block * row, target) if longest > row else 1
    return Tiling((block,) * len(kernel.outer), row, warps=warps, stages=stages)


def _columns(kernel: Kernel, target: GpuTarget, rows: int, longest: int) -> Tiling:
    """Neighbouring threads take neighbouring columns, a few points of each at a time."""
    stores = any(p.inside for p in kernel.phases)
    most = STORED_COLUMNS if stores else COLUMNS
    block = min(power_of_two(rows), most)
    while block > 16 and rows < block * target.threads and not _may_cooperate(kernel, target):
        block //= 2
    row = min(power_of_two(longest), COLUMN_ROWS * most // block)
    warps = _warps(block * row, POINTS_PER_COLUMN_WARP)
    stages = _stages(kernel, block * row, target) if longest > row else 1
    return Tiling((block,) * len(kernel.outer), row, warps=warps, stages=stages)


def _stages(kernel: Kernel, points: int, target: GpuTarget) -> int:
    """Pipeline stages of a row's blocks: blocks in flight are in shared memory."""
    rows = [p for p in kernel.phases if p.inner]
    stored = [s.buffer.dtype.bytes for p in rows for s in p.inside]
    if not stored or min(stored) < 4:
        return 1
    read = [sum(n.dtype.bytes for n in loads(*(s.value for s in p.stores))) for p in rows]
    room = target.shared_bytes - LAYOUT_CONVERSION_BYTES
    return min(STORED_STAGES, 1 + room // (points * max(*read, 1)))


def _cooperative(kernel: Kernel, tiling: Tiling, target: GpuTarget) -> Tiling:
    """Cooperative reduction: programs share few long rows. Their number follows from the sizes, so
    a sum is the same on any machine."""
    phase = cooperative_phase(kernel)
    if phase is None or not _may_cooperate(kernel, target) or tiling.row == 1:
        return tiling
    if not is_known(*(a.extent for a in (*kernel.outer, *phase.inner))):
        return tiling  # the number of programs that pay depends on the call
    points = extent_of(phase.inner)
    sizes = zip(kernel.outer, tiling.blocks, strict=True)
    tiles = math.prod(-(-a.extent.number // n) for a, n in sizes)
    pieces = min(target.max_splits, math.prod(tiling.blocks) * points // COOPERATIVE_POINTS)
    if tiles >= target.few_rows or pieces < 2:
        return tiling
    row = min(tiling.row, COOPERATIVE_ROW)
    rsplit_points = -(-points // (pieces * row)) * row
    return replace(tiling, row=row, rsplit_points=rsplit_points, rsplit=-(-points // rsplit_points))


def _may_cooperate(kernel: Kernel, target: GpuTarget) -> bool:
    """Whether programs may share rows: if the flag is set, or if nothing else splits the reduction,
    since it returns an index."""
    phase = cooperative_phase(kernel)
    if phase is None:
        return False
    return target.cooperative_reductions or any(
        REDUCTIONS[n.attr[0]].gives_index for n in reductions_of(phase)
    )


def cooperative_buffers(kernel: Kernel, tiling: Tiling, first: int) -> tuple[Buffer, ...]:
    """Buffers of a cooperative reduction, as arguments from number `first` on: each program's part
    of each reduction, with an index for argmax and argmin; and last, how many programs are done."""
    phase = cooperative_phase(kernel) if tiling.rsplit > 1 else None
    if phase is None:
        return ()
    kinds: list[DType] = []
    for node in reductions_of(phase):
        kinds.append(node.args[0].dtype.accumulator)
        if REDUCTIONS[node.attr[0]].gives_index:
            kinds.append(I64 if tiling.wide else I32)
    rows = math.prod(a.extent.number for a in kernel.outer)
    counts = [rows * tiling.rsplit] * len(kinds) + [rows]
    device = kernel.stores[0].buffer.device
    return tuple(
        Buffer(f"b{first + k}", kind, (integer(n),), (ONE,), device)
        for k, (kind, n) in enumerate(zip([*kinds, I32], counts, strict=True))
    )


def _is_serial_row(kernel: Kernel, longest: int) -> bool:
    """Whether rows are short, as a pool's windows are, neither contiguous nor stored point by
    point: then a thread takes the points of its row one by one, and no lane is idle."""
    phases = [p for p in kernel.phases if p.inner]
    if not _has_known_rows(kernel):
        return False
    if longest > MAX_SERIAL_ROW or extent_of(kernel.outer) < TILE or not kernel.outer:
        return False
    if any(p.inside for p in phases) or not all(p.is_reduction for p in phases):
        return False
    found = [(n.index[0], a) for p in phases for s in p.stores for n in loads(s.value)
             for a in p.inner]  # fmt: skip
    return not any(stride_along(index, a) == 1 for index, a in found)


def _reduces_columns(kernel: Kernel) -> bool:
    """Whether contiguous elements belong to different rows, by majority of all loads."""
    (row,) = kernel.outer
    balance = 0
    for phase in kernel.phases:
        for store in phase.stores:
            for node in loads(store.value):
                points = extent_of(node.index[0].axes)
                along = any(_runs_along(node.index[0], a) for a in phase.inner)
                balance += points * (_runs_along(node.index[0], row) - along)
    return balance > 0


def _runs_along(index: Expr, variable: Expr) -> bool:
    """Whether an index is mostly contiguous along an axis, which may be several merged ones."""
    if stride_along(index, variable) == 1:
        return True
    digits = [n for n in walk(index) if n.op == "mod" and n.args[0] is variable]
    return any(stride_along(index, n) == 1 for n in digits)


def _warps(points: int, each: int = POINTS_PER_WARP) -> int:
    return min(max(power_of_two(points // each), 1), 16)


def needs_int64_index(kernel: Kernel) -> bool:
    touched = [n.buffer for n in loads(*exprs_of(kernel))] + [s.buffer for s in kernel.stores]
    spans = [b.shape[0] for b in touched] + [a.extent for a in kernel.outer]
    spans += [a.extent for p in kernel.phases for a in p.inner]
    return any(_exceeds_int32(n) for n in spans)


def _exceeds_int32(size: Expr) -> bool:
    """Whether a size may need 64 bits: a symbolic one may, unless guards say otherwise."""
    most = greatest(to_poly(size))
    return most is None or most >= INT32_INDEX_LIMIT


# -- candidates ------------------------------------------------------------------------------


def candidates(scheduled: ScheduledKernel[Tiling], wide: bool = False) -> list[Tiling]:
    """Tilings worth timing: the rule's own, then its likeliest neighbours; if `wide`, all
    neighbours and theirs. A GEMM has a search space of its own."""
    own = scheduled.choice
    if own.depth:
        return [own]
    near = neighbours(scheduled, own)
    found = {own: None, **dict.fromkeys(near if wide else near[:FEW_CANDIDATES])}
    for tiling in near if wide else ():
        found.update(dict.fromkeys(neighbours(scheduled, tiling)))
    return list(found)


def neighbours(scheduled: ScheduledKernel[Tiling], tiling: Tiling) -> list[Tiling]:
    """Tilings one step away, the likeliest first. Each point is computed in the same way; only a
    row that is read in blocks is summed in another order."""
    kernel = scheduled.kernel
    longest = max((extent_of(p.inner) for p in kernel.phases if p.inner), default=1)
    looped = longest > tiling.row > 1
    steps: list[Tiling] = []
    for factor in (2, -2):
        steps += [_scaled(tiling, k, factor, True) for k in range(len(tiling.blocks))]
        steps += [replace(tiling, warps=_times(tiling.warps, factor))]
        steps += [replace(tiling, row=_times(tiling.row, factor))] if looped else []
        steps += [_scaled(tiling, k, factor, False) for k in range(len(tiling.blocks))]
    steps += [replace(tiling, stages=n) for n in (1, *STAGES)] if looped else []
    fits = [t for t in steps if t != tiling and _fits(kernel, t, longest)]
    return list(dict.fromkeys(fits))


def _times(number: int, factor: int) -> int:
    return number * factor if factor > 0 else number // -factor


def _scaled(tiling: Tiling, side: int, factor: int, and_warps: bool) -> Tiling:
    """A longer or shorter side, with the same points per thread or the same number of threads."""
    blocks = tuple(_times(n, factor) if k == side else n for k, n in enumerate(tiling.blocks))
    warps = _times(tiling.warps, factor) if and_warps else tiling.warps
    return replace(tiling, blocks=blocks, warps=warps)


def _fits(kernel: Kernel, tiling: Tiling, longest: int) -> bool:
    """Whether no side is empty or mostly out of range, and every thread has work."""
    if 0 in tiling.blocks or not tiling.row or not 1 <= tiling.warps <= MAX_WARPS:
        return False
    sizes = zip(kernel.outer, tiling.blocks, strict=True)
    if any(n > power_of_two(_about(a)) for a, n in sizes):
        return False
    if tiling.rsplit_points % tiling.row:  # a split is whole blocks, or points would count twice
        return False
    row = min(tiling.row, power_of_two(longest))
    points, threads = math.prod(tiling.blocks) * row, 32 * tiling.warps
    return threads <= points <= min(MAX_POINTS, MAX_POINTS_PER_THREAD * threads)
