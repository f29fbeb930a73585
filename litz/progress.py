"""Progress: a line on stderr for a compile that takes longer than two seconds.

In: a function that says where the compile is. Out: lines from a thread of its own, so that they
appear even while LLVM works on one large module. A terminal gets one line, overwritten every second
and erased at the end. A log gets a line after 2, 4, 8, 16, ... seconds and one at the end, so that
a long compile does not fill it. Example:

    litz: compiling the inference graph for 4 s: schedule, 61 of 480
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TextIO

# Seconds before the first line, and between two on a terminal.
FIRST = 2.0
REFRESH = 1.0
_ERASE = "\r\x1b[K"


def bar(done: int, total: int, width: int = 20) -> str:
    """How much of something is done, as a bar."""
    full = width * done // total
    return f"[{'#' * full}{'.' * (width - full)}]"


class Progress:
    """Watches one compile, as a context."""

    def __init__(
        self,
        what: str,
        where: Callable[[], str],
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        first: float = FIRST,
    ) -> None:
        self.what, self.where, self.clock, self.first = what, where, clock, first
        self._stream = stream
        self._start = clock()
        self._shown = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="litz progress")

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()
        self.finish()

    def _watch(self) -> None:
        wait = self.first
        while not self._done.wait(wait):
            wait = self.show()

    def show(self) -> float:
        """Write where the compile is; returns the seconds until the next line."""
        took = self.clock() - self._start
        self._shown = True
        line = f"litz: compiling the {self.what} for {took:.0f} s: {self.where() or 'starting'}"
        if self._terminal:
            self._write(_ERASE + line)
            return REFRESH
        self._write(line + "\n")
        return max(took, self.first)

    def finish(self) -> None:
        """Write the last line, or erase the only one; nothing if no line was ever shown."""
        if not self._shown:
            return
        took = self.clock() - self._start
        last = f"litz: the {self.what} took {took:.1f} s\n"
        self._write(_ERASE if self._terminal else last)

    @property
    def _terminal(self) -> bool:
        stream = self._stream or sys.stderr
        return stream is not None and not stream.closed and stream.isatty()

    def _write(self, text: str) -> None:
        """Write, and ignore a stream that fails: no compile fails because of its progress line."""
        stream = self._stream or sys.stderr
        if stream is not None:
            with suppress(OSError, ValueError):  # a broken pipe, a closed file
                stream.write(text)
                stream.flush()
