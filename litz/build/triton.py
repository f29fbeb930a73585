"""Triton to cubins, several at a time, in processes of their own.

In: `DeviceSource`. Out: `Cubin`s by name. A process takes half a second until it has loaded Triton,
and then a twentieth or more for each kernel, in one thread; so workers share them. `start_workers`
has them load it while earlier stages are at work; they stay for the next graph, speak JSON, never
pickle, and end with this process. Example: `compile_kernels(kernels, 90, 4)`.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from litz.build import triton_worker
from litz.errors import InternalError
from litz.ir.source import Cubin, DeviceKernel

# So few kernels are compiled before workers have started.
FEW = 2
# A graph with fewer ops than this for each worker does not need it.
OPS_A_WORKER = 8
# What was compiled ahead, by job, and how much of it is kept.
AHEAD: dict[str, dict[str, Any]] = {}
MOST_AHEAD = 512


def compile_kernels(
    kernels: tuple[DeviceKernel, ...], capability: int, threads: int
) -> dict[str, Cubin]:
    """Each kernel's machine code, by name."""
    jobs = [_job(k, capability) for k in kernels]
    missing = [job for job in jobs if _key(job) not in AHEAD]
    if threads < 2 or (len(missing) <= FEW and not WORKERS.free):
        made = [_here(job) for job in missing]
    else:
        with ThreadPoolExecutor(max(min(threads, len(missing)), 1)) as pool:
            made = list(pool.map(WORKERS.run, missing))
    results = {_key(job): result for job, result in zip(missing, made, strict=True)} | AHEAD
    return {k.name: _cubin(k, results[_key(j)]) for k, j in zip(kernels, jobs, strict=True)}


def compile_ahead(
    kernels: Iterable[DeviceKernel], capability: int, threads: int, end: float
) -> None:
    """Compile what `compile_kernels` may be asked for, side by side; what is not begun by the end
    is left. Only the last so many are kept."""
    jobs = {_key(job): job for job in (_job(k, capability) for k in kernels)}

    def run(key: str) -> None:
        if key not in AHEAD and time.monotonic() < end:
            AHEAD[key] = WORKERS.run(jobs[key])

    with ThreadPoolExecutor(max(min(threads, len(jobs)), 1)) as pool:
        list(pool.map(run, jobs))
    for key in list(AHEAD)[: max(len(AHEAD) - MOST_AHEAD, 0)]:
        del AHEAD[key]


def start_workers(threads: int, ops: int) -> None:
    """Those that a graph of so many ops will need: half a second goes by until one is ready."""
    if threads > 1:
        WORKERS.start(min(threads, ops // OPS_A_WORKER))


def _key(job: dict[str, Any]) -> str:
    return json.dumps(job, sort_keys=True)


def worker_count(asked: int) -> int:
    """As many as asked for; below one, as many as there are processors, up to sixteen."""
    return asked if asked > 0 else min(os.cpu_count() or 1, 16)


def _job(kernel: DeviceKernel, capability: int) -> dict[str, Any]:
    return {
        "text": kernel.text,
        "name": kernel.name,
        "pointers": [*kernel.pointers, *kernel.sizes],
        "aligned": len(kernel.pointers) - kernel.checks,
        "warps": kernel.warps,
        "stages": kernel.stages,
        "joins": not kernel.rounds,
        "capability": capability,
    }


def _here(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return triton_worker.compiled(job)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _cubin(kernel: DeviceKernel, result: dict[str, Any]) -> Cubin:
    if "error" in result:
        raise InternalError(f"Triton rejects {kernel.name}: {result['error']}\n{kernel.text}")
    if result["scratch"] > kernel.scratch:
        raise InternalError(f"{kernel.name} needs scratch memory that no launch gives it")
    code = base64.b64decode(result["code"])
    return Cubin(result["name"], code, result["shared"], result["warps"])


class Workers:
    """Processes that wait for jobs; a thread takes one, or starts one more."""

    def __init__(self) -> None:
        self.free: list[subprocess.Popen[str]] = []
        self.busy = 0
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def start(self, count: int) -> None:
        """See to it that there are so many."""
        with self._lock:
            self.free += [_started() for _ in range(count - self.busy - len(self.free))]

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Have a job done."""
        with self._lock:
            self.free = [w for w in self.free if w.poll() is None]  # others were killed meanwhile
            worker = self.free.pop() if self.free else None
            self.busy += 1
        try:
            return self._done(job, worker or _started())
        finally:
            with self._lock:
                self.busy -= 1

    def _done(self, job: dict[str, Any], worker: subprocess.Popen[str]) -> dict[str, Any]:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps(job) + "\n")
        worker.stdin.flush()
        line = worker.stdout.readline()
        if not line:
            return {"error": f"the worker died with status {worker.wait()}"}
        with self._lock:
            self.free.append(worker)
        return json.loads(line)  # type: ignore[no-any-return]

    def stop(self) -> None:
        """A worker without input ends by itself."""
        while self.free:
            worker = self.free.pop()
            assert worker.stdin is not None
            worker.stdin.close()
            worker.wait()


def _started() -> subprocess.Popen[str]:
    """-P: the folder of the script, which holds a file named triton, is not searched."""
    script = Path(triton_worker.__file__)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.Popen(
        [sys.executable, "-P", str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip


WORKERS = Workers()
