"""The base classes of all errors, and the phrases that several messages share.

In: a sentence. Out: `UserError` or `InternalError`; every error is one of the two. Example: the
text of an `InternalError` ends with what to report.
"""

from __future__ import annotations

from typing import Protocol

_REPORT = "This is a bug in Litz. Please report it with the output of LITZ_DEBUG=5."


class SourceLocation(Protocol):
    """A place in the user's program: an op and its line. `ir.program.Origin` is one."""

    @property
    def op(self) -> str: ...

    @property
    def line(self) -> str: ...


class LitzError(Exception):
    """The base class of all errors that Litz raises on purpose.

    It is never raised itself: catch `UserError` for mistakes that you can fix, `InternalError` for
    those that we must.
    """


class UserError(LitzError):
    """A mistake in the user's program or settings. Its text says how to fix it."""


class InternalError(LitzError):
    """A mistake in Litz.

    An invariant of the compiler does not hold; your program is not at fault. By default
    the graph then runs as eager; with `on_error="raise"` you see this error. Report it with the
    output of `LITZ_DEBUG=5`, which prints the program after each stage.
    """

    def __init__(self, message: str) -> None:
        super().__init__(f"{message.rstrip()}\n{_REPORT}")


def where(place: SourceLocation | None, op: str = "") -> str:
    """` at model.py:12, in aten.add`; without the op if the sentence already names it."""
    if place is None:
        return ""
    line = f" at {place.line}" if place.line else ""
    name = f" in {place.op}" if place.op != op else ""
    return line + ("," if line and name else "") + name


def cause_text(cause: BaseException) -> str:
    """`ValueError: its text`, like the last line of a traceback."""
    return ": ".join(filter(None, (type(cause).__name__, str(cause).strip())))
