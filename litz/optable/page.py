"""The op table as the page docs/ops.md.

In: an `OpTable`. Out: Markdown, from the counts down to the single op.
"""

from __future__ import annotations

from collections.abc import Mapping

from litz.optable import HOWS, OpTable, Row
from litz.optable.reasons import reason


def page(table: OpTable) -> str:
    return "\n".join([*_counts(table), *_exceptions(table), *_ops(table.rows), *_core(table.core)])


def _counts(table: OpTable) -> list[str]:
    ran, generated = table.promised
    lines = [
        "",
        "## What was run",
        "",
        f"Torch {table.torch}, the first {table.samples} samples of each op in each dtype.",
        "",
        "| dtype | passed | failed | excepted | unsupported |",
        "| --- | --- | --- | --- | --- |",
    ]
    for dtype, counts in table.counts.items():
        lines.append(f"| {dtype} | " + " | ".join(str(n) for n in counts.values()) + " |")
    return [
        *lines,
        "",
        f"Of the {len(ran)} ops that Litz promises to generate, {len(generated)}"
        f" ({100 * table.generated_ratio:.1f} %) are, in every dtype. The others:"
        f" {', '.join(f'`{op}`' for op in sorted(ran - generated)) or 'none'}.",
    ]


def _exceptions(table: OpTable) -> list[str]:
    lines = ["", "## Exceptions", "", "| case | why its result may differ |", "| --- | --- |"]
    return [*lines, *(f"| `{case}` | {why} |" for case, why in table.exceptions.items())]


def _ops(rows: tuple[Row, ...]) -> list[str]:
    lines = ["", "## Ops of torch", ""]
    lines += [f"- **{how}**: {meaning}." for how, meaning in HOWS.items()]
    lines += ["", "| op | how | dtypes | made of | left to ATen | why |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        made, left = " ".join(row.made_of), " ".join(row.left)
        lines.append(f"| `{row.op}` | {row.how} | {row.types} | {made} | {left} | {row.why} |")
    return lines


def _core(core: Mapping[str, str]) -> list[str]:
    lines = ["", "## Core ATen ops", "", "| op | how | why |", "| --- | --- | --- |"]
    for op, how in core.items():
        lines.append(f"| `{op}` | {how} | {reason(op) if how == 'ATen' else ''} |")
    return lines
