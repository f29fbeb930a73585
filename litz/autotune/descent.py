"""Neighbours of a schedule: the same kernel with one field of its choice twice or half as large.

In: a kernel as scheduled by rule, and a choice. Out: `LoopChoice`s that differ from it in one
field. Example: a row reduction with 4 vector accumulators has neighbours with 2 and 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from litz.ir.choices import LoopChoice
from litz.ir.scheduled import Choice, ScheduledKernel

MOST_UNROLL, MOST_LANES = 16, 256
FIELDS = ("unroll", "lanes", "chunk", "grain")


def neighbours(scheduled: ScheduledKernel, at: LoopChoice) -> Iterator[LoopChoice]:
    """One field at a time, twice and half, if the kernel allows it."""
    choice = at.applied(scheduled.choice)
    for field in FIELDS:
        for value in (2 * getattr(choice, field), getattr(choice, field) // 2):
            if _fits(field, value, choice, scheduled):
                rule = getattr(scheduled.choice, field)
                yield replace(at, **{field: None if value == rule else value})


def fits(scheduled: ScheduledKernel, at: LoopChoice) -> bool:
    """Whether the kernel allows a choice."""
    choice = at.applied(scheduled.choice)
    return all(_fits(field, value, choice, scheduled) for field, value in at.facts().items())


def _fits(field: str, value: int, choice: Choice, scheduled: ScheduledKernel) -> bool:
    if value < 1:
        return False
    if field == "unroll":  # vector accumulators of a row reduction
        rows = any(p.is_reduction for p in scheduled.kernel.phases)
        return choice.vector is None and rows and value <= MOST_UNROLL
    if field == "grain":  # matters only if there are several tasks
        return scheduled.tasks > 1 and value <= 4 * scheduled.tasks
    if choice.vector is None or choice.transpose_axis is not None or choice.row_by_row:
        return False  # these kernels rely on their own lanes and chunk
    extent = choice.vector.extent.number
    if field == "lanes":
        whole = choice.chunk % value == 0 or choice.chunk == extent
        return whole and 1 < value <= min(extent, MOST_LANES)
    return value % choice.lanes == 0 and value <= extent
