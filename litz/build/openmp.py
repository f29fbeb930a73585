"""OpenMP, as torch has loaded it: what kernels share their work out with, and what a fork leaves.

In: nothing. Out: the addresses that kernels call, by name. A forked process has none of its
parent's threads, but OpenMP's table of them: the first parallel region waits for ever, eager's
as well as ours. So kernels start threads through `litz_team`, which notes that there are some; a
process that is forked from then on computes on one thread. Example:
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

ASKED = ("omp_get_max_threads", "omp_get_thread_num", "omp_get_num_threads")
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

_started: list[ctypes.c_int32] = []  # what `litz_team` notes, once it is there
_loaded: list[Any] = []  # which owns its code


@cache
def symbols() -> dict[str, int]:
    """What kernels call. LLVM is ready, and one thread at a time comes here."""
    team = linked(
        llvm.JITLibraryBuilder().add_ir(TEAM),
        {START: _address(START)},
        ("litz_team", "litz_started"),
    )
    _loaded.append(team)
    _started.append(ctypes.c_int32.from_address(team["litz_started"]))
    return {START: team["litz_team"], **{name: _address(name) for name in ASKED}}


def _address(name: str) -> int:
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return ctypes.cast(_ONE, ctypes.c_void_p).value or 0


@cache
def _libraries() -> list[ctypes.CDLL]:
    """The OpenMP torch itself loaded: bundled beside it, or found by the process."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("lib*omp*.so*"))
    return [ctypes.CDLL(str(p)) for p in found] + [ctypes.CDLL(None)]


def _be_alone() -> None:
    """In a forked process: what our kernels started is gone."""
    if any(flag.value for flag in _started):
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_be_alone)
