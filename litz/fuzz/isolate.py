"""A function called in a process of its own, which it may kill.

In: a function. Out: its result, or `Died`. The process is a fork: it starts at once, with all that
was imported. Example: `isolated(lambda: 3, 30)` is 3.
"""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Died:
    """The process ended, or was ended, without a result. A negative status is a signal's."""

    status: int | None

    def __str__(self) -> str:
        return "was too slow" if self.status is None else f"ended with status {self.status}"


class Apart:
    """A process that works for a block of code and sends what it finds."""

    def __init__(self, work: Callable[[Any], None]) -> None:
        context = mp.get_context("fork")
        self.ours, self.theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=work, args=(self.theirs,), daemon=True)

    def __enter__(self) -> Apart:
        self.process.start()
        self.theirs.close()
        return self

    def receive(self, seconds: float) -> Any:
        """What it sends next, or how it died."""
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
    """Call it, for at most so long."""
    with Apart(lambda channel: channel.send(function())) as process:
        return process.receive(seconds)
