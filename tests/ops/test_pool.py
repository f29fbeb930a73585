"""The sweep goes on when a case kills its process or never ends."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.ops.pool import Died, run_all


def _work(case: str) -> str:
    if case == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "hang":
        time.sleep(60)
    return case.upper()


def _tells_its_pid(pipe: int) -> None:
    os.write(pipe, str(os.getpid()).encode())
    time.sleep(0.5)


def test_what_dies_is_reported_and_the_rest_is_done() -> None:
    cases = ["a", "crash", "b", "hang", "c", "d"]
    found = dict(run_all(cases, _work, jobs=2, limit=2.0))
    assert {k: v for k, v in found.items() if isinstance(v, str)} == {k: k.upper() for k in "abcd"}
    assert found["crash"] == Died("the process died with status -9")
    assert found["hang"] == Died("no result in 2 s")


def test_workers_end_with_a_pool_that_was_killed() -> None:
    """Killed outright, it has no time to end them."""
    theirs, ours = os.pipe()
    pool = os.fork()
    if not pool:
        list(run_all([ours], _tells_its_pid, jobs=1, limit=9.0))
        os._exit(0)
    worker = int(os.read(theirs, 20))
    os.kill(pool, signal.SIGKILL)
    os.waitpid(pool, 0)
    for _ in range(100):
        if not _lives(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    raise AssertionError("the worker waits for a pool that is gone")


def _lives(pid: int) -> bool:
    """An orphan that ended is nobody's to wait for, unless process 1 has yet to."""
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_nothing_to_do() -> None:
    assert list(run_all([], _work, jobs=2, limit=1.0)) == []
