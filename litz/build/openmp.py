"""OpenMP: the library that torch has loaded, through which kernels run on its threads.

In: nothing. Out: the addresses of the functions that kernels call, by name. A forked process has
none of its parent's threads but still OpenMP's table of them, so that its first parallel region,
eager's or ours, would wait for ever. Kernels therefore start threads through `litz_team`, which
notes that it did; a process forked after that computes on one thread. Example:
`symbols()["omp_get_max_threads"]`.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import torch

from litz.build.linker import linked

OPENMP_QUERIES = ("omp_get_max_threads", "omp_get_thread_num", "omp_get_num_threads")
START = "GOMP_parallel"
TEAM = f"""
@litz_started = global i32 0
declare void @{START}(ptr, ptr, i32, i32)
define void @litz_team(ptr %worker, ptr %job, i32 %threads, i32 %flags) {{
  store atomic i32 1, ptr @litz_started monotonic, align 4
  call void @{START}(ptr %worker, ptr %job, i32 %threads, i32 %flags)
  ret void
}}
"""
# Without an OpenMP library every kernel runs on the calling thread.
_ONE = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 1)

_started: list[ctypes.c_int32] = []  # `litz_started`, once it is loaded
_loaded: list[Any] = []  # owns the code of `litz_team`


@cache
def symbols() -> dict[str, int]:
    """The functions that kernels call. LLVM is initialised; one thread at a time calls this."""
    team = linked(
        llvm.JITLibraryBuilder().add_ir(TEAM),
        {START: _address(START)},
        ("litz_team", "litz_started"),
    )
    _loaded.append(team)
    _started.append(ctypes.c_int32.from_address(team["litz_started"]))
    return {START: team["litz_team"], **{name: _address(name) for name in OPENMP_QUERIES}}


def _address(name: str) -> int:
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return ctypes.cast(_ONE, ctypes.c_void_p).value or 0


@cache
def _libraries() -> list[ctypes.CDLL]:
    """The OpenMP library that torch loaded: bundled with it, or found by the process."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*.so*"))
    return [ctypes.CDLL(str(p)) for p in found] + [ctypes.CDLL(None)]


def _single_threaded_after_fork() -> None:
    """In a forked process: the threads that our kernels started are gone, so use one."""
    if any(flag.value for flag in _started):
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_single_threaded_after_fork)
