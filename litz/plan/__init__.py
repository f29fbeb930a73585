"""Stage 5: when each step runs, and where each intermediate is in memory.

In: `KernelGraph`. Out: `Plan`: an order with low peak memory, and an offset in one arena for every
intermediate. Example: in `a -> b -> c -> out`, a is dead when c is written, so c reuses a's memory.
"""

from __future__ import annotations

from dataclasses import replace

from litz.config import Config
from litz.ir.program import KernelGraph, Plan
from litz.plan.arena import assign_slots
from litz.plan.batch import batches, order_by_level
from litz.plan.call_allocated import allocate_large_per_call
from litz.plan.order import order_steps
from litz.trace import stage


@stage("plan", "order, lifetimes, one arena, what runs side by side")
def plan(graph: KernelGraph, config: Config) -> Plan:
    """Order the steps, place the buffers, and find kernels that may run in one launch."""
    if config.nan_asserts:  # every result must still exist when it is checked
        config = replace(config, allow_buffer_reuse=False, inplace_buffers=False)
    placed = allocate_large_per_call(
        assign_slots(order_by_level(order_steps(graph)), config), config
    )
    return replace(placed, batches=tuple(batches(placed)))
