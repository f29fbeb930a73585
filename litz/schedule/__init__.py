"""Stage 6: how each kernel runs: the order of its loops, its vector lanes, its tasks per thread.

In: `Kernel`. Out: `ScheduledKernel`, flat and canonical, so that equal kernels compile once.
Each step is a function with its before -> after in its own file.
"""

from __future__ import annotations

from dataclasses import replace

from litz.config import Config
from litz.errors import VerifyError
from litz.ir.choices import NO_CHOICES, Choices
from litz.ir.expr import walk
from litz.ir.index import ONE
from litz.ir.program import Kernel
from litz.ir.scheduled import Choice, ScheduledKernel, Tiling
from litz.schedule.attention import schedule_attention
from litz.schedule.axes import canonical_axes, merge_axes, order_axes, split_axes
from litz.schedule.depthwise import schedule_depthwise
from litz.schedule.flatten import flatten_buffers
from litz.schedule.gemm import schedule_gemm
from litz.schedule.mma import mma_tiles
from litz.schedule.non_temporal import non_temporal_stores
from litz.schedule.scratch import place_scratch
from litz.schedule.tile import cooperative_buffers, parallelize_scatter, tile_axes
from litz.schedule.variants import with_variants
from litz.schedule.vectorize import vectorize
from litz.target import CpuTarget, GpuTarget
from litz.trace import stage


@stage("schedule", "loop order, vector lanes, threads")
def schedule_vectors(
    kernel: Kernel, target: CpuTarget, config: Config, fresh: frozenset[str] = frozenset(),
    choices: Choices = NO_CHOICES,
) -> ScheduledKernel[Choice]:  # fmt: skip
    """For a CPU: lanes and threads. `fresh` names the buffers that we allocate ourselves."""

    def scheduled(each: Kernel) -> ScheduledKernel[Choice]:
        return _vectorized(each, target, config, fresh, choices)

    return with_variants(scheduled(kernel), kernel, config.multi_kernel_hints, scheduled)


@stage("schedule", "loop order, tiles, warps")
def schedule_tiles(
    kernel: Kernel, target: GpuTarget, config: Config, fresh: frozenset[str] = frozenset(),
    choices: Choices = NO_CHOICES,
) -> ScheduledKernel[Tiling]:  # fmt: skip
    """For a GPU: flatten, split, order, merge, name, tile, settle scratch."""
    flat, arguments = flatten_buffers(kernel)
    gemm = mma_tiles(flat, target, choices.of_gemm(kernel.origins))
    if gemm is not None:
        return ScheduledKernel(gemm[0], arguments, gemm[1], _steps(kernel, gemm[0]))
    whole = split_axes(parallelize_scatter(flat, config))
    if config.pick_loop_orders:
        whole = order_axes(whole)
    named = canonical_axes(merge_axes(whole))
    tiled, choice = tile_axes(named, target, config)
    choice = choices.tilings.get(kernel.name, choice)
    settled, placed = place_scratch(tiled, choice.row, len(arguments))
    # Scratch that does not fit registers goes to memory, which the plan has no name for.
    placed += cooperative_buffers(settled, choice, len(arguments) + len(placed))
    arguments += tuple(replace(b, name=f"{kernel.name}_{b.name}") for b in placed)
    return ScheduledKernel(
        settled, arguments, choice, (*_steps(kernel, tiled), *_cooperative_steps(choice))
    )


def _with_target(choice: Choice, target: CpuTarget, config: Config) -> Choice:
    """Add the instruction set, and the flags that look for bugs in Litz."""
    asserts, poison = config.debug_index_asserts, config.debug_poison_memory
    return replace(choice, isa=target.isa.name, asserts=asserts, poison=poison)


def _vectorized(
    kernel: Kernel, target: CpuTarget, config: Config, fresh: frozenset[str], choices: Choices
) -> ScheduledKernel[Choice]:
    """flatten, split, order, merge, name, vectorize."""
    flat, arguments = flatten_buffers(kernel)
    gemm = schedule_gemm(flat, target, choices.of_gemm(kernel.origins))
    if gemm is not None:
        choice = _with_target(gemm, target, config)
        return ScheduledKernel(flat, arguments, choice, _gemm_steps(choice))
    windows = schedule_depthwise(flat, target)
    if windows is not None:
        choice = _with_target(windows, target, config)
        return ScheduledKernel(flat, arguments, choice, _depthwise_steps(choice))
    attention = schedule_attention(flat, target)
    if attention is not None:
        choice = _with_target(attention, target, config)
        return ScheduledKernel(flat, arguments, choice, _attention_steps(choice))
    _check_reductions(flat)
    whole = split_axes(flat)
    if config.pick_loop_orders:
        whole = order_axes(whole)
    named = canonical_axes(merge_axes(whole))
    ordered, choice = vectorize(named, target, config)
    chosen = choices.of_kernel(kernel.name)
    choice = choice if chosen is None else chosen.applied(choice)
    non_temporal = non_temporal_stores(ordered, choice, arguments, fresh, target)
    choice = _with_target(replace(choice, non_temporal=non_temporal), target, config)
    steps = _steps(kernel, ordered) + (("rows stream by whole",) if choice.row_by_row else ())
    return ScheduledKernel(ordered, arguments, choice, steps)


def _check_reductions(kernel: Kernel) -> None:
    """A nested reduction has a schedule only as part of attention."""
    for phase in kernel.phases:
        for node in walk(*(s.value for s in phase.stores)):
            if node.op == "reduce" and set(node.attr[1]) != set(phase.inner):
                raise VerifyError(f"{kernel.name} reduces along some axes inside others: {node}")


def _gemm_steps(choice: Choice) -> tuple[str, ...]:
    blocking = choice.gemm
    assert blocking is not None
    size = f"{blocking.rows} x {blocking.depth} times {blocking.depth} x {blocking.columns}"
    blocks = f"blocks of {blocking.mr} x {blocking.nr}, chunks of {blocking.mc} rows"
    blocks += f", {blocking.k_block} steps at a time" if blocking.k_block else ""
    blocks += ", finished whole" if blocking.full_rows else ""
    many = f"{blocking.batches} products" if blocking.batches is not ONE else "gemm"
    return (f"{many} of {size}: {blocks}",)


def _depthwise_steps(choice: Choice) -> tuple[str, ...]:
    depthwise = choice.depthwise
    assert depthwise is not None
    return (f"{depthwise.others} rows of {depthwise.count} windows: blocks of {depthwise.block}",)


def _attention_steps(choice: Choice) -> tuple[str, ...]:
    streaming = choice.attention
    assert streaming is not None
    size = f"{streaming.heads} heads of {streaming.rows} rows and {streaming.columns} columns"
    tiles = f"tiles of {streaming.tile} rows, blocks of {streaming.block} columns"
    return (f"attention of {size}: {tiles}",)


def _cooperative_steps(choice: Tiling) -> tuple[str, ...]:
    if choice.rsplit == 1:
        return ()
    points = f"{choice.rsplit_points} points each"
    return (f"{choice.rsplit} programs reduce each row cooperatively, {points}",)


def _steps(before: Kernel, after: Kernel) -> tuple[str, ...]:
    def shape(axes: tuple[object, ...]) -> str:
        return " x ".join(str(a.extent) for a in axes) or "1"  # type: ignore[attr-defined]

    lines = [f"outer {shape(before.outer)} -> {shape(after.outer)}"]
    for old, new in zip(before.phases, after.phases, strict=True):
        if old.inner:
            lines.append(f"inner {shape(old.inner)} -> {shape(new.inner)}")
    return tuple(lines)
