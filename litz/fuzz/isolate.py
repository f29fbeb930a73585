"""A function called in a process of its own, which it may kill.

In: a function. Out: its result, or `Died`. The process is a fork: it starts at once, with all that
was imported.
"""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Died:
    """The process ended without a result."""

    status: int | None


def isolated(function: Callable[[], Any], seconds: float) -> Any:
    """Call it, for at most so long."""
    context = mp.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(function()), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(seconds) else Died(None)
    except EOFError:
        process.join()
        return Died(process.exitcode)
    finally:
        process.kill()
        process.join()
        ours.close()
