"""The roots of all errors: the user's, ours, and the words that several texts share.

In: a sentence. Out: `UserError` or `InternalError`, one of which every error is. Example: the text
of an `InternalError` ends with what to report.
"""

from __future__ import annotations

from typing import Protocol

_REPORT = "This is a bug in Litz. Please report it with the output of LITZ_DEBUG=5."


class Place(Protocol):
    """Where in the user's program: an op and its line. `ir.program.Origin` is one."""

    @property
    def op(self) -> str: ...

    @property
    def line(self) -> str: ...


class LitzError(Exception):
    """The root of all of them, to catch whatever Litz says on purpose.

    It is never raised: catch `UserError` for what you can mend, `InternalError` for what we must.
    """


class UserError(LitzError):
    """A mistake in the user's program or settings. Its text says how to mend it."""


class InternalError(LitzError):
    """A mistake in Litz.

    An invariant of the compiler does not hold. Nothing in your program is at fault. By default
    the graph then runs as eager; with `on_error="raise"` you see this error. Report it with the
    output of `LITZ_DEBUG=5`, which prints the program after each stage.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"{message.rstrip()}\n{_REPORT}")


def where(place: Place | None, op: str = "") -> str:
    """` at model.py:12, in aten.add`; the op is left out where the sentence already names it."""
    if place is None:
        return ""
    line = f" at {place.line}" if place.line else ""
    name = f" in {place.op}" if place.op != op else ""
    return line + ("," if line and name else "") + name


def told(cause: BaseException) -> str:
    """`ValueError: its text`, as a traceback ends."""
    return ": ".join(filter(None, (type(cause).__name__, str(cause).strip())))
