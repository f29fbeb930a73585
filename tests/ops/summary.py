"""The summary of a sweep: counts a dtype, failures, the generated share, what stays with ATen.

In: results. Out: text for rich, and whether an op failed that has no exception.
"""

from __future__ import annotations

from collections import Counter

from tests.ops.exceptions import excepted
from tests.ops.results import Result

Rows = list[Result]


def summary(found: Rows, total: int, key: str) -> tuple[str, bool]:
    failed = [r for r in found if r.status == "failed" and not excepted(r.op, r.dtype)]
    stale = sum(r.key != key for r in found)
    lines = [f"{len(found)} of {total} cases done, {stale} of them with older sources"]
    lines += ["", *_per_dtype(found), "", *_failures(failed), *_fallbacks(found)]
    return "\n".join(lines), bool(failed)


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


def _failures(failed: Rows) -> list[str]:
    return [f"FAILED {r.op} {r.dtype}: {' '.join(r.failures[0].split())[:200]}" for r in failed]


def _fallbacks(found: Rows) -> list[str]:
    reasons: dict[str, set[str]] = {}
    for r in found:
        for reason in r.fallbacks:
            reasons.setdefault(reason.splitlines()[0], set()).add(r.op)
    return [f"EAGER {reason}: {', '.join(sorted(ops))}" for reason, ops in sorted(reasons.items())]
