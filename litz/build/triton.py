"""Triton: kernels become cubins, several at a time, in worker processes.

In: `DeviceKernel`s. Out: `Cubin`s by name. A kernel takes a twentieth of a second or more in one
thread, so workers share them. Loading Triton takes half a second: `start_workers` does it while
earlier stages run. Example: `compile_kernels(kernels, 90, 4)`.
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from litz.build import triton_worker
from litz.build.workers import WORKERS
from litz.errors import InternalError
from litz.ir.source import Cubin, DeviceKernel

# Up to so many kernels are compiled in this process rather than wait for workers to start.
FEW = 2
# A worker is started for so many ops of a graph.
OPS_A_WORKER = 8
# Results compiled ahead, by job, and how many are kept. Threads add to them, but none while another
# reads: one graph is compiled at a time.
PRECOMPILED: dict[str, dict[str, Any]] = {}
MAX_PRECOMPILED = 512


def compile_kernels(
    kernels: tuple[DeviceKernel, ...], capability: int, threads: int
) -> dict[str, Cubin]:
    """Each kernel's machine code, by name."""
    jobs = [_job(k, capability) for k in kernels]
    missing = [job for job in jobs if _key(job) not in PRECOMPILED]
    if threads < 2 or (len(missing) <= FEW and not WORKERS.free):
        made = [_here(job) for job in missing]
    else:
        with ThreadPoolExecutor(max(min(threads, len(missing)), 1)) as pool:
            made = list(pool.map(WORKERS.run, missing))
    results = {_key(job): result for job, result in zip(missing, made, strict=True)} | PRECOMPILED
    return {k.name: _cubin(k, results[_key(j)]) for k, j in zip(kernels, jobs, strict=True)}


def precompile_kernels(
    kernels: Iterable[DeviceKernel], capability: int, threads: int, end: float
) -> None:
    """Compile kernels that `compile_kernels` may need, side by side. Those not begun by `end` are
    left out. The last MAX_PRECOMPILED results are kept."""
    jobs = {_key(job): job for job in (_job(k, capability) for k in kernels)}

    def run(key: str) -> None:
        if key not in PRECOMPILED and time.monotonic() < end:
            PRECOMPILED[key] = WORKERS.run(jobs[key])

    with ThreadPoolExecutor(max(min(threads, len(jobs)), 1)) as pool:
        list(pool.map(run, jobs))
    for key in list(PRECOMPILED)[: max(len(PRECOMPILED) - MAX_PRECOMPILED, 0)]:
        del PRECOMPILED[key]


def start_workers(threads: int, ops: int) -> None:
    """Start the workers that a graph of so many ops will need: each takes half a second."""
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
        "fp_fusion": not kernel.rounds,
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
