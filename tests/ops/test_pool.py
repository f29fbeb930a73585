"""The sweep goes on when a case kills its process or never ends."""

from __future__ import annotations

import os
import signal
import time

from tests.ops.pool import Died, run_all


def _work(case: str) -> str:
    if case == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "hang":
        time.sleep(60)
    return case.upper()


def test_what_dies_is_reported_and_the_rest_is_done() -> None:
    cases = ["a", "crash", "b", "hang", "c", "d"]
    found = dict(run_all(cases, _work, jobs=2, limit=2.0))
    assert {k: v for k, v in found.items() if isinstance(v, str)} == {k: k.upper() for k in "abcd"}
    assert found["crash"] == Died("the process died with status -9")
    assert found["hang"] == Died("no result in 2 s")


def test_nothing_to_do() -> None:
    assert list(run_all([], _work, jobs=2, limit=1.0)) == []
