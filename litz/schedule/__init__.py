"""Stage 6: how each kernel runs: its loops in order, its lanes, its share for each thread.

In: `Kernel`. Out: `ScheduledKernel`, flat and canonical, so that equal kernels compile once.
Each step is a function with its before and after in its own file.
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
from litz.schedule.dot import dot_tiles
from litz.schedule.flatten import flatten_buffers
from litz.schedule.local import settle_scratch
from litz.schedule.past import written_past
from litz.schedule.product import schedule_product
from litz.schedule.tile import shared_parts, spread_scatter, tile_axes
from litz.schedule.variants import with_variants
from litz.schedule.vectorize import vectorize
from litz.schedule.window import schedule_windows
from litz.target import CpuTarget, GpuTarget
from litz.trace import stage


@stage("schedule", "loop order, vector lanes, threads")
def schedule_vectors(
    kernel: Kernel, target: CpuTarget, config: Config, fresh: frozenset[str] = frozenset(),
    choices: Choices = NO_CHOICES,
) -> ScheduledKernel[Choice]:  # fmt: skip
    """For a CPU: lanes and threads. `fresh` names the buffers that lie in memory of ours."""

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
    product = dot_tiles(flat, target, choices.of_product(kernel.origins))
    if product is not None:
        return ScheduledKernel(product[0], arguments, product[1], _steps(kernel, product[0]))
    whole = split_axes(spread_scatter(flat, config))
    if config.pick_loop_orders:
        whole = order_axes(whole)
    named = canonical_axes(merge_axes(whole))
    tiled, choice = tile_axes(named, target, config)
    choice = choices.tilings.get(kernel.name, choice)
    settled, placed = settle_scratch(tiled, choice.row, len(arguments))
    # Memory behind scratch that registers cannot hold has no name in the plan: it gets one here.
    placed += shared_parts(settled, choice, len(arguments) + len(placed))
    arguments += tuple(replace(b, name=f"{kernel.name}_{b.name}") for b in placed)
    return ScheduledKernel(settled, arguments, choice, (*_steps(kernel, tiled), *_shares(choice)))


def _settled(choice: Choice, target: CpuTarget, config: Config) -> Choice:
    """With the instruction set, and what the flags ask for that look for bugs of ours."""
    asserts, poison = config.debug_index_asserts, config.debug_poison_memory
    return replace(choice, isa=target.isa.name, asserts=asserts, poison=poison)


def _vectorized(
    kernel: Kernel, target: CpuTarget, config: Config, fresh: frozenset[str], choices: Choices
) -> ScheduledKernel[Choice]:
    """flatten, split, order, merge, name, vectorize."""
    flat, arguments = flatten_buffers(kernel)
    product = schedule_product(flat, target, choices.of_product(kernel.origins))
    if product is not None:
        choice = _settled(product, target, config)
        return ScheduledKernel(flat, arguments, choice, _blocks(choice))
    windows = schedule_windows(flat, target)
    if windows is not None:
        choice = _settled(windows, target, config)
        return ScheduledKernel(flat, arguments, choice, _windows(choice))
    attention = schedule_attention(flat, target)
    if attention is not None:
        choice = _settled(attention, target, config)
        return ScheduledKernel(flat, arguments, choice, _tiles(choice))
    _check_reductions(flat)
    whole = split_axes(flat)
    if config.pick_loop_orders:
        whole = order_axes(whole)
    named = canonical_axes(merge_axes(whole))
    ordered, choice = vectorize(named, target, config)
    chosen = choices.of_kernel(kernel.name)
    choice = choice if chosen is None else chosen.applied(choice)
    past = written_past(ordered, choice, arguments, fresh, target)
    choice = _settled(replace(choice, past=past), target, config)
    steps = _steps(kernel, ordered) + (("rows pass by whole",) if choice.by_rows else ())
    return ScheduledKernel(ordered, arguments, choice, steps)


def _check_reductions(kernel: Kernel) -> None:
    """A reduction inside another has a schedule only as part of attention."""
    for phase in kernel.phases:
        for node in walk(*(s.value for s in phase.stores)):
            if node.op == "reduce" and set(node.attr[1]) != set(phase.inner):
                raise VerifyError(f"{kernel.name} reduces along some axes inside others: {node}")


def _blocks(choice: Choice) -> tuple[str, ...]:
    blocking = choice.product
    assert blocking is not None
    size = f"{blocking.rows} x {blocking.depth} times {blocking.depth} x {blocking.columns}"
    blocks = f"blocks of {blocking.block} x {blocking.width}, chunks of {blocking.chunk} rows"
    blocks += f", {blocking.stretch} steps at a time" if blocking.stretch else ""
    blocks += ", finished whole" if blocking.whole else ""
    many = f"{blocking.batches} products" if blocking.batches is not ONE else "product"
    return (f"{many} of {size}: {blocks}",)


def _windows(choice: Choice) -> tuple[str, ...]:
    sliding = choice.sliding
    assert sliding is not None
    return (f"{sliding.others} rows of {sliding.count} windows: blocks of {sliding.block}",)


def _tiles(choice: Choice) -> tuple[str, ...]:
    streaming = choice.attention
    assert streaming is not None
    size = f"{streaming.heads} heads of {streaming.rows} rows and {streaming.columns} columns"
    tiles = f"tiles of {streaming.tile} rows, blocks of {streaming.block} columns"
    return (f"attention of {size}: {tiles}",)


def _shares(choice: Tiling) -> tuple[str, ...]:
    if choice.share == 1:
        return ()
    return (f"{choice.share} programs share each row, {choice.piece} points each",)


def _steps(before: Kernel, after: Kernel) -> tuple[str, ...]:
    def shape(axes: tuple[object, ...]) -> str:
        return " x ".join(str(a.extent) for a in axes) or "1"  # type: ignore[attr-defined]

    lines = [f"outer {shape(before.outer)} -> {shape(after.outer)}"]
    for old, new in zip(before.phases, after.phases, strict=True):
        if old.inner:
            lines.append(f"inner {shape(old.inner)} -> {shape(new.inner)}")
    return tuple(lines)
