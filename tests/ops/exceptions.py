"""Ops whose compiled result may differ from eager's: by name, with the reason. Read by every test.

In: nothing. Out: `EXCEPTIONS[op, dtype]`; a dtype of "" stands for all of them.
"""

from __future__ import annotations

EXCEPTIONS: dict[tuple[str, str], str] = {}


def excepted(op: str, dtype: str) -> str | None:
    """Why a difference is no failure, or None if it is one."""
    return EXCEPTIONS.get((op, dtype)) or EXCEPTIONS.get((op, ""))
