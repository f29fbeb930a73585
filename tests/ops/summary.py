"""The summary of a sweep: counts a dtype, failures, the generated share, what stays with ATen.

In: results. Out: text, and whether an op failed that has no exception.
"""

from __future__ import annotations

from collections import Counter

from tests.ops.exceptions import excepted
from tests.ops.listed import LISTED
from tests.ops.results import Result

Rows = list[Result]


def summary(found: Rows, total: int, key: str) -> tuple[str, bool]:
    failed = [r for r in found if r.status == "failed" and not excepted(r.op, r.dtype)]
    stale = sum(r.key != key for r in found)
    lines = [f"{len(found)} of {total} cases done, {stale} of them with older sources", ""]
    lines += [*_per_dtype(found), "", *_share(found), "", *_left(found), "", *_eager(found)]
    lines += ["", *(f"FAILED {r.op} {r.dtype}: {_line(r.failures[0])}" for r in failed)]
    return "\n".join(lines), bool(failed)


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


def _per_dtype(found: Rows) -> list[str]:
    lines = [f"{'dtype':10}{'passed':>8}{'failed':>8}{'excepted':>10}{'unsupported':>13}"]
    for dtype in dict.fromkeys(r.dtype for r in found):
        rows = [r for r in found if r.dtype == dtype]
        counts = Counter(
            "excepted" if r.status == "failed" and excepted(r.op, dtype) else r.status for r in rows
        )
        passed, failed = counts["passed"], counts["failed"]
        rest = f"{counts['excepted']:>10}{counts['unsupported']:>13}"
        lines.append(f"{dtype:10}{passed:>8}{failed:>8}{rest}")
    return lines


def _share(found: Rows) -> list[str]:
    """An op is generated if it is so in every dtype in which it passes."""
    by_op: dict[str, Rows] = {}
    for r in found:
        if r.op in LISTED and r.status == "passed":
            by_op.setdefault(r.op, []).append(r)
    whole = [op for op, rows in by_op.items() if all(r.generated for r in rows)]
    some = sorted(op for op, rows in by_op.items() if op not in whole)
    cases = [r for rows in by_op.values() for r in rows]
    made = sum(r.generated for r in cases)
    return [
        f"promised ops generated in every dtype: {len(whole)} of {len(by_op)}"
        f" ({100 * len(whole) / max(len(by_op), 1):.1f} %);"
        f" cases: {made} of {len(cases)} ({100 * made / max(len(cases), 1):.1f} %)",
        f"promised and not generated everywhere: {', '.join(some) or 'none'}",
    ]


def _left(found: Rows) -> list[str]:
    """Each ATen op that was called, and for which ops."""
    users: dict[str, set[str]] = {}
    for r in found:
        for target in r.aten:
            users.setdefault(target, set()).add(r.op)
    return [f"ATEN {target}: {', '.join(sorted(ops))}" for target, ops in sorted(users.items())]


def _eager(found: Rows) -> list[str]:
    reasons: dict[str, set[str]] = {}
    for r in found:
        for reason in r.fallbacks:
            reasons.setdefault(_line(reason), set()).add(r.op)
    return [f"EAGER {reason}: {', '.join(sorted(ops))}" for reason, ops in sorted(reasons.items())]
