"""Summaries of kernels: how each one runs, in a line for reports.

In: a scheduled kernel, and the functions of its variants. Out: lines of text for its `KernelCall`.
Example: `rows 128, 2 phases, 16 lanes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from litz.ir.scheduled import ScheduledKernel


def summary(scheduled: ScheduledKernel[Any], functions: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The kernel itself; then, if there are several, which variant runs at which sizes."""
    axes = " x ".join(str(a.extent) for a in scheduled.kernel.outer) or "1"
    count = f"{len(scheduled.kernel.phases)} phases"
    variants = _variants(scheduled, functions) if len(functions) > 1 else ()
    return (f"rows {axes}, {count}, {scheduled.choice.how}", *variants)


def _variants(scheduled: ScheduledKernel[Any], functions: tuple[str, ...]) -> Iterator[str]:
    """A line for each variant of `multi_kernel_hints`: its function, and the size it runs from."""
    for variant, function in zip(scheduled.variants, functions, strict=True):
        when = f"from {scheduled.measure} = {variant.begins}"
        yield f"{when}: {function}, {variant.scheduled.choice.how} (multi_kernel_hints)"
