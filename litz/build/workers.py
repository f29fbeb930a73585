"""Processes that compile kernels, for as long as this one lives.

In: jobs as JSON, never pickle. Out: their answers. The first of some workers loads Triton, which
takes half a second and reads half a gigabyte; then it forks, and the others have it loaded as well.
They stay for the next graph, and end when this process does, as their sockets are closed then.
Example: `WORKERS.start(4); WORKERS.run(job)`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from litz.build import triton_worker


class Worker:
    """Our end of a worker's socket."""

    def __init__(self, pipe: socket.socket) -> None:
        self.lines = pipe.makefile("rw", encoding="utf-8")
        pipe.close()  # the file has it

    def ask(self, question: str) -> str:
        """The answer; nothing if the worker is dead."""
        with contextlib.suppress(OSError):
            self.lines.write(question + "\n")
            self.lines.flush()
            answer = self.lines.readline()
            return answer if answer.endswith("\n") else ""  # it died while it answered
        return ""

    def close(self) -> None:
        """A worker without questions ends by itself."""
        with contextlib.suppress(OSError):
            self.lines.close()


class Workers:
    """Those that wait for jobs; a thread takes one, or starts one more."""

    def __init__(self) -> None:
        self.free: list[Worker] = []
        self.busy = 0
        self.first: list[subprocess.Popen[bytes]] = []  # of each group, whose children others are
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def start(self, count: int) -> None:
        """See to it that there are so many."""
        with self._lock:
            missing = count - self.busy - len(self.free)
            if missing > 0:
                self.free += self._started(missing)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Have a job done. Where a worker dies, which may have been long before, another one gets
        it: but only one."""
        with self._lock:
            self.busy += 1
            waiting = [self.free.pop()] if self.free else []
        done: list[Worker] = []
        try:
            for worker in (*waiting, None):
                if worker is None:
                    with self._lock:
                        (worker,) = self._started(1)
                answer = worker.ask(json.dumps(job))
                if answer:
                    done.append(worker)
                    return json.loads(answer)  # type: ignore[no-any-return]
                worker.close()
        finally:
            with self._lock:
                self.busy -= 1
                self.free += done
        return {"error": "the worker that compiles it dies"}

    def forget(self) -> None:
        """In a process that was forked from this one: the workers are not its own."""
        for worker in self.free:
            worker.close()
        self.free, self.first, self.busy, self._lock = [], [], 0, threading.Lock()

    def stop(self) -> None:
        """End those that wait, and see them off."""
        while self.free:
            self.free.pop().close()
        while self.first:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it is at work for somebody
                self.first.pop().wait(1)

    def _started(self, count: int) -> list[Worker]:
        """-P: the folder of the script, which holds a file named triton, is not searched."""
        self.first = [process for process in self.first if process.poll() is None]
        pairs = [socket.socketpair() for _ in range(count)]
        theirs = [pipe.fileno() for _, pipe in pairs]
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        command = [sys.executable, "-P", str(Path(triton_worker.__file__)), *map(str, theirs)]
        self.first.append(subprocess.Popen(
            command, pass_fds=theirs, env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        ))  # fmt: skip
        for _, pipe in pairs:
            pipe.close()
        return [Worker(ours) for ours, _ in pairs]


WORKERS = Workers()
os.register_at_fork(after_in_child=WORKERS.forget)
