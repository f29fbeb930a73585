"""Stage 5: when each step runs and where each intermediate lives.

In: `KernelGraph`. Out: `Plan`: an order with a low peak, and an offset in one arena for every
intermediate. Example: of `a -> b -> c -> out`, b and c share no lifetime with what a held, so c
takes a's place.
"""

from __future__ import annotations

from dataclasses import replace

from litz.config import Config
from litz.ir.program import KernelGraph, Plan
from litz.plan.arena import assign_slots
from litz.plan.batch import batches, gather_levels
from litz.plan.lend import lend
from litz.plan.order import order_steps
from litz.trace import stage


@stage("plan", "order, lifetimes, one arena, what runs side by side")
def plan(graph: KernelGraph, config: Config) -> Plan:
    """Order the steps, place the buffers, and see what may run side by side."""
    if config.nan_asserts:  # every result has to be there when it is looked at
        config = replace(config, allow_buffer_reuse=False, inplace_buffers=False)
    placed = lend(assign_slots(gather_levels(order_steps(graph)), config), config)
    return replace(placed, batches=tuple(batches(placed)))
