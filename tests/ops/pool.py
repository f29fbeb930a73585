"""A pool of worker processes that outlives what it runs: a case may kill its worker or hang.

In: cases and a function over one case. Out: an iterator of (case, result), in the order they end,
where the result of a case that killed its worker, or ran too long, is `Died`. A worker is a fork:
a new one starts in milliseconds with all that was imported.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

IDLE = 1.0  # seconds after which a worker looks whether its pool is still there
CASES_A_WORKER = 150  # then a fresh one: torch keeps what it has compiled


@dataclass(frozen=True)
class Died:
    """Why a case has no result."""

    reason: str


@dataclass
class _Worker:
    """One process and the case it is at."""

    work: Callable[[Any], Any]
    case: Any = None
    since: float = 0.0
    done: int = 0
    alive: bool = True
    process: Any = field(init=False)
    channel: Connection[Any, Any] = field(init=False)

    def __post_init__(self) -> None:
        context = mp.get_context("fork")
        self.channel, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs, self.work, os.getpid()), daemon=True
        )
        self.process.start()
        theirs.close()

    def give(self, case: Any) -> None:
        self.case, self.since = case, time.monotonic()
        self.channel.send(case)

    def late(self, limit: float) -> bool:
        return not self.channel.poll() and time.monotonic() - self.since > limit

    def result(self, limit: float) -> Any:
        """What came of its case."""
        self.done += 1
        if self.late(limit):
            self.alive = False
            return Died(f"no result in {limit:.0f} s")
        try:
            return self.channel.recv()
        except EOFError:
            self.alive = False
            self.process.join()
            return Died(f"the process died with status {self.process.exitcode}")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.channel.close()


def _serve(channel: Connection[Any, Any], work: Callable[[Any], Any], parent: int) -> None:
    """Case after case. A fork holds both ends of its pipe: it must ask whether anyone is left."""
    while os.getppid() == parent:
        if channel.poll(IDLE):
            channel.send(work(channel.recv()))


def run_all(
    cases: Iterable[Any],
    work: Callable[[Any], Any],
    jobs: int,
    limit: float,
    each: int = CASES_A_WORKER,
) -> Iterator[tuple[Any, Any]]:
    """Run every case on `jobs` processes, each for at most `limit` seconds. A process takes `each`
    cases."""
    waiting = deque(cases)
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker(work))
                workers[-1].give(waiting.popleft())
            for worker in _ready(workers, limit):
                yield worker.case, worker.result(limit)
                if waiting and worker.alive and worker.done < each:
                    worker.give(waiting.popleft())
                else:
                    worker.end()
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.end()


def _ready(workers: list[_Worker], limit: float) -> list[_Worker]:
    """The workers with a result, without life, or out of time."""
    wait([w.channel for w in workers], timeout=1.0)
    return [w for w in workers if w.channel.poll() or w.late(limit)]
