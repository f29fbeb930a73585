"""A function called in another process, which it may kill.

In: a function. Out: its result, or `Died`. The process is a fork: it starts at once, with all
imports done. Example: `isolated(lambda: 3, 30)` is 3.
"""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Died:
    """The process ended, or was ended, without a result. A negative status is a signal."""

    status: int | None

    def __str__(self) -> str:
        return "was too slow" if self.status is None else f"ended with status {self.status}"


class ChildProcess:
    """A process that works for a `with` block and sends its results."""

    def __init__(self, work: Callable[[Any], None]) -> None:
        context = mp.get_context("fork")
        self.ours, self.theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(self.theirs,), daemon=True)

    def __enter__(self) -> ChildProcess:
        self.process.start()
        self.theirs.close()
        return self

    def receive(self, seconds: float) -> Any:
        """The next message, or how the process died."""
        try:
            return self.ours.recv() if self.ours.poll(seconds) else Died(None)
        except EOFError:
            self.process.join()
            return Died(self.process.exitcode)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        self.ours.close()


def isolated(function: Callable[[], Any], seconds: float) -> Any:
    """Call it, for at most that many seconds."""
    with ChildProcess(lambda channel: channel.send(function())) as process:
        return process.receive(seconds)
