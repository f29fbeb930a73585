"""The pool of compile workers: processes that compile kernels, as long as this one lives.

In: jobs as JSON, never pickle. Out: their answers. The first worker of a group loads Triton, which
takes half a second and reads half a gigabyte; then it forks the others, which have it loaded as
well. Workers stay for the next graph, and end when this process closes their sockets by ending.
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


class CompileWorker:
    """Our end of a worker's socket."""

    def __init__(self, pipe: socket.socket) -> None:
        self.lines = pipe.makefile("rw", encoding="utf-8")
        pipe.close()  # the file keeps the socket open

    def ask(self, question: str) -> str:
        """The answer, or "" if the worker is dead."""
        with contextlib.suppress(OSError):
            self.lines.write(question + "\n")
            self.lines.flush()
            answer = self.lines.readline()
            return answer if answer.endswith("\n") else ""  # it died while answering
        return ""

    def close(self) -> None:
        """Close the socket, at which the worker ends."""
        with contextlib.suppress(OSError):
            self.lines.close()


class CompileWorkerPool:
    """The idle workers; a thread takes one for a job, or starts one more."""

    def __init__(self) -> None:
        self.free: list[CompileWorker] = []
        self.busy = 0
        self.first: list[subprocess.Popen[bytes]] = []  # of each group: the parent of the others
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def start(self, count: int) -> None:
        """Start workers until there are `count`."""
        with self._lock:
            missing = count - self.busy - len(self.free)
            if missing > 0:
                self.free += self._started(missing)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Run a job. If the worker turns out to be dead, a new one gets the job, but only once."""
        with self._lock:
            self.busy += 1
            waiting = [self.free.pop()] if self.free else []
        done: list[CompileWorker] = []
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
        """In a forked process: drop the workers, which belong to the parent."""
        for worker in self.free:
            worker.close()
        self.free, self.first, self.busy, self._lock = [], [], 0, threading.Lock()

    def stop(self) -> None:
        """End the idle workers, and wait for them."""
        while self.free:
            self.free.pop().close()
        while self.first:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it still works on a job
                self.first.pop().wait(1)

    def _started(self, count: int) -> list[CompileWorker]:
        """Start a group of workers. -P keeps the script's folder, which has a triton.py, out of the
        import path."""
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
        return [CompileWorker(ours) for ours, _ in pairs]


WORKERS = CompileWorkerPool()
os.register_at_fork(after_in_child=WORKERS.forget)
